#include "cli/results/peak_by_unit.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/base/format_bytes.h"

namespace shardlens::cli {
namespace {

using nlohmann::ordered_json;

struct UnitRow {
  std::string name;
  std::array<Bytes, sim::kMemoryCategoryCount> bytes{};
};

// By unit of the plan, then one row of what is of no unit.
std::vector<UnitRow> rows_of(const sim::Prediction& prediction) {
  const std::vector<plan::Unit>& units = prediction.priced.plan->units;
  std::vector<UnitRow> out(units.size() + 1);
  for (size_t i = 0; i < units.size(); ++i) {
    out[i].name = units[i].fqn;
  }
  for (const sim::AliveAtPeak& each : prediction.memory.alive) {
    const size_t row = each.unit == kNoUnit ? units.size() : each.unit;
    out[row].bytes[static_cast<size_t>(each.category)] += each.bytes;
  }
  return out;
}

bool is_empty(const UnitRow& row) {
  return std::ranges::all_of(row.bytes, [](Bytes each) { return each == 0; });
}

// Names of units for people: all blocks of the model together.
class BlockNames {
 public:
  explicit BlockNames(const plan::ModuleTree& tree) {
    for (const uint32_t block : tree.blocks) {
      blocks_.push_back(tree.modules[block].fqn);
    }
    last_ = blocks_.empty() ? "" : blocks_.back().substr(blocks_.back().rfind('.') + 1);
  }
  [[nodiscard]] std::string of(const std::string& unit) const {
    const bool in_block = std::ranges::any_of(blocks_, [&unit](const std::string& block) {
      return unit == block || unit.starts_with(block + ".");
    });
    return unit.empty()                     ? "(root)"
           : in_block && blocks_.size() > 1 ? fmt::format("{} to {}", blocks_.front(), last_)
                                            : unit;
  }

 private:
  std::vector<std::string> blocks_;
  std::string last_;  // the last block's own name
};

}  // namespace

ordered_json peak_by_unit_json(const sim::Prediction& prediction) {
  auto out = ordered_json::array();
  const std::vector<UnitRow> rows = rows_of(prediction);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (is_empty(rows[i])) {
      continue;
    }
    ordered_json memory;
    for (size_t kind = 0; kind < rows[i].bytes.size(); ++kind) {
      memory[std::string(name_of(static_cast<sim::MemoryCategory>(kind)))] = rows[i].bytes[kind];
    }
    out.push_back({{"unit", i + 1 == rows.size() ? ordered_json() : ordered_json(rows[i].name)},
                   {"memory", std::move(memory)}});
  }
  return out;
}

Shown peak_by_unit_text(const sim::Prediction& prediction, report::Style style) {
  const std::vector<UnitRow> rows = rows_of(prediction);
  const BlockNames blocks(prediction.priced.plan->tree);
  std::vector<UnitRow> shown;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (is_empty(rows[i])) {
      continue;
    }
    UnitRow row = rows[i];
    row.name = i + 1 == rows.size() ? "of no unit" : blocks.of(rows[i].name);
    const auto alike = std::ranges::find(shown, row.name, &UnitRow::name);
    if (alike == shown.end()) {
      shown.push_back(std::move(row));
    } else {
      std::ranges::transform(alike->bytes, row.bytes, alike->bytes.begin(), std::plus<>());
    }
  }
  std::vector<report::Table::Column> columns{{"at the peak, by unit", report::Align::kLeft}};
  std::vector<size_t> kinds;  // of which there is something
  for (size_t kind = 0; kind < prediction.memory.at_peak.size(); ++kind) {
    if (prediction.memory.at_peak[kind] > 0) {
      kinds.push_back(kind);
      columns.push_back({std::string(name_of(static_cast<sim::MemoryCategory>(kind)))});
    }
  }
  columns.push_back({"sum"});
  report::Table table(std::move(columns));
  const auto add = [&](std::string name, const auto& bytes) {
    std::vector<std::string> cells{std::move(name)};
    for (const size_t kind : kinds) {
      cells.push_back(bytes[kind] == 0 ? "-" : format_bytes(bytes[kind]));
    }
    cells.push_back(format_bytes(std::accumulate(bytes.begin(), bytes.end(), Bytes{0})));
    table.row(std::move(cells));
  };
  for (const UnitRow& each : shown) {
    add(each.name, each.bytes);
  }
  add("all", prediction.memory.at_peak);
  return table.render(style);
}

}  // namespace shardlens::cli
