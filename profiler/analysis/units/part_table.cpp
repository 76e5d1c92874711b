#include "profiler/analysis/units/part_table.h"

#include <array>

namespace shardlens::analysis {

std::span<const PartFigureRow> part_figure_table() {
  using Number = std::optional<int64_t>;
  using Word = std::optional<std::string_view>;
  static constexpr std::array kRows{
      PartFigureRow{.key = "count",
                    .number = [](const PartFigures& p) -> Number { return p.count; }},
      PartFigureRow{.key = "bytes",
                    .number = [](const PartFigures& p) -> Number {
                      return p.bytes == 0 ? std::nullopt : Number(p.bytes);
                    }},
      PartFigureRow{.key = "busy_ns",
                    .number = [](const PartFigures& p) -> Number { return p.busy; }},
      PartFigureRow{.key = "exposed_ns",
                    .number = [](const PartFigures& p) -> Number { return p.exposed; }},
      PartFigureRow{.key = "lead_ns",
                    .number = [](const PartFigures& p) -> Number { return p.lead; }},
      PartFigureRow{.key = "cause",
                    .word = [](const PartFigures& p) -> Word {
                      return p.cause ? Word(name_of(*p.cause)) : std::nullopt;
                    }},
      PartFigureRow{.key = "issued_by",
                    .word = [](const PartFigures& p) -> Word {
                      return p.issued_by ? Word(schedule::name_of(*p.issued_by)) : std::nullopt;
                    }},
  };
  return kRows;
}

}  // namespace shardlens::analysis
