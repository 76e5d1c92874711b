#include "profiler/analysis/ranks/rank_alignment.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>
#include <utility>

#include "core/base/median.h"

namespace shardlens::analysis {
namespace {

bool may_differ_in_size(CollectiveKind kind) {
  return kind == CollectiveKind::kAllToAll || kind == CollectiveKind::kSendRecv;
}

// The items of each step of one rank.
std::map<int64_t, std::pair<size_t, size_t>> ranges_of(const UnnumberedList& items) {
  std::map<int64_t, std::pair<size_t, size_t>> out;
  for (size_t i = 0; i < items.size(); ++i) {
    const auto [it, fresh] = out.try_emplace(items[i].step, i, i);
    it->second.second = i + 1;
  }
  return out;
}

// Aligns one rank of a group to another by time.
class Alignment {
 public:
  Alignment(const UnnumberedList& reference, const UnnumberedList& other, Nanoseconds expected)
      : reference_(reference), other_(other), expected_(expected) {
    const auto others = ranges_of(other);
    for (const auto& [step, range] : ranges_of(reference)) {
      if (const auto same = others.find(step); same != others.end()) {
        steps_.emplace_back(range, same->second);
      }
    }
  }

  // For each of the reference's items, the position of the other's item that belongs to it.
  [[nodiscard]] std::vector<std::optional<size_t>> run() {
    std::vector<std::optional<size_t>> out(reference_.size());
    find_spacing();
    const bool by_time = find_difference();
    for (const auto& [mine, theirs] : steps_) {
      const std::vector<size_t> a = by_issue(reference_, mine), b = by_issue(other_, theirs);
      if (only_in_order(a, b)) {
        for (size_t i = 0; i < a.size(); ++i) {
          out[a[i]] = b[i];
        }
        continue;
      }
      if (!by_time) {
        continue;
      }
      const auto forward = nearest_ones(mine, theirs, false);
      const auto back = nearest_ones(theirs, mine, true);
      for (size_t i = 0; i < forward.size(); ++i) {
        if (forward[i] && back[*forward[i] - theirs.first] == mine.first + i) {
          out[mine.first + i] = forward[i];
        }
      }
    }
    return out;
  }

 private:
  using Range = std::pair<size_t, size_t>;

  // For each item of a range, the nearest of the other range that fits and is within tolerance.
  // `turned`: the first range is one of the other rank.
  [[nodiscard]] std::vector<std::optional<size_t>> nearest_ones(const Range& from,
                                                                const Range& to,
                                                                bool turned) const {
    std::vector<std::optional<size_t>> out(from.second - from.first);
    const auto distance = [&](size_t i, size_t k) {
      return turned ? -this->distance(k, i) : this->distance(i, k);
    };
    size_t first = to.first;
    for (size_t i = from.first; i < from.second; ++i) {
      while (first < to.second && distance(i, first) < -tolerance_) {
        ++first;
      }
      std::optional<size_t>& nearest = out[i - from.first];
      const size_t last = std::min(to.second, first + kNear);
      for (size_t k = first; k < last && distance(i, k) <= tolerance_; ++k) {
        const bool fits = turned ? fit(reference_[k], other_[i]) : fit(reference_[i], other_[k]);
        if (fits && (!nearest || std::abs(distance(i, k)) < std::abs(distance(i, *nearest)))) {
          nearest = k;
        }
      }
    }
    return out;
  }

  // Positions in the order in which the host called, which is that of all ranks. Threads of one
  // communicator may start in another.
  static std::vector<size_t> by_issue(const UnnumberedList& items, const Range& range) {
    std::vector<size_t> out(range.second - range.first);
    std::iota(out.begin(), out.end(), range.first);
    const auto issued = [&](size_t i) {
      return items[i].collective->issued.value_or(items[i].collective->when.start);
    };
    std::stable_sort(out.begin(), out.end(),
                     [&](size_t x, size_t y) { return issued(x) < issued(y); });
    return out;
  }

