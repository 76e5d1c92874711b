#include "profiler/trace/kineto/plugin_ranges.h"

#include <algorithm>
#include <optional>

#include <nlohmann/json.hpp>

#include "core/json/json_dump.h"

namespace shardlens::trace {
namespace {

// "": a kind that the plugin has no name for.
std::string_view plugin_name(CollectiveKind kind, bool device) {
  switch (kind) {
    case CollectiveKind::kAllGather:
      return device ? "nccl:all_gather" : "gloo:all_gather";
    case CollectiveKind::kReduceScatter:
      return device ? "nccl:reduce_scatter" : "gloo:reduce_scatter";
    case CollectiveKind::kAllReduce:
      return device ? "nccl:all_reduce" : "gloo:all_reduce";
    case CollectiveKind::kBroadcast:
      return device ? "nccl:broadcast" : "gloo:broadcast";
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kSendRecv:
    case CollectiveKind::kBarrier:
      break;
  }
  return "";
}

std::string_view plugin_name(const Trace& trace, const Event& event, bool device) {
  const std::optional<CollectiveKind> kind = collective_kind(trace, event);
  return kind ? plugin_name(*kind, device) : "";
}

// The arguments with another External id; "" if there are none as written.
std::string with_id(std::string_view args, uint32_t id) {
  if (args.empty()) {
    return "";
  }
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(args, nullptr, false);
  if (!json.is_object()) {
    return "";
  }
  json.erase("external id");  // which the plugin prefers
  json["External id"] = id;
  return plan::json_text(json);
}

}  // namespace

void PluginRanges::see(const Trace& trace, const Event& event) {
  most_id_ = std::max(most_id_, event.external_id);
  if (event.category != Category::kKernel || event.correlation == 0) {
    return;
  }
  if (const std::string_view name = plugin_name(trace, event, true); !name.empty()) {
    launched_.emplace(event.correlation, Launched{name, 0});
  }
}

void PluginRanges::write(KinetoWriter& writer,
                         const Trace& trace,
                         const Event& event,
                         std::string_view args) {
  if (event.category == Category::kUserAnnotation && !launched_.empty() &&
      trace.name(event).starts_with("nccl:")) {
    return;  // the same call again
  }
  const bool launch = is_runtime_call(event.category);
  const auto found = launch || event.category == Category::kKernel
                         ? launched_.find(event.correlation)
                         : launched_.end();
  if (found == launched_.end()) {
    writer.event(trace, event, args);
    if (event.category == Category::kCommunication) {
      if (const std::string_view name = plugin_name(trace, event, false); !name.empty()) {
        write_range(writer, trace, event, name, ++most_id_);
      }
    }
    return;
  }
  Launched& launched = found->second;
  if (launched.id == 0) {
    launched.id = ++most_id_;
  }
  if (launch) {
    writer.event(trace, event, args);
    write_range(writer, trace, event, launched.name, launched.id);
    return;
  }
  Event kernel = event;
  kernel.external_id = launched.id;
  writer.event(trace, kernel, with_id(args, launched.id));
}

void PluginRanges::write_range(KinetoWriter& writer,
                               const Trace& trace,
                               const Event& event,
                               std::string_view name,
                               uint32_t id) {
  Trace own;
  Track track = trace.tracks.at(event.track);
  track.pid_text = own.strings.intern(trace.strings.view(track.pid_text));
  track.tid_text = own.strings.intern(trace.strings.view(track.tid_text));
  const uint32_t range =
      own.add_complete(Category::kUserAnnotation, name, own.track(track), event.start, event.end());
  own.events[range].external_id = id;
  writer.event(own, own.events[range]);
  ++ranges_;
}

}  // namespace shardlens::trace
