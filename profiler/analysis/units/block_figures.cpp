#include "profiler/analysis/units/block_figures.h"

#include <algorithm>
#include <cctype>
#include <map>

#include <fmt/format.h>

#include "core/base/median.h"

namespace shardlens::analysis {
namespace {

constexpr size_t kLeastUnits = 3;
constexpr Nanoseconds kLeastDistance = 50'000;

// A name with "*" for each component that is a number, and those numbers.
struct Pattern {
  std::string text;
  std::vector<std::string> numbers;
};

Pattern pattern_of(std::string_view fqn) {
  Pattern out;
  size_t at = 0;
  while (at <= fqn.size()) {
    const size_t dot = std::min(fqn.find('.', at), fqn.size());
    const std::string_view part = fqn.substr(at, dot - at);
    const bool number = !part.empty() && std::all_of(part.begin(), part.end(), [](char c) {
      return std::isdigit(static_cast<unsigned char>(c)) != 0;
    });
    out.text += at == 0 ? "" : ".";
    out.text += number ? "*" : std::string(part);
    if (number) {
      out.numbers.emplace_back(part);
    }
    at = dot + 1;
  }
  return out;
}

template <class Value>  // value(unit) → Nanoseconds
BlockSpread spread_of(const std::vector<uint32_t>& units, Value value) {
  BlockSpread out;
  std::vector<Nanoseconds> values;
  for (const uint32_t unit : units) {
    const Nanoseconds each = value(unit);
    if (values.empty() || each > out.worst) {
      out.worst = each;
      out.worst_unit = unit;
    }
    out.sum += each;
    values.push_back(each);
  }
  out.median = lower_median(values);
  return out;
}

// "layers.0 to 79" if one number differs, else "stages.*.blocks.* (12 units)".
std::string block_name(const std::vector<UnitFigures>& units, const std::vector<uint32_t>& list) {
  const Pattern first = pattern_of(units[list.front()].fqn),
                last = pattern_of(units[list.back()].fqn);
  std::vector<size_t> varies;
  for (size_t k = 0; k < first.numbers.size(); ++k) {
    const bool differs = std::any_of(list.begin(), list.end(), [&](uint32_t u) {
      return pattern_of(units[u].fqn).numbers[k] != first.numbers[k];
    });
    if (differs) {
      varies.push_back(k);
    }
  }
  if (varies.size() == 1 && first.text.ends_with('*') && varies[0] + 1 == first.numbers.size()) {
    return fmt::format("{} to {}", units[list.front()].fqn, last.numbers.back());
  }
  return fmt::format("{} ({} units)", first.text, list.size());
}

}  // namespace

std::vector<BlockFigures> block_figures(const std::vector<UnitFigures>& units) {
  std::map<std::pair<std::string, size_t>, std::vector<uint32_t>> alike;
  std::vector<std::pair<std::string, size_t>> order;
  for (uint32_t i = 0; i < units.size(); ++i) {
    const Pattern pattern = pattern_of(units[i].fqn);
    if (units[i].is_unit && !pattern.numbers.empty()) {
      auto& list = alike[{pattern.text, pattern.numbers.size()}];
      if (list.empty()) {
        order.emplace_back(pattern.text, pattern.numbers.size());
      }
      list.push_back(i);
    }
  }
  std::vector<BlockFigures> out;
  for (const auto& key : order) {
    const std::vector<uint32_t>& list = alike[key];
    if (list.size() < kLeastUnits) {
      continue;
    }
    BlockFigures block;
    block.units = list;
    block.name = block_name(units, list);
    block.exposed = spread_of(list, [&](uint32_t u) { return units[u].exposed(); });
    block.compute = spread_of(list, [&](uint32_t u) { return units[u].compute; });
    for (size_t p = 0; p < kUnitPartCount; ++p) {
      std::vector<uint32_t> have;
      std::copy_if(list.begin(), list.end(), std::back_inserter(have),
                   [&](uint32_t u) { return units[u].parts[p].has_value(); });
      if (!have.empty()) {
        block.parts[p] = spread_of(have, [&](uint32_t u) { return units[u].parts[p]->exposed; });
      }
    }
    std::vector<Nanoseconds> distances;
    for (const uint32_t u : list) {
      distances.push_back(std::abs(units[u].exposed() - block.exposed.median));
    }
    const Nanoseconds limit =
        std::max({block.exposed.median / 2, 5 * lower_median(distances), kLeastDistance});
    for (size_t k = 0; k < list.size(); ++k) {
      if (distances[k] > limit) {
        block.outliers.push_back(list[k]);
      }
    }
    out.push_back(std::move(block));
  }
  return out;
}

}  // namespace shardlens::analysis
