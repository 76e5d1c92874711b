#include "profiler/analysis/units/part_table.h"

#include <array>

namespace shardlens::analysis {

std::span<const PartFigureRow> part_figure_table() {
  static constexpr std::array kRows{
      PartFigureRow{.key = "count", .member = &PartFigures::count},
      PartFigureRow{.key = "bytes", .member = &PartFigures::bytes, .zero_is_unknown = true},
      PartFigureRow{.key = "busy_ns", .member = &PartFigures::busy},
      PartFigureRow{.key = "exposed_ns", .member = &PartFigures::exposed},
      PartFigureRow{.key = "lead_ns", .member = &PartFigures::lead},
      PartFigureRow{.key = "cause", .member = &PartFigures::cause, .of_rank = false},
      PartFigureRow{.key = "issued_by", .member = &PartFigures::issued_by},
  };
  return kRows;
}

bool PartFigureRow::is_word() const {
  return std::holds_alternative<std::optional<ExposedCause> PartFigures::*>(member) ||
         std::holds_alternative<std::optional<schedule::Cause> PartFigures::*>(member);
}

std::optional<int64_t> PartFigureRow::number(const PartFigures& part) const {
  std::optional<int64_t> out;
  if (const auto* always = std::get_if<int64_t PartFigures::*>(&member)) {
    out = part.**always;
  } else if (const auto* maybe = std::get_if<std::optional<int64_t> PartFigures::*>(&member)) {
    out = part.**maybe;
  }
  return zero_is_unknown && out == 0 ? std::nullopt : out;
}

std::optional<std::string_view> PartFigureRow::word(const PartFigures& part) const {
  if (const auto* exposed = std::get_if<std::optional<ExposedCause> PartFigures::*>(&member)) {
    return part.**exposed ? std::optional(name_of(*(part.**exposed))) : std::nullopt;
  }
  if (const auto* issued = std::get_if<std::optional<schedule::Cause> PartFigures::*>(&member)) {
    return part.**issued ? std::optional(schedule::name_of(*(part.**issued))) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace shardlens::analysis
