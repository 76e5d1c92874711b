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
// Columns of text that are broken keep this much.
constexpr size_t kNarrowText = 12;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Where a line may end: after a space, which is left out there, or after a character that separates
// parts of names, but not within a number.
bool ends_part(std::string_view text, size_t at) {
  const bool in_number = at > 0 && is_digit(text[at - 1]) && at + 1 < text.size() &&
                         is_digit(text[at + 1]) && text[at] != ' ';
  return !in_number && std::string_view(" ._,").find(text[at]) != std::string_view::npos;
}

std::vector<std::string_view> parts_of(std::string_view text) {
  std::vector<std::string_view> out;
  while (!text.empty()) {
    size_t end = std::min(text.find_first_not_of(' '), text.size());  // an indented name
    while (end < text.size() && !ends_part(text, end)) {
      ++end;
    }
    end = std::min(text.find_first_not_of(' ', std::min(end + 1, text.size())), text.size());
    out.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return out;
}

std::string_view without_space(std::string_view part) {
  return part.substr(0, part.find_last_not_of(' ') + 1);
}

size_t longest_part(std::string_view text) {
  size_t out = 0;
  for (const std::string_view part : parts_of(text)) {
    out = std::max(out, code_points(without_space(part)));
  }
  return out;
}

// `text` in lines of at most `width` columns; parts are no longer.
std::vector<std::string> broken(std::string_view text, size_t width) {
  std::vector<std::string> out{""};
  for (const std::string_view part : parts_of(text)) {
    if (!out.back().empty() && code_points(out.back()) + code_points(without_space(part)) > width) {
      out.back() = without_space(out.back());
      out.emplace_back();
    }
    out.back() += part;
  }
  out.back() = without_space(out.back());
  return out;
}

// Makes columns narrower, the widest that can be first, until all of them and what is between them
// need no more than `limit`; 0: any.
void narrow(std::vector<size_t>& widths, const std::vector<size_t>& narrowest, size_t limit) {
  const auto all = [&] {
    return std::accumulate(widths.begin(), widths.end(), 2 * (widths.size() - 1));
  };
  while (limit > 0 && !widths.empty() && all() > limit) {
    size_t widest = widths.size();
    for (size_t c = 0; c < widths.size(); ++c) {
      if (widths[c] > narrowest[c] && (widest == widths.size() || widths[c] > widths[widest])) {
        widest = c;
      }
    }
    if (widest == widths.size()) {
      return;
    }
    --widths[widest];
  }
}

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

std::vector<size_t> Table::widths(const std::vector<std::string>& titles, size_t limit) const {
  std::vector<size_t> widths, narrowest, of_titles;
  for (size_t c = 0; c < columns_.size(); ++c) {
    const bool breaks = columns_[c].align == Align::kLeft;
    size_t cells = 0, parts = longest_part(titles[c]);
    for (const Row& row : rows_) {
      cells = std::max(cells, code_points(row.cells[c]));
      parts = std::max(parts, breaks ? longest_part(row.cells[c]) : code_points(row.cells[c]));
    }
    widths.push_back(std::max(cells, code_points(titles[c])));
    of_titles.push_back(std::max(cells, longest_part(titles[c])));
    narrowest.push_back(breaks ? std::max(parts, std::min(cells, kNarrowText)) : parts);
  }
  narrow(widths, of_titles, limit);
  narrow(widths, narrowest, limit);
  return widths;
}

Shown Table::render(Style style) const {
  std::vector<std::string> titles;
  for (const Column& column : columns_) {
    titles.push_back(elided(escaped(column.title), kWidestCell));
  }
  const std::vector<size_t> width = widths(titles, style.width);
  const auto lines = [&](const std::vector<std::string>& cells) {
    std::vector<std::vector<std::string>> parts;
    size_t height = 1;
    for (size_t c = 0; c < columns_.size(); ++c) {
      parts.push_back(broken(cells[c], width[c]));
      height = std::max(height, parts.back().size());
    }
    Shown out;
    for (size_t l = 0; l < height; ++l) {
      std::string line;
      for (size_t c = 0; c < columns_.size(); ++c) {
        const std::string part = l < parts[c].size() ? parts[c][l] : "";
        const std::string space(width[c] - code_points(part), ' ');
        line += c == 0 ? "" : "  ";
        line += columns_[c].align == Align::kLeft ? part + space : space + part;
      }
      line.erase(line.find_last_not_of(' ') + 1);
      out += as_shown(line);
      out += l + 1 < height ? Literal("\n") : Literal("");
    }
    return out;
  };
  Shown out = bold(lines(titles), style) + "\n";
  for (const Row& row : rows_) {
    out += style.escapes && row.highlighted ? show("\x1b[33m{}\x1b[0m\n", lines(row.cells))
                                            : lines(row.cells) + "\n";
  }
  return out;
}

Shown bold(const Shown& text, Style style) {
  return style.escapes ? show("\x1b[1m{}\x1b[0m", text) : text;
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