  // Whether kinds, sizes and units fit in order, and with no shift by a few. Then times are not
  // needed, which on a CPU differ by more than what is between two collectives.
  [[nodiscard]] bool only_in_order(const std::vector<size_t>& a,
                                   const std::vector<size_t>& b) const {
    const auto all_fit = [&](size_t shift_a, size_t shift_b) {
      for (size_t i = 0; i + std::max(shift_a, shift_b) < a.size(); ++i) {
        if (!fit(reference_[a[i + shift_a]], other_[b[i + shift_b]])) {
          return false;
        }
      }
      return true;
    };
    if (a.size() != b.size() || a.size() < 2 || !all_fit(0, 0)) {
      return false;
    }
    for (size_t shift = 1; shift <= std::min(kShift, a.size() - 1); ++shift) {
      if (all_fit(shift, 0) || all_fit(0, shift)) {
        return false;
      }
    }
    return true;
  }

  [[nodiscard]] Nanoseconds distance(size_t i, size_t j) const {
    return other_[j].collective->when.end - reference_[i].collective->when.end - difference_;
  }

  // The usual time between two neighbours that could be confused.
  void find_spacing() {
    std::vector<Nanoseconds> gaps;
    for (const auto& [mine, theirs] : steps_) {
      for (size_t i = mine.first + 1; i < mine.second; ++i) {
        gaps.push_back(reference_[i].collective->when.end - reference_[i - 1].collective->when.end);
      }
    }
    spacing_ = gaps.empty() ? kAlone : std::max<Nanoseconds>(1, lower_median(gaps));
    tolerance_ = std::max<Nanoseconds>(1, spacing_ / 2);
  }

  // Each pair of equal kind and size at nearly the same place of a step votes for a difference of
  // the clocks. Most right pairs agree within microseconds; the wrong ones scatter as the times
  // between collectives do.
  bool find_difference() {
    constexpr Nanoseconds kWidest = 10'000;
    std::vector<Nanoseconds> votes;
    for (const auto& [mine, theirs] : steps_) {
      const size_t n = mine.second - mine.first, m = theirs.second - theirs.first;
      const size_t around = std::min(kShift + (n > m ? n - m : m - n), 8 * kShift);
      for (size_t i = 0; i < n; ++i) {
        for (size_t j = i > around ? i - around : 0; j < std::min(m, i + around + 1); ++j) {
          const Unnumbered &a = reference_[mine.first + i], &b = other_[theirs.first + j];
          if (fit(a, b)) {
            votes.push_back(b.collective->when.end - a.collective->when.end);
          }
        }
      }
    }
    if (votes.empty()) {
      return false;
    }
    std::sort(votes.begin(), votes.end());
    const Nanoseconds width = std::clamp<Nanoseconds>(spacing_ / 8, 1, kWidest);
    size_t most = 0, first = 0, last = 0;
    const auto middle = [&](size_t from, size_t to) { return votes[from + (to - from) / 2]; };
    for (size_t from = 0, to = 0; from < votes.size(); ++from) {
      for (to = std::max(to, from);
           to + 1 < votes.size() && votes[to + 1] - votes[from] <= width;) {
        ++to;
      }
      const size_t count = to - from + 1;
      // Of equally good ones, the one nearest to what is expected.
      if (count > most || (count == most && std::abs(middle(from, to) - expected_) <
                                                std::abs(middle(first, last) - expected_))) {
        most = count;
        first = from;
        last = to;
      }
    }
    difference_ = middle(first, last);
    return true;
  }

  static constexpr Nanoseconds kAlone = 1'000'000;  // the spacing of a single collective
  static constexpr size_t kNear = 64;               // this many are compared at most
  static constexpr size_t kShift = 4;  // how many events more than the counts show may be lost
  const UnnumberedList& reference_;
  const UnnumberedList& other_;
  Nanoseconds expected_, spacing_ = kAlone, tolerance_ = 1, difference_ = 0;
  std::vector<std::pair<Range, Range>> steps_;
};

}  // namespace

bool fit(const RankCollective& a, const RankCollective& b) {
  return a.kind == b.kind &&
         (a.bytes == b.bytes || a.bytes == 0 || b.bytes == 0 || may_differ_in_size(*a.kind));
}

bool fit(const Unnumbered& a, const Unnumbered& b) {
  const bool units = a.unit && b.unit;
  return fit(*a.collective, *b.collective) &&
         (!units || (*a.unit == *b.unit && a.collective->part == b.collective->part));
}

std::vector<std::optional<size_t>> align_rank(const UnnumberedList& reference,
                                              const UnnumberedList& other,
                                              Nanoseconds expected) {
  return Alignment(reference, other, expected).run();
}

}  // namespace shardlens::analysis
