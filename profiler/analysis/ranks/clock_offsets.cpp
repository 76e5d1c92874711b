#include "profiler/analysis/ranks/clock_offsets.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <numeric>

#include "core/base/median.h"

namespace shardlens::analysis {
namespace {

constexpr size_t kAllPairs =
    8;  // in larger collectives, neighbours and the first rank are compared
constexpr double kFloor = 1000;  // ns; no clock difference is known better than this
constexpr double kEnough = 100;  // more collectives than this add no weight

// The measured difference of two clocks.
struct ClockEdge {
  uint32_t a, b;
  Nanoseconds difference;  // a - b
  double deviation;        // of a single collective
  double weight;
};

// One collective as two ranks saw it.
struct ClockPair {
  Nanoseconds ends;   // difference of their ends
  Interval possible;  // differences of the clocks by which both parts ran at one time
};

// The differences by which most collectives ran on both ranks at one time; of several equally good
// ranges, the one nearest to `expected`.
Interval most_possible(const std::vector<ClockPair>& pairs, Nanoseconds expected) {
  std::vector<std::pair<Nanoseconds, int>> bounds;
  for (const ClockPair& pair : pairs) {
    bounds.emplace_back(pair.possible.start, -1);  // begins come first
    bounds.emplace_back(pair.possible.end, 1);
  }
  std::sort(bounds.begin(), bounds.end());
  const auto distance = [&](const Interval& range) {
    return std::max<Nanoseconds>({0, range.start - expected, expected - range.end});
  };
  Interval best{expected, expected};
  int64_t most = 0, open = 0;
  for (size_t i = 0; i + 1 < bounds.size(); ++i) {
    open -= bounds[i].second;
    const Interval range{bounds[i].first, bounds[i + 1].first};
    if (open > most || (open == most && distance(range) < distance(best))) {
      most = open;
      best = range;
    }
  }
  return best;
}

ClockEdge edge_of(uint32_t a, uint32_t b, const std::vector<ClockPair>& pairs) {
  std::vector<Nanoseconds> ends, possible;
  for (const ClockPair& pair : pairs) {
    ends.push_back(pair.ends);
  }
  const Nanoseconds middle = lower_median(ends);
  const Interval range = most_possible(pairs, middle);
  std::copy_if(ends.begin(), ends.end(), std::back_inserter(possible),
               [&](Nanoseconds each) { return range.start <= each && each <= range.end; });
  const Nanoseconds difference =
      possible.empty() ? std::clamp(middle, range.start, range.end) : lower_median(possible);
  for (Nanoseconds& each : ends) {
    each = std::abs(each - difference);
  }
  const double deviation = std::max(kFloor, static_cast<double>(lower_median(ends)));
  const double weight =
      std::min(static_cast<double>(pairs.size()), kEnough) / (deviation * deviation);
  return {a, b, difference, deviation, weight};
}

std::vector<ClockEdge> edges_of(const std::vector<SeenCollective>& collectives) {
  std::map<std::pair<uint32_t, uint32_t>, std::vector<ClockPair>> pairs;
  const auto add = [&](const SeenCollective& parts, size_t i, size_t j) {
    const bool ordered = parts[i].rank < parts[j].rank;
    const SeenPart &a = parts[ordered ? i : j], &b = parts[ordered ? j : i];
    if (a.rank != b.rank) {
      pairs[{a.rank, b.rank}].push_back(
          {a.when.end - b.when.end, {a.when.start - b.when.end, a.when.end - b.when.start}});
    }
  };
  for (const SeenCollective& parts : collectives) {
    for (size_t i = 1; i < parts.size(); ++i) {
      if (parts.size() <= kAllPairs) {
        for (size_t j = 0; j < i; ++j) {
          add(parts, i, j);
        }
      } else {
        add(parts, i, i - 1);
        if (i > 1) {
          add(parts, i, 0);
        }
      }
    }
  }
  std::vector<ClockEdge> edges;
  for (const auto& [ranks, seen] : pairs) {
    edges.push_back(edge_of(ranks.first, ranks.second, seen));
  }
  return edges;
}

class ClockSolver {
 public:
  ClockSolver(size_t ranks, std::vector<ClockEdge> edges)
      : edges_(std::move(edges)), offsets_(ranks), islands_(ranks) {
    std::iota(islands_.begin(), islands_.end(), 0U);
  }

  void run() {
    span();
    refine();
    choose_references();
  }
  [[nodiscard]] const std::vector<Nanoseconds>& offsets() const { return offsets_; }
  [[nodiscard]] const std::vector<uint32_t>& islands() const { return islands_; }
  [[nodiscard]] const std::vector<ClockEdge>& edges() const { return edges_; }
  [[nodiscard]] Nanoseconds residual(const ClockEdge& edge) const {
    return edge.difference - (offsets_[edge.a] - offsets_[edge.b]);
  }

