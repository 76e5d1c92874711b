#include "core/base/nearest.h"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <vector>

namespace shardlens {
namespace {

constexpr size_t kShortestPart = 3;  // a shorter text is part of too many names

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row.back();
}

bool equal_letters(char a, char b) {
  return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
}

// The shortest of the candidates that contain `part`, in whatever case: "h100" is in "8xH100".
std::string shortest_with(std::string_view part, std::span<const std::string> candidates) {
  std::string shortest;
  for (const std::string& each : candidates) {
    const bool contains =
        part.size() >= kShortestPart && std::search(each.begin(), each.end(), part.begin(),
                                                    part.end(), equal_letters) != each.end();
    if (contains && (shortest.empty() || each.size() < shortest.size())) {
      shortest = each;
    }
  }
  return shortest;
}

}  // namespace

std::string nearest_name(std::string_view name, std::span<const std::string> candidates) {
  size_t best = 1 + name.size() / 3 + 1;
  std::string nearest;
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(name, candidate);
    if (distance < best) {
      best = distance;
      nearest = candidate;
    }
  }
  return nearest.empty() ? shortest_with(name, candidates) : nearest;
}

}  // namespace shardlens
