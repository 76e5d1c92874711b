#include "cli/results/parameter_ranges.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/base/dtype.h"
#include "core/base/error.h"
#include "core/base/standard_output.h"
#include "core/plan/held_ranges.h"
#include "core/plan/json_dump.h"
#include "profiler/report/table.h"

#include "cli/results/output.h"

namespace shardlens::cli {
namespace {

using nlohmann::ordered_json;
using plan::HeldRange;
using plan::ParameterPlace;
using plan::RankSet;
using plan::ResolvedPlan;

constexpr DType kMaster = DType::kF32;  // dtype of the shards that ranks keep between steps
constexpr size_t kLongestRun = 4;       // up to so many equal parts get a line each
constexpr int64_t kMostReplicas = 4;    // up to so many replicas are all listed

Bytes bytes_of(int64_t elements) {
  return elements * size_of(kMaster);
}

std::vector<plan::ShardLayout> layouts_of(const ResolvedPlan& plan) {
  std::vector<plan::ShardLayout> out;
  for (UnitId id = 0; id < plan.units.size(); ++id) {
    out.push_back(plan.layout(id));
  }
  return out;
}

std::vector<HeldRange> ranges_of(const ResolvedPlan& plan,
                                 const std::vector<plan::ShardLayout>& layouts,
                                 const ParameterPlace& place) {
  if (place.unit != kNoUnit) {
    return plan::held_ranges(layouts[place.unit], plan.world_size, place.index);
  }
  const int64_t numel = plan.tree.parameters[place.parameter].numel;
  return numel == 0 ? std::vector<HeldRange>{}
                    : std::vector<HeldRange>{{{0, 1, plan.world_size}, 0, numel, 0}};
}

// Ranges of consecutive ranks with the same length and the same position in their shards.
struct EqualParts {
  HeldRange first;
  size_t ranges = 1;
  int64_t end = 0;  // end of the last range
};

bool continues(const EqualParts& run, const HeldRange& next, bool padding) {
  const HeldRange& first = run.first;
  return next.ranks.first == first.ranks.first + static_cast<int64_t>(run.ranges) &&
         next.shard_begin == first.shard_begin &&
         next.end - next.begin == first.end - first.begin && (padding || next.begin == run.end);
}

std::vector<EqualParts> runs_of(const std::vector<HeldRange>& ranges, bool padding) {
  std::vector<EqualParts> runs;
  for (const HeldRange& range : ranges) {
    if (!runs.empty() && continues(runs.back(), range, padding)) {
      ++runs.back().ranges;
      runs.back().end = range.end;
    } else {
      runs.push_back({range, 1, range.end});
    }
  }
  std::vector<EqualParts> out;
  auto next = ranges.begin();
  for (const EqualParts& run : runs) {
    if (run.ranges > kLongestRun) {
      out.push_back(run);
    } else {
      for (size_t i = 0; i < run.ranges; ++i) {
        out.push_back({next[static_cast<std::ptrdiff_t>(i)], 1, 0});
      }
    }
    next += static_cast<std::ptrdiff_t>(run.ranges);
  }
  return out;
}

// "3", "0-7", with replicas "0-7, 8-15, … 56-63".
std::string ranks_text(const RankSet& ranks, size_t run, int64_t world_size) {
  if (ranks.stride == 1 && ranks.count == world_size && world_size > 1) {
    return "all";
  }
  std::string out;
  for (int64_t k = 0; k < ranks.count; ++k) {
    if (ranks.count > kMostReplicas && k >= kMostReplicas - 1 && k + 1 < ranks.count) {
      continue;
    }
    const int64_t first = ranks.first + k * ranks.stride;
    const bool skipped = ranks.count > kMostReplicas && k + 1 == ranks.count;
    out += k == 0 ? "" : skipped ? ", … " : ", ";
    out += run == 1 ? std::to_string(first)
                    : fmt::format("{}-{}", first, first + static_cast<int64_t>(run) - 1);
  }
  return out;
}

std::string shard_text(const HeldRange& range) {
  return fmt::format("[{}, {})", bytes_of(range.shard_begin),
                     bytes_of(range.shard_begin + range.end - range.begin));
}

std::string elements_text(const EqualParts& run) {
  return run.ranges == 1 ? fmt::format("[{}, {})", run.first.begin, run.first.end)
                         : fmt::format("[{}, {}), {} each", run.first.begin, run.end,
                                       run.first.end - run.first.begin);
}

std::string unit_text(const ResolvedPlan& plan, UnitId unit) {
  if (unit == kNoUnit) {
    return "(ignored)";
  }
  return plan.units[unit].fqn.empty() ? "(root)" : plan.units[unit].fqn;
}

void add_padding(report::Table& table,
                 const ResolvedPlan& plan,
                 UnitId unit,
                 const plan::ShardLayout& layout) {
  std::vector<HeldRange> ranges = plan::padding_ranges(layout, plan.world_size);
  std::ranges::sort(ranges, {}, [](const HeldRange& range) {
    return std::tuple(range.shard_begin, range.end, range.ranks.first);
  });
  std::vector<EqualParts> rows = runs_of(ranges, /*padding=*/true);
  std::ranges::sort(rows, {}, [](const EqualParts& row) {
    return std::tuple(row.first.ranks.first, row.first.shard_begin);
  });
  for (const EqualParts& run : rows) {
    table.row({"(padding)", "", "", unit_text(plan, unit),
               ranks_text(run.first.ranks, run.ranges, plan.world_size), "-",
               shard_text(run.first)});
  }
}

void add_parameter(report::Table& table,
                   const ResolvedPlan& plan,
                   const ParameterPlace& place,
                   const std::vector<HeldRange>& ranges) {
  const plan::Parameter& parameter = plan.tree.parameters[place.parameter];
  std::string name = parameter.fqn;
  for (const std::string& alias : parameter.aliases) {
    name += " = " + alias;
  }
  std::vector<std::string> cells{std::move(name),
                                 fmt::format("[{}]", fmt::join(parameter.shape, ", ")),
                                 std::string(plan_name(kMaster)), unit_text(plan, place.unit)};
  if (ranges.empty()) {
    table.row(std::move(cells));
    return;
  }
  for (const EqualParts& run : runs_of(ranges, /*padding=*/false)) {
    cells.push_back(ranks_text(run.first.ranks, run.ranges, plan.world_size));
    cells.push_back(elements_text(run));
    cells.push_back(place.unit == kNoUnit ? "-" : shard_text(run.first));
    table.row(std::move(cells));
    cells.assign(4, "");  // further lines of the parameter have only the other columns
  }
}

ordered_json range_json(int64_t begin, int64_t end) {
  return ordered_json::array({begin, end});
}

ordered_json ranks_json(const RankSet& ranks) {
  ordered_json out = ordered_json::array();
  for (int64_t k = 0; k < ranks.count; ++k) {
    out.push_back(ranks.first + k * ranks.stride);
  }
  return out;
}

ordered_json shard_json(const HeldRange& range) {
  return range_json(bytes_of(range.shard_begin),
                    bytes_of(range.shard_begin + range.end - range.begin));
}

ordered_json parameter_json(const ResolvedPlan& plan,
                            const ParameterPlace& place,
                            const std::vector<HeldRange>& ranges) {
  const plan::Parameter& parameter = plan.tree.parameters[place.parameter];
  const bool ignored = place.unit == kNoUnit;
  ordered_json out{{"fqn", parameter.fqn},
                   {"aliases", parameter.aliases},
                   {"shape", parameter.shape},
                   {"dtype", plan_name(kMaster)},
                   {"bytes", bytes_of(parameter.numel)},
                   {"unit", ignored ? ordered_json() : ordered_json(plan.units[place.unit].fqn)},
                   {"held", ordered_json::array()}};
  for (const HeldRange& range : ranges) {
    out["held"].push_back({{"ranks", ranks_json(range.ranks)},
                           {"elements", range_json(range.begin, range.end)},
                           {"shard_bytes", ignored ? ordered_json() : shard_json(range)}});
  }
  return out;
}

// Writes elements of a JSON array, one per line.
class Lines {
 public:
  void add(const ordered_json& element) {
    write_data((first_ ? "\n  " : ",\n  ") + plan::json_text(element));
    first_ = false;
  }

