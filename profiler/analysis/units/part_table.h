#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <variant>

#include "profiler/analysis/units/unit_figures.h"

namespace shardlens::analysis {

// One figure of a unit's collectives of a part. JSON, CSV and files of summaries loop over the
// rows, and Python has the keys that it reads in JSON.
struct PartFigureRow {
  using Member = std::variant<int64_t PartFigures::*,
                              std::optional<int64_t> PartFigures::*,
                              std::optional<ExposedCause> PartFigures::*,
                              std::optional<schedule::Cause> PartFigures::*>;
  std::string_view key;  // its ending is the unit: "exposed_ns"
  Member member;
  bool of_rank = true;  // false: found when the ranks are compared, so not in a rank's summary
  bool zero_is_unknown = false;

  // nullopt: the trace does not tell, or there is none; or the figure is a word.
  [[nodiscard]] std::optional<int64_t> number(const PartFigures& part) const;
  // nullopt: there is none, or the figure is a number.
  [[nodiscard]] std::optional<std::string_view> word(const PartFigures& part) const;
  [[nodiscard]] bool is_word() const;
};

// In the order of the columns of CSV.
[[nodiscard]] std::span<const PartFigureRow> part_figure_table();

}  // namespace shardlens::analysis
