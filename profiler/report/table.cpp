#include "profiler/report/table.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/format_bytes.h"
#include "core/base/show.h"

namespace shardlens::report {
namespace {

// Longer cells, which only names have, would make every row of a table as long.
constexpr size_t kWidestCell = 160;

}  // namespace

void Table::row(std::vector<std::string> cells) {
  SHARDLENS_CHECK(cells.size() <= columns_.size(), "a table row has more cells than columns");
  cells.resize(columns_.size());
  for (std::string& cell : cells) {
    cell = elided(escaped(cell), kWidestCell);
  }
  rows_.push_back({std::move(cells), false});
}

void Table::highlight() {
  if (!rows_.empty()) {
    rows_.back().highlighted = true;
  }
}

Shown Table::render(Style style) const {
  std::vector<std::string> titles;
  std::vector<size_t> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    titles.push_back(elided(escaped(columns_[c].title), kWidestCell));
    size_t width = code_points(titles.back());
    for (const Row& row : rows_) {
      width = std::max(width, code_points(row.cells[c]));
    }
    widths.push_back(width);
  }
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string out;
    for (size_t c = 0; c < columns_.size(); ++c) {
      const std::string space(widths[c] - code_points(cells[c]), ' ');
      out += c == 0 ? "" : "  ";
      out += columns_[c].align == Align::kLeft ? cells[c] + space : space + cells[c];
    }
    out.erase(out.find_last_not_of(' ') + 1);
    return as_shown(out);
  };
  Shown out = bold(line(titles), style) + "\n";
  for (const Row& row : rows_) {
    out += style == Style::kTerminal && row.highlighted
               ? show("\x1b[33m{}\x1b[0m\n", line(row.cells))
               : line(row.cells) + "\n";
  }
  return out;
}

Shown bold(const Shown& text, Style style) {
  return style == Style::kTerminal ? show("\x1b[1m{}\x1b[0m", text) : text;
}

Shown bold(Literal text, Style style) {
  return bold(Shown(text), style);
}

std::string format_duration(Nanoseconds value) {
  const bool negative = value < 0;
  const uint64_t magnitude =
      negative ? 0U - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  const uint64_t micro = magnitude / 1000 + (magnitude % 1000 >= 500 ? 1 : 0);
  const char* sign = negative && micro > 0 ? "-" : "";
  if (micro < 10'000'000) {
    return fmt::format("{}{}.{:03} ms", sign, micro / 1000, micro % 1000);
  }
  const uint64_t milli = (micro + 500) / 1000;
  return fmt::format("{}{}.{:03} s", sign, milli / 1000, milli % 1000);
}

std::string format_message(Bytes value) {
  return value == 0 ? "-" : format_bytes(value);
}

std::string format_percent(std::optional<double> fraction) {
  return fraction ? fmt::format("{:.1f} %", *fraction * 100) : "-";
}

std::vector<Nanoseconds> round_to_microseconds(std::span<const Nanoseconds> parts) {
  const Nanoseconds total = std::accumulate(parts.begin(), parts.end(), Nanoseconds{0});
  std::vector<Nanoseconds> out;
  std::vector<size_t> order(parts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto floor = [](Nanoseconds ns) { return ns / 1000 - (ns % 1000 < 0 ? 1 : 0); };
  Nanoseconds left = floor(total + 500);
  for (const Nanoseconds part : parts) {
    out.push_back(floor(part));
    left -= out.back();
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return parts[a] - 1000 * floor(parts[a]) > parts[b] - 1000 * floor(parts[b]);
  });
  for (size_t i = 0; i < order.size() && left > 0; ++i, --left) {
    ++out[order[i]];
  }
  for (Nanoseconds& each : out) {
    each *= 1000;
  }
  return out;
}

}  // namespace shardlens::report