 private:
  bool first_ = true;
};

}  // namespace

void print_parameters(const ResolvedPlan& plan) {
  using report::Align;
  write_stdout("\n{}\n", bold("elements of each parameter on each rank, as [first, end)"));
  report::Table table({{"parameter", Align::kLeft},
                       {"shape", Align::kLeft},
                       {"dtype", Align::kLeft},
                       {"unit", Align::kLeft},
                       {"ranks", Align::kLeft},
                       {"elements", Align::kLeft},
                       {"bytes in the rank's shard", Align::kLeft}});
  const std::vector<plan::ShardLayout> layouts = layouts_of(plan);
  const std::vector<ParameterPlace> places = plan::parameter_places(plan);
  for (size_t i = 0; i < places.size(); ++i) {
    const UnitId unit = places[i].unit;
    add_parameter(table, plan, places[i], ranges_of(plan, layouts, places[i]));
    if (unit != kNoUnit && (i + 1 == places.size() || places[i + 1].unit != unit)) {
      add_padding(table, plan, unit, layouts[unit]);
    }
  }
  write_stdout(table.render(style_of_stdout()));
}

void write_json_with_parameters(std::string_view object, const ResolvedPlan& plan) {
  constexpr std::string_view kEnd = "\n}\n";
  SHARDLENS_CHECK(object.ends_with(kEnd), "the object must end with '}' on a line of its own");
  write_data(object.substr(0, object.size() - kEnd.size()));
  const std::vector<plan::ShardLayout> layouts = layouts_of(plan);
  write_data(",\n \"parameters\": [");
  Lines parameters;
  for (const ParameterPlace& place : plan::parameter_places(plan)) {
    parameters.add(parameter_json(plan, place, ranges_of(plan, layouts, place)));
  }
  write_data("\n ],\n \"padding\": [");
  Lines padding;
  for (UnitId id = 0; id < plan.units.size(); ++id) {
    for (const HeldRange& range : plan::padding_ranges(layouts[id], plan.world_size)) {
      padding.add({{"unit", plan.units[id].fqn},
                   {"ranks", ranks_json(range.ranks)},
                   {"shard_bytes", shard_json(range)}});
    }
  }
  write_data(fmt::format("\n ]{}", kEnd));
}

}  // namespace shardlens::cli
