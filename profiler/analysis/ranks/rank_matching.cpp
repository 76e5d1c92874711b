#include "profiler/analysis/ranks/rank_matching.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "core/base/median.h"
#include "profiler/analysis/figures/bandwidth.h"
#include "profiler/analysis/ranks/collective_matching.h"

namespace shardlens::analysis {
namespace {

// Figures of matched collectives.
class RankFigures {
 public:
  RankFigures(std::vector<RankCollectives>& ranks, const CollectiveMatching& matching)
      : ranks_(ranks), matching_(matching) {}

  Matching run() {
    Matching out;
    if (matching_.collectives.empty()) {
      return out;
    }
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const ClockOffset& clock = matching_.clocks[rank];
      out.clocks.push_back(
          {rank_of(rank), clock.offset, clock.spread, clock.residual, rank_of(clock.island), 0});
      out.stragglers.push_back({rank_of(rank), 0, 0});
    }
    for (const MatchedCollective& parts : matching_.collectives) {
      for (const CollectivePart& p : parts) {
        ++out.clocks[p.rank].collectives;
      }
    }
    measure(out);
    return out;
  }

 private:
  [[nodiscard]] RankCollective& part(const CollectivePart& p) {
    return ranks_[p.rank].rows[p.index];
  }
  [[nodiscard]] int64_t rank_of(size_t position) const { return ranks_[position].rank; }
  [[nodiscard]] Nanoseconds offset(uint32_t rank) const { return matching_.clocks[rank].offset; }

  struct Row {
    std::vector<Nanoseconds> transfers, waits, skews;
    int64_t ranks = 0;
  };

  void measure(Matching& out) {
    std::map<std::tuple<CollectiveKind, std::string, Bytes>, Row> rows;
    for (const MatchedCollective& parts : matching_.collectives) {
      Nanoseconds first = 0, last = 0, but_one = 0, transfer = 0, total = 0;
      CollectivePart latest = parts.front();
      for (size_t i = 0; i < parts.size(); ++i) {
        const RankCollective& c = part(parts[i]);
        const Nanoseconds start = c.when.start - offset(parts[i].rank);
        total += c.when.length();
        transfer = i == 0 ? c.when.length() : std::min(transfer, c.when.length());
        first = i == 0 ? start : std::min(first, start);
        if (i == 0 || start > last) {
          but_one = i == 0 ? start : last;
          last = start;
          latest = parts[i];
        } else {
          but_one = i == 1 ? start : std::max(but_one, start);
        }
      }
      for (const CollectivePart& p : parts) {
        RankCollective& c = part(p);
        c.last_start = last + offset(p.rank);
        c.last_rank = latest.rank;
        c.last_index = latest.index;
        c.transfer = transfer;
      }
      const auto ranks = static_cast<int64_t>(parts.size());
      if (last > but_one) {
        ++out.stragglers[latest.rank].last;
        out.stragglers[latest.rank].held_up += last - but_one;
      }
      Row& row =
          rows[{*part(parts.front()).kind, group_of(parts.front()), part(parts.front()).bytes}];
      row.transfers.push_back(transfer);
      row.waits.push_back(total / ranks - transfer);
      row.skews.push_back(last - first);
      row.ranks =
          std::max(row.ranks, part(parts.front()).ranks > 0 ? part(parts.front()).ranks : ranks);
    }
    std::vector<std::pair<Nanoseconds, MatchedFigures>> sorted;
    for (auto& [key, row] : rows) {
      MatchedFigures f;
      std::tie(f.kind, f.group, f.bytes) = key;
      f.ranks = row.ranks;
      f.count = static_cast<int64_t>(row.transfers.size());
      f.skew_max = *std::max_element(row.skews.begin(), row.skews.end());
      f.transfer_median = lower_median(row.transfers);
      f.wait_median = lower_median(row.waits);
      f.skew_median = lower_median(row.skews);
      f.algbw = gigabytes_per_second(static_cast<double>(f.bytes), f.transfer_median);
      if (const auto factor = bus_factor(f.kind, f.ranks); factor && f.algbw) {
        f.busbw = *f.algbw * *factor;
      }
      sorted.emplace_back(f.transfer_median * f.count, std::move(f));
    }
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    for (auto& [time, figures] : sorted) {
      out.collectives.push_back(std::move(figures));
    }
  }

  [[nodiscard]] const std::string& group_of(const CollectivePart& p) const {
    const RankCollectives& rank = ranks_[p.rank];
    const CollectiveGroup& group = rank.groups[rank.rows[p.index].group];
    return group.description.empty() ? group.name : group.description;
  }

  std::vector<RankCollectives>& ranks_;
  const CollectiveMatching& matching_;
};

}  // namespace

Matching match_ranks(std::vector<RankCollectives>& ranks) {
  if (ranks.size() < 2) {
    return {};
  }
  std::vector<trace::Diagnostic> diagnostics;
  const CollectiveMatching matching = match_collectives(ranks, diagnostics);
  Matching out = RankFigures(ranks, matching).run();
  out.diagnostics = std::move(diagnostics);
  return out;
}

Matching match_ranks(const std::vector<trace::Trace>& traces, std::vector<Timeline>& timelines) {
  if (traces.size() < 2) {
    return {};
  }
  std::vector<RankCollectives> ranks;
  for (size_t i = 0; i < traces.size(); ++i) {
    ranks.push_back(rank_collectives(traces[i], timelines[i], static_cast<int64_t>(i)));
  }
  Matching out = match_ranks(ranks);
  for (size_t i = 0; i < traces.size(); ++i) {
    copy_matches(ranks[i], timelines[i]);
  }
  return out;
}

void copy_matches(const RankCollectives& from, Timeline& to) {
  for (size_t i = 0; i < from.rows.size(); ++i) {
    const RankCollective& row = from.rows[i];
    Collective& c = to.collectives[i];
    c.last_start = row.last_start;
    c.last_rank = row.last_rank;
    c.last_index = row.last_index;
    c.transfer = row.transfer;
  }
}

}  // namespace shardlens::analysis