 private:
  // A first solution from the best measurements that connect the ranks: a spanning tree.
  void span() {
    std::vector<size_t> order(edges_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t x, size_t y) { return edges_[x].weight > edges_[y].weight; });
    std::vector<uint32_t> root(offsets_.size());
    std::iota(root.begin(), root.end(), 0U);
    const auto find = [&](uint32_t rank) {
      while (root[rank] != rank) {
        rank = root[rank] = root[root[rank]];
      }
      return rank;
    };
    std::vector<std::vector<std::pair<uint32_t, Nanoseconds>>> tree(offsets_.size());
    for (const size_t i : order) {
      const ClockEdge& edge = edges_[i];
      const uint32_t a = find(edge.a), b = find(edge.b);
      if (a != b) {
        root[std::max(a, b)] = std::min(a, b);
        tree[edge.a].emplace_back(edge.b, edge.difference);
        tree[edge.b].emplace_back(edge.a, -edge.difference);
      }
    }
    std::vector<bool> seen(offsets_.size(), false);
    std::vector<uint32_t> open;
    for (uint32_t start = 0; start < offsets_.size(); ++start) {
      if (seen[start]) {
        continue;
      }
      seen[start] = true;
      for (open = {start}; !open.empty();) {
        const uint32_t rank = open.back();
        open.pop_back();
        islands_[rank] = start;
        for (const auto& [other, ahead] : tree[rank]) {  // `ahead`: rank's clock - other's
          if (!seen[other]) {
            seen[other] = true;
            offsets_[other] = offsets_[rank] - ahead;
            open.push_back(other);
          }
        }
      }
    }
  }

  // Corrections of the offsets by weighted least squares, solved rank by rank (Gauss-Seidel).
  void refine() {
    constexpr int kReweighted = 8, kSweeps = 100;
    constexpr double kSettled = 0.25;  // ns
    std::vector<double> correction(offsets_.size(), 0);
    std::vector<std::vector<size_t>> at(offsets_.size());
    for (size_t i = 0; i < edges_.size(); ++i) {
      at[edges_[i].a].push_back(i);
      at[edges_[i].b].push_back(i);
    }
    std::vector<double> target, weight(edges_.size());
    for (const ClockEdge& edge : edges_) {
      target.push_back(static_cast<double>(residual(edge)));
    }
    for (int round = 0; round < kReweighted; ++round) {
      for (size_t i = 0; i < edges_.size(); ++i) {
        const ClockEdge& edge = edges_[i];
        const double off =
            (target[i] - (correction[edge.a] - correction[edge.b])) / (3 * edge.deviation);
        weight[i] = edge.weight / (1 + off * off);
      }
      double moved = kSettled + 1;
      for (int sweep = 0; sweep < kSweeps && moved > kSettled; ++sweep) {
        moved = 0;
        for (uint32_t rank = 0; rank < offsets_.size(); ++rank) {
          double sum = 0, weights = 0;
          for (const size_t i : at[rank]) {
            const ClockEdge& edge = edges_[i];
            sum += weight[i] * (edge.a == rank ? correction[edge.b] + target[i]
                                               : correction[edge.a] - target[i]);
            weights += weight[i];
          }
          if (weights > 0) {
            moved = std::max(moved, std::abs(sum / weights - correction[rank]));
            correction[rank] = sum / weights;
          }
        }
      }
    }
    for (size_t rank = 0; rank < offsets_.size(); ++rank) {
      offsets_[rank] += std::llround(correction[rank]);
    }
  }

  void choose_references() {
    std::map<uint32_t, std::vector<Nanoseconds>> islands;
    for (size_t rank = 0; rank < offsets_.size(); ++rank) {
      islands[islands_[rank]].push_back(offsets_[rank]);
    }
    for (auto& [island, offsets] : islands) {
      const Nanoseconds reference = lower_median(offsets);
      for (size_t rank = 0; rank < offsets_.size(); ++rank) {
        offsets_[rank] -= islands_[rank] == island ? reference : 0;
      }
    }
  }

  std::vector<ClockEdge> edges_;
  std::vector<Nanoseconds> offsets_;
  std::vector<uint32_t> islands_;
};

}  // namespace

std::vector<ClockOffset> solve_clocks(size_t ranks,
                                      const std::vector<SeenCollective>& collectives) {
  ClockSolver solver(ranks, edges_of(collectives));
  solver.run();
  std::vector<ClockOffset> out(ranks);
  for (size_t rank = 0; rank < ranks; ++rank) {
    out[rank].offset = solver.offsets()[rank];
    out[rank].island = solver.islands()[rank];
  }
  for (const ClockEdge& edge : solver.edges()) {
    for (const uint32_t rank : {edge.a, edge.b}) {
      out[rank].residual = std::max(out[rank].residual, std::abs(solver.residual(edge)));
    }
  }
  std::vector<std::vector<Nanoseconds>> distances(ranks);
  std::vector<Nanoseconds> aligned;
  for (const SeenCollective& parts : collectives) {
    aligned.clear();
    for (const auto& [rank, when] : parts) {
      aligned.push_back(when.end - out[rank].offset);
    }
    const Nanoseconds common = lower_median(aligned);
    for (const auto& [rank, when] : parts) {
      distances[rank].push_back(std::abs(when.end - out[rank].offset - common));
    }
  }
  for (size_t rank = 0; rank < ranks; ++rank) {
    out[rank].spread = distances[rank].empty() ? 0 : lower_median(distances[rank]);
  }
  return out;
}

}  // namespace shardlens::analysis
