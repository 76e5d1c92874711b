#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/shown.h"
#include "core/base/units.h"

namespace shardlens::report {

enum class Align : uint8_t { kLeft, kRight };

// How text is printed.
struct Style {
  bool escapes = false;  // bold and colours by escape sequences, for a terminal
  size_t width = 0;      // columns that tables fit where they can; 0: any number
};

// A table of text for display. Widths count code points, so that columns with UTF-8 names are
// aligned; cells are escaped (core/base/shown.h), and those of more than 160 are elided.
//
// A table that is wider than its style allows has titles in several lines, then also cells of
// columns that are aligned left, the widest column first. They are broken after spaces and after
// characters that separate parts of names. Numbers stay in one line, so a table of many columns may
// still be wider.
class Table {
 public:
  struct Column {
    std::string title;
    Align align = Align::kRight;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // Adds a row; missing cells are empty. More cells than columns are a programming error.
  void row(std::vector<std::string> cells);
  void highlight();  // the last row, on a terminal
  [[nodiscard]] size_t rows() const { return rows_.size(); }
  [[nodiscard]] Shown render(Style style) const;

 private:
  struct Row {
    std::vector<std::string> cells;
    bool highlighted = false;
  };
  [[nodiscard]] std::vector<size_t> widths(const std::vector<std::string>& titles,
                                           size_t limit) const;

  std::vector<Column> columns_;
  std::vector<Row> rows_;
};

[[nodiscard]] Shown bold(const Shown& text, Style style);
[[nodiscard]] Shown bold(Literal text, Style style);

// "0.412 ms", "1.250 s"; rounded to whole microseconds, from 10 s on to milliseconds.
[[nodiscard]] std::string format_duration(Nanoseconds value);
// The size of a message; "-" for 0, which means that it is not in the trace.
[[nodiscard]] std::string format_message(Bytes value);
// "35.4 %"; "-" without a value.
[[nodiscard]] std::string format_percent(std::optional<double> fraction);
// Rounds the parts to microseconds by the largest-remainder method, so that they sum to the rounded
// total.
[[nodiscard]] std::vector<Nanoseconds> round_to_microseconds(std::span<const Nanoseconds> parts);

}  // namespace shardlens::report
