#include "profiler/report/csv.h"

#include "core/base/error.h"
#include "core/base/shown.h"

namespace shardlens::report {

std::string csv_cell(std::string_view text) {
  std::string shown = escaped(text);
  if (shown.find_first_of("=+-@") == 0) {
    shown.insert(0, "'");
  }
  if (shown.find_first_of(",\"") == std::string::npos) {
    return shown;
  }
  std::string out = "\"";
  for (const char c : shown) {
    out += c == '"' ? "\"\"" : std::string(1, c);
  }
  return out + "\"";
}

Csv::Csv(std::span<const std::string_view> columns) : columns_(columns.size()) {
  for (const std::string_view column : columns) {
    add(column);
  }
  end_row();
}

void Csv::add(std::string_view text) {
  out_ += cells_++ == 0 ? "" : ",";
  out_ += text;
}

void Csv::end_row() {
  SHARDLENS_CHECK(cells_ == columns_, "a row of a table has as many cells as the table columns");
  out_ += "\r\n";
  cells_ = 0;
}

}  // namespace shardlens::report
