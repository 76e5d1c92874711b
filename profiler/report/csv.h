#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

namespace shardlens::report {

// A cell as RFC 4180 has it. It is escaped (core/base/shown.h), and what a spreadsheet would take
// for a formula begins with "'".
[[nodiscard]] std::string csv_cell(std::string_view text);

// A table as CSV, row by row: RFC 4180, with a header line.
class Csv {
 public:
  explicit Csv(std::span<const std::string_view> columns);

  // The next cell of the row: text as csv_cell(), a number, or "" for an optional without a value.
  template <typename T>
  void cell(const T& value) {
    if constexpr (std::is_convertible_v<T, std::string_view>) {
      add(csv_cell(value));
    } else {
      static_assert(std::is_arithmetic_v<T>);
      add(fmt::format("{}", value));
    }
  }
  template <typename T>
  void cell(const std::optional<T>& value) {
    if (value) {
      cell(*value);
    } else {
      add("");
    }
  }
  // Ends the row. A row with more or fewer cells than columns is a programming error.
  void end_row();
  template <typename... Values>
  void row(const Values&... values) {
    (cell(values), ...);
    end_row();
  }
  [[nodiscard]] std::string take() { return std::move(out_); }

 private:
  void add(std::string_view text);

  std::string out_;
  size_t columns_ = 0, cells_ = 0;  // cells: of the row that was begun
};

}  // namespace shardlens::report
