#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/units.h"

namespace shardlens::report {

enum class Align : uint8_t { kLeft, kRight };
enum class Style : uint8_t {
  kPlain,
  kTerminal
};  // kTerminal: bold and colours by escape sequences

// Columns of text for people. Widths count code points, so that names in UTF-8 line up.
class Table {
 public:
  struct Column {
    std::string title;
    Align align = Align::kRight;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  void row(std::vector<std::string>
               cells);  // missing cells are empty; more than columns are an error of ours
  void highlight();     // the last row, on a terminal
  [[nodiscard]] size_t rows() const { return rows_.size(); }
  [[nodiscard]] std::string render(Style style) const;

 private:
  struct Row {
    std::vector<std::string> cells;
    bool highlighted = false;
  };
  std::vector<Column> columns_;
  std::vector<Row> rows_;
};

[[nodiscard]] std::string bold(std::string_view text, Style style);

// "0.412 ms", "1.250 s"; a whole number of microseconds.
[[nodiscard]] std::string format_duration(Nanoseconds value);
// Of a message; 0 is none that the trace tells, "-".
[[nodiscard]] std::string format_message(Bytes value);
// "35.4 %"; "-" without a value.
[[nodiscard]] std::string format_percent(std::optional<double> fraction);
// Microseconds whose sum is that of the parts rounded once (largest remainder), so that a total
// shown equals its parts.
[[nodiscard]] std::vector<Nanoseconds> round_to_microseconds(std::span<const Nanoseconds> parts);

}  // namespace shardlens::report
