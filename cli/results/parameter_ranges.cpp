#include "cli/results/parameter_ranges.h"

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/base/dtype.h"
#include "core/base/error.h"
#include "core/base/standard_output.h"
#include "core/json/json_dump.h"
#include "core/plan/ownership.h"
#include "profiler/report/table.h"

#include "cli/results/output.h"

namespace shardlens::cli {
namespace {

using nlohmann::ordered_json;
using plan::HeldPadding;
using plan::HeldPart;
using plan::Ownership;
using plan::ParameterPlace;
using plan::RankSet;
using plan::ResolvedPlan;

constexpr DType kMaster = DType::kF32;  // dtype of the shards that ranks keep between steps
constexpr size_t kLongestRun = 4;       // up to this many equal parts get a line each
constexpr int64_t kMostShown = 4;       // up to this many ranks or replicas are all listed

Bytes bytes_of(int64_t elements) {
  return elements * size_of(kMaster);
}

// Some elements in the shards of some ranks; `begin`, `end`: in the flattened parameter, if they
// follow one another there.
struct Row {
  RankSet ranks;
  int64_t shard_begin = 0, numel = 0;
  std::optional<std::pair<int64_t, int64_t>> range;
  std::vector<Box> boxes;
};

// Rows of ranks at equal distances with as many elements at the same place in their shards.
struct EqualRows {
  Row first;
  size_t rows = 1;
  int64_t step = 0;  // between the first ranks
  int64_t end = 0;   // end of the last row's range
};

bool continues(const EqualRows& run, const Row& next, bool padding) {
  const Row& first = run.first;
  const auto rows = static_cast<int64_t>(run.rows);
  const int64_t step = next.ranks.first - first.ranks.first - (rows - 1) * run.step;
  const bool follows = padding || (first.range && next.range && next.range->first == run.end);
  return step > 0 && (rows == 1 || step == run.step) && next.shard_begin == first.shard_begin &&
         next.numel == first.numel && next.ranks.size() == first.ranks.size() && follows;
}

std::vector<EqualRows> runs_of(const std::vector<Row>& rows, bool padding) {
  std::vector<EqualRows> runs;
  for (const Row& row : rows) {
    const int64_t end = row.range ? row.range->second : 0;
    if (!runs.empty() && continues(runs.back(), row, padding)) {
      EqualRows& run = runs.back();
      run.step =
          row.ranks.first - run.first.ranks.first - (static_cast<int64_t>(run.rows) - 1) * run.step;
      ++run.rows;
      run.end = end;
    } else {
      runs.push_back({row, 1, 0, end});
    }
  }
  std::vector<EqualRows> out;
  auto next = rows.begin();
  for (const EqualRows& run : runs) {
    if (run.rows > kLongestRun) {
      out.push_back(run);
    } else {
      for (size_t i = 0; i < run.rows; ++i) {
        out.push_back({next[static_cast<std::ptrdiff_t>(i)], 1, 0, 0});
      }
    }
    next += static_cast<std::ptrdiff_t>(run.rows);
  }
  return out;
}

// "3", "0-7", "0, 2, 4", with replicas "0-7, 8-15, … 56-63".
std::string ranks_text(const EqualRows& run, int64_t world_size) {
  const RankSet& ranks = run.first.ranks;
  if (ranks.size() == world_size && world_size > 1) {
    return "all";
  }
  const auto rows = static_cast<int64_t>(run.rows);
  const bool together = rows == 1 || run.step == ranks.run;  // consecutive ranks
  const int64_t inner = together ? 1 : rows;                 // texts for each replica
  const int64_t length = together ? rows * ranks.run : ranks.run;
  const int64_t all = ranks.count * inner;
  std::string out;
  for (int64_t k = 0; k < all; ++k) {
    if (all > kMostShown && k >= kMostShown - 1 && k + 1 < all) {
      continue;
    }
    const int64_t first = ranks.first + k / inner * ranks.stride + k % inner * run.step;
    const bool skipped = all > kMostShown && k + 1 == all;
    out += k == 0 ? "" : skipped ? ", … " : ", ";
    out += length == 1 ? std::to_string(first) : fmt::format("{}-{}", first, first + length - 1);
  }
  return out;
}

std::string shard_text(const Row& row) {
  return fmt::format("[{}, {})", bytes_of(row.shard_begin), bytes_of(row.shard_begin + row.numel));
}

// "[0, 24)", or for parts that do not follow one another the indices of each dimension,
// "[0:24, 45:90]".
std::string elements_text(const EqualRows& run) {
  const Row& first = run.first;
  if (first.range) {
    return run.rows == 1
               ? fmt::format("[{}, {})", first.range->first, first.range->second)
               : fmt::format("[{}, {}), {} each", first.range->first, run.end, first.numel);
  }
  std::vector<std::string> boxes;
  for (const Box& box : first.boxes) {
    std::vector<std::string> dims;
    for (size_t dim = 0; dim < box.shape.size(); ++dim) {
      dims.push_back(fmt::format("{}:{}", box.offset[dim], box.offset[dim] + box.shape[dim]));
    }
    boxes.push_back(fmt::format("[{}]", fmt::join(dims, ", ")));
  }
  return fmt::format("{}", fmt::join(boxes, " "));
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
                 const Ownership& ownership) {
  std::vector<Row> rows;
  for (const HeldPadding& padding : ownership.padding(unit)) {
    rows.push_back({padding.ranks, padding.shard_begin, padding.numel, {}, {}});
  }
  std::ranges::sort(rows, {}, [](const Row& row) {
    return std::tuple(row.shard_begin, row.numel, row.ranks.first);
  });
  std::vector<EqualRows> runs = runs_of(rows, /*padding=*/true);
  std::ranges::sort(runs, {}, [](const EqualRows& run) {
    return std::tuple(run.first.ranks.first, run.first.shard_begin);
  });
  for (const EqualRows& run : runs) {
    table.row({"(padding)", "", "", unit_text(plan, unit), ranks_text(run, plan.world_size), "-",
               shard_text(run.first)});
  }
}

void add_parameter(report::Table& table,
                   const ResolvedPlan& plan,
                   const ParameterPlace& place,
                   const std::vector<HeldPart>& parts) {
  const plan::Parameter& parameter = plan.tree.parameters[place.parameter];
  std::string name = parameter.fqn;
  for (const std::string& alias : parameter.aliases) {
    name += " = " + alias;
  }
  std::vector<std::string> cells{std::move(name),
                                 fmt::format("[{}]", fmt::join(parameter.shape, ", ")),
                                 std::string(plan_name(kMaster)), unit_text(plan, place.unit)};
  if (parts.empty()) {
    table.row(std::move(cells));
    return;
  }
  std::vector<Row> rows;
  for (const HeldPart& part : parts) {
    rows.push_back(
        {part.ranks, part.shard_begin, part.numel(), part.elements(parameter.shape), part.boxes});
  }
  for (const EqualRows& run : runs_of(rows, /*padding=*/false)) {
    cells.push_back(ranks_text(run, plan.world_size));
    cells.push_back(elements_text(run));
    cells.push_back(place.unit == kNoUnit ? "-" : shard_text(run.first));
    table.row(std::move(cells));
    cells.assign(4, "");  // further lines of the parameter have only the other columns
  }
}

ordered_json pair_json(int64_t begin, int64_t end) {
  return ordered_json::array({begin, end});
}

ordered_json ranks_json(const RankSet& ranks) {
  ordered_json out = ordered_json::array();
  for (int64_t i = 0; i < ranks.size(); ++i) {
    out.push_back(ranks.at(i));
  }
  return out;
}

ordered_json shard_json(int64_t begin, int64_t numel) {
  return pair_json(bytes_of(begin), bytes_of(begin + numel));
}

ordered_json box_json(const Box& box) {
  ordered_json out = ordered_json::array();
  for (size_t dim = 0; dim < box.shape.size(); ++dim) {
    out.push_back(pair_json(box.offset[dim], box.offset[dim] + box.shape[dim]));
  }
  return out;
}

ordered_json part_json(const HeldPart& part, const std::vector<int64_t>& shape, bool ignored) {
  const auto range = part.elements(shape);
  ordered_json boxes = ordered_json::array();
  for (const Box& box : part.boxes) {
    boxes.push_back(box_json(box));
  }
  return {{"ranks", ranks_json(part.ranks)},
          {"elements", range ? pair_json(range->first, range->second) : ordered_json()},
          {"boxes", std::move(boxes)},
          {"shard_bytes", ignored ? ordered_json() : shard_json(part.shard_begin, part.numel())}};
}

ordered_json parameter_json(const ResolvedPlan& plan,
                            const ParameterPlace& place,
                            const std::vector<HeldPart>& parts) {
  const plan::Parameter& parameter = plan.tree.parameters[place.parameter];
  const bool ignored = place.unit == kNoUnit;
  ordered_json out{{"fqn", parameter.fqn},
                   {"aliases", parameter.aliases},
                   {"shape", parameter.shape},
                   {"dtype", plan_name(kMaster)},
                   {"bytes", bytes_of(parameter.numel)},
                   {"unit", ignored ? ordered_json() : ordered_json(plan.units[place.unit].fqn)},
                   {"held", ordered_json::array()}};
  for (const HeldPart& part : parts) {
    out["held"].push_back(part_json(part, parameter.shape, ignored));
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
  const Ownership ownership(plan);
  const std::vector<ParameterPlace> places = plan::parameter_places(plan);
  for (size_t i = 0; i < places.size(); ++i) {
    const UnitId unit = places[i].unit;
    add_parameter(table, plan, places[i], ownership.parts(places[i]));
    if (unit != kNoUnit && (i + 1 == places.size() || places[i + 1].unit != unit)) {
      add_padding(table, plan, unit, ownership);
    }
  }
  write_stdout(table.render(style_of_stdout()));
}

void write_json_with_parameters(std::string_view object, const ResolvedPlan& plan) {
  constexpr std::string_view kEnd = "\n}\n";
  SHARDLENS_CHECK(object.ends_with(kEnd), "the object must end with '}' on a line of its own");
  write_data(object.substr(0, object.size() - kEnd.size()));
  const Ownership ownership(plan);
  write_data(",\n \"parameters\": [");
  Lines parameters;
  for (const ParameterPlace& place : plan::parameter_places(plan)) {
    parameters.add(parameter_json(plan, place, ownership.parts(place)));
  }
  write_data("\n ],\n \"padding\": [");
  Lines padding;
  for (UnitId id = 0; id < plan.units.size(); ++id) {
    for (const HeldPadding& each : ownership.padding(id)) {
      padding.add({{"unit", plan.units[id].fqn},
                   {"ranks", ranks_json(each.ranks)},
                   {"shard_bytes", shard_json(each.shard_begin, each.numel)}});
    }
  }
  write_data(fmt::format("\n ]{}", kEnd));
}

}  // namespace shardlens::cli
