#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace shardlens::sim {

// A row of a comma-separated table, by column name.
class CsvRow {
 public:
  using Columns = std::unordered_map<std::string, size_t>;
  CsvRow(std::vector<std::string> fields,
         std::shared_ptr<const Columns> columns,
         const std::string& source,
         int64_t line);

  [[nodiscard]] int64_t line() const { return line_; }               // line number, from 1
  [[nodiscard]] const std::string& where() const { return where_; }  // "FILE:LINE"
  [[nodiscard]] const std::string& text(const char* column) const;
  // nullopt: the field is empty. Errors: InputError with file, line and column.
  [[nodiscard]] std::optional<double> number(const char* column) const;
  // A whole number from 1 to `most`, at most 10^15.
  [[nodiscard]] std::optional<int64_t> size(const char* column,
                                            int64_t most = 1'000'000'000'000'000) const;

 private:
  std::vector<std::string> fields_;
  std::shared_ptr<const Columns> columns_;
  int64_t line_;
  std::string where_;
};

// The rows below a header that has at least `columns`, in any order (RFC 4180: a quoted field may
// contain commas, line ends and doubled quotes). Blank lines are skipped.
// Errors  InputError with file and line.
[[nodiscard]] std::vector<CsvRow> parse_csv(std::string_view text,
                                            const std::string& source,
                                            std::span<const char* const> columns);

}  // namespace shardlens::sim
