#include "sim/validate/csv_table.h"

#include <charconv>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/error.h"

namespace shardlens::sim {
namespace {

using Record = std::vector<std::string>;

// Splits text into records (RFC 4180: a quoted field may contain commas, line ends and doubled
// quotes).
class Csv {
 public:
  Csv(std::string_view text, const std::string& source) : text_(text), source_(source) {}

  // The next record and the line on which it begins; false at the end.
  bool next(Record& out, int64_t& line) {
    out.clear();
    line = line_;
    if (at_ >= text_.size()) {
      return false;
    }
    for (;;) {
      out.push_back(field());
      if (at_ >= text_.size() || text_[at_] == '\n') {
        ++at_;
        ++line_;
        return true;
      }
      ++at_;  // the comma
    }
  }

 private:
  std::string field() {
    std::string out;
    if (at_ < text_.size() && text_[at_] == '"') {
      const int64_t began = line_;
      ++at_;
      for (;; ++at_) {
        if (at_ >= text_.size()) {
          throw InputError(fmt::format("{}:{}", source_, began), "a quoted field is not closed");
        }
        if (text_[at_] == '"') {
          if (at_ + 1 >= text_.size() || text_[at_ + 1] != '"') {
            break;
          }
          ++at_;
        }
        line_ += text_[at_] == '\n' ? 1 : 0;
        out += text_[at_];
      }
      ++at_;
    }
    while (at_ < text_.size() && text_[at_] != ',' && text_[at_] != '\n') {
      out += text_[at_++];
    }
    if (!out.empty() && out.back() == '\r') {
      out.pop_back();
    }
    return out;
  }

  std::string_view text_;
  const std::string& source_;
  size_t at_ = 0;
  int64_t line_ = 1;
};

}  // namespace

CsvRow::CsvRow(std::vector<std::string> fields,
               std::shared_ptr<const Columns> columns,
               const std::string& source,
               int64_t line)
    : fields_(std::move(fields)),
      columns_(std::move(columns)),
      line_(line),
      where_(fmt::format("{}:{}", source, line)) {}

const std::string& CsvRow::text(const char* column) const {
  return fields_[columns_->at(column)];
}

std::optional<double> CsvRow::number(const char* column) const {
  const std::string& shown = text(column);
  if (shown.empty()) {
    return std::nullopt;
  }
  double value = 0;
  const char* const end = shown.data() + shown.size();
  const auto [stop, error] = std::from_chars(shown.data(), end, value);
  if (error != std::errc{} || stop != end || !std::isfinite(value)) {
    throw InputError(where_,
                     fmt::format("column '{}': expected a number, found '{}'", column, shown));
  }
  return value;
}

std::optional<int64_t> CsvRow::size(const char* column, int64_t most) const {
  const std::optional<double> value = number(column);
  if (value &&
      !(*value >= 1 && *value <= static_cast<double>(most) && *value == std::floor(*value))) {
    throw InputError(where_, fmt::format("column '{}': expected a whole number from 1 to {}, "
                                         "found '{}'",
                                         column, most, text(column)));
  }
  return value ? std::optional(static_cast<int64_t>(*value)) : std::nullopt;
}

std::vector<CsvRow> parse_csv(std::string_view text,
                              const std::string& source,
                              std::span<const char* const> columns) {
  Csv csv(text, source);
  Record record;
  int64_t line = 0;
  if (!csv.next(record, line)) {
    throw InputError(source, "the file is empty");
  }
  auto positions = std::make_shared<CsvRow::Columns>();
  for (size_t i = 0; i < record.size(); ++i) {
    positions->emplace(record[i], i);
  }
  for (const char* column : columns) {
    if (!positions->contains(column)) {
      throw InputError(
          source, fmt::format("no column '{}'; expected {}", column, fmt::join(columns, ", ")));
    }
  }
  const size_t width = record.size();
  std::vector<CsvRow> rows;
  while (csv.next(record, line)) {
    if (record.size() == 1 && record[0].empty()) {
      continue;
    }
    if (record.size() != width) {
      throw InputError(fmt::format("{}:{}", source, line),
                       fmt::format("{} fields, but the header has {}", record.size(), width));
    }
    rows.emplace_back(record, positions, source, line);
  }
  return rows;
}

}  // namespace shardlens::sim
