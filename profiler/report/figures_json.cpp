#include "profiler/report/figures_json.h"

#include "profiler/analysis/figures/figure_table.h"
#include "profiler/report/optional_values.h"

namespace shardlens::report {
namespace {

using nlohmann::ordered_json;

ordered_json launch_json(const analysis::LaunchFigures& launch) {
  return {{"count", launch.count},
          {"latency_median_ns", launch.latency_median},
          {"latency_p99_ns", launch.latency_p99},
          {"latency_max_ns", launch.latency_max},
          {"before_launch", launch.before_launch},
          {"queue_max", launch.queue_max},
          {"queue_mean", launch.queue_mean}};
}

ordered_json memory_json(const analysis::MemoryFigures& memory) {
  ordered_json steps = ordered_json::array(), timeline = ordered_json::array();
  for (const auto& step : memory.steps) {
    steps.push_back(
        {{"step", step.step},
         {memory.from_driver ? "peak_growth_bytes" : "peak_allocated_bytes", step.allocated}});
  }
  for (const analysis::MemoryPoint& p : memory.timeline) {
    timeline.push_back({p.time, p.allocated, p.reserved});
  }
  const auto of_allocator = [&](Bytes bytes) {
    return memory.from_driver ? ordered_json(nullptr) : ordered_json(bytes);
  };
  return {{"device", memory.device},
          {"source", memory.from_driver ? "driver" : "allocator"},
          {"peak_allocated_bytes", of_allocator(memory.peak.allocated)},
          {"peak_time_ns", memory.peak.time},
          {"peak_reserved_bytes", of_allocator(memory.peak_reserved)},
          {"peak_growth_bytes",
           memory.from_driver ? ordered_json(memory.peak.allocated) : ordered_json(nullptr)},
          {"steps", std::move(steps)},
          {"timeline", std::move(timeline)}};
}

ordered_json path_json(const analysis::StepPath& step) {
  ordered_json out{{"step", step.path.step}, {"bound", name_of(step.path.bound())}};
  for (int i = 0; i < analysis::kBoundCount; ++i) {
    out[std::string(name_of(static_cast<analysis::Bound>(i))) + "_ns"] =
        step.path.lengths[static_cast<size_t>(i)];
  }
  ordered_json parts = ordered_json::array();
  for (const analysis::PathPart& part : step.parts) {
    parts.push_back({{"rank", part.rank},
                     {"bound", name_of(part.bound)},
                     {"name", part.name},
                     {"count", part.count},
                     {"length_ns", part.length}});
  }
  out["parts"] = std::move(parts);
  return out;
}

}  // namespace

ordered_json message_json(Bytes bytes) {
  return bytes == 0 ? ordered_json(nullptr) : ordered_json(bytes);
}

ordered_json kind_json(const analysis::KindFigures& kind) {
  ordered_json out;
  for (const analysis::KindFigureRow& row : analysis::kind_figure_table()) {
    out[std::string(row.key)] =
        row.number != nullptr ? or_null(row.number_of(kind)) : or_null(kind.*row.ratio);
  }
  return out;
}

ordered_json communication_json(const std::vector<analysis::CommunicationFigures>& communication) {
  ordered_json out = ordered_json::array();
  for (const analysis::CommunicationFigures& each : communication) {
    out.push_back({{"purpose", name_of(each.purpose)},
                   {"group", each.group},
                   {"ranks", each.ranks == 0 ? ordered_json(nullptr) : ordered_json(each.ranks)},
                   {"kind", each.kind ? ordered_json(name_of(*each.kind)) : ordered_json(nullptr)},
                   {"count", or_null(each.count)},
                   {"bytes", message_json(each.bytes)},
                   {"busy_ns", each.busy},
                   {"exposed_ns", each.exposed}});
  }
  return out;
}

ordered_json attribution_json(const std::vector<analysis::AttributionFigures>& attribution) {
  ordered_json out = ordered_json::array();
  for (const analysis::AttributionFigures& each : attribution) {
    out.push_back({{"what", analysis::name_of(each.nature)},
                   {"basis", analysis::name_of(each.basis)},
                   {"count", each.count},
                   {"count_share", each.count_share},
                   {"time_ns", each.time},
                   {"time_share", each.time_share}});
  }
  return out;
}

ordered_json idle_json(const analysis::IdleFigures& idle) {
  ordered_json out;
  for (const analysis::IdleFigureRow& row : analysis::idle_figure_table()) {
    if (row.part) {
      out[std::string(row.key)] = idle.*row.member;
    }
  }
  return out;
}

void put_device_sections(ordered_json& rank, const analysis::RankAnalysis& analysis) {
  rank["launch"] = analysis.device ? launch_json(analysis.launch) : ordered_json(nullptr);
  ordered_json memory = ordered_json::array();
  for (const analysis::MemoryFigures& device : analysis.memory) {
    memory.push_back(memory_json(device));
  }
  rank["memory"] = std::move(memory);
  if (!analysis.critical_paths.empty()) {
    ordered_json paths = ordered_json::array();
    for (const analysis::StepPath& path : analysis.critical_paths) {
      paths.push_back(path_json(path));
    }
    rank["critical_path"] = std::move(paths);
  }
}

void put_matching(ordered_json& out, const analysis::Matching& matching) {
  ordered_json clocks = ordered_json::array(), stragglers = ordered_json::array(),
               matched = ordered_json::array();
  for (const analysis::ClockFigures& c : matching.clocks) {
    clocks.push_back({{"rank", c.rank},
                      {"offset_ns", c.offset},
                      {"spread_ns", c.spread},
                      {"residual_ns", c.residual},
                      {"reference", c.reference},
                      {"collectives", c.collectives}});
  }
  for (const analysis::StragglerFigures& s : matching.stragglers) {
    stragglers.push_back({{"rank", s.rank}, {"last", s.last}, {"held_up_ns", s.held_up}});
  }
  for (const analysis::MatchedFigures& m : matching.collectives) {
    matched.push_back({{"collective", name_of(m.kind)},
                       {"group", m.group},
                       {"bytes", message_json(m.bytes)},
                       {"ranks", m.ranks},
                       {"count", m.count},
                       {"transfer_median_ns", m.transfer_median},
                       {"wait_median_ns", m.wait_median},
                       {"skew_median_ns", m.skew_median},
                       {"skew_max_ns", m.skew_max},
                       {"algbw_gbps", or_null(m.algbw)},
                       {"busbw_gbps", or_null(m.busbw)}});
  }
  out["clocks"] = std::move(clocks);
  out["stragglers"] = std::move(stragglers);
  out["matched"] = std::move(matched);
}

void put_figures(ordered_json& out, const analysis::WindowFigures& f) {
  for (const analysis::FigureRow& row : analysis::figure_table()) {
    out[std::string(row.key)] =
        row.time != nullptr ? ordered_json(row.time(f)) : or_null(row.ratio(f));
  }
  ordered_json kinds = ordered_json::object();
  for (const auto& [kind, figures] : f.collectives) {
    kinds[std::string(name_of(kind))] = kind_json(figures);
  }
  if (f.unknown.count > 0 || f.unknown.busy > 0) {
    kinds["unknown"] = kind_json(f.unknown);
  }
  out["collectives"] = std::move(kinds);
}

}  // namespace shardlens::report
