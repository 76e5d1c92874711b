#include "gui/model/run/run_preview.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace shardlens::gui {

bool is_worth_showing(const ReadPart& part, size_t from) {
  constexpr size_t kLargest = 15, kRest = 3;  // times `from`
  if (part.events == 0 || part.events > kLargest * from || (part.events < from && !part.whole)) {
    return false;
  }
  if (part.total == 0) {
    return !part.whole;
  }
  if (part.read == 0 || part.read >= part.total) {
    return false;
  }
  const double rest = static_cast<double>(part.left_out + part.events) *
                      static_cast<double>(part.total - part.read) / static_cast<double>(part.read);
  return rest >= static_cast<double>(kRest * from);
}

bool lacks_device(const trace::Trace& so_far) {
  return so_far.devices.empty() && so_far.metadata.device_properties.find('{') != std::string::npos;
}

size_t first_of_part(const trace::Trace& so_far, size_t host_only, size_t from) {
  return so_far.devices.empty() || host_only < from ? 0 : host_only;
}

RunPointer preview_of(trace::Trace part, const trace::Progress* progress) {
  std::vector<trace::Trace> traces;
  traces.push_back(std::move(part));
  const auto run = std::make_shared<RunData>(trace::Run::of(std::move(traces)), progress);
  run->preview = true;
  for (analysis::RankAnalysis& rank : run->analysis.ranks) {
    rank.steps.clear();
    rank.memory.clear();
  }
  for (const auto& rank : run->ranks) {
    rank->queue = {};
    std::erase_if(rank->lanes, [](const Lane& lane) {
      return lane.source == Lane::Source::kExposed || lane.source == Lane::Source::kIdle;
    });
  }
  return run;
}

}  // namespace shardlens::gui
