#include "profiler/analysis/ranks/collective_matching.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "profiler/analysis/ranks/rank_alignment.h"

namespace shardlens::analysis {
namespace {

using trace::Severity;

class Matcher {
 public:
  Matcher(const std::vector<RankCollectives>& ranks, std::vector<trace::Diagnostic>& diagnostics)
      : ranks_(ranks), diagnostics_(diagnostics) {}

  CollectiveMatching run() {
    by_id_ = std::ranges::all_of(ranks_, has_ids);
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      add_rank(rank);
    }
    match_numbered();
    solve();
    for (const Group& group : groups_) {
      align(group);
    }
    solve();
    const size_t aligned = out_.collectives.size();
    std::vector<std::vector<bool>> matched(ranks_.size());
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      matched[rank].resize(ranks_[rank].rows.size());
    }
    for (const MatchedCollective& parts : out_.collectives) {
      for (const CollectivePart& p : parts) {
        matched[p.rank][p.index] = true;
      }
    }
    for (const Group& group : groups_) {
      match_leftovers(group, matched);
    }
    if (out_.collectives.size() > aligned) {
      solve();
    }
    for (const Group& group : groups_) {
      match_in_order(group);
    }
    drop_impossible();
    const auto parts = std::accumulate(
        out_.collectives.begin(), out_.collectives.end(), int64_t{0},
        [](int64_t sum, const auto& c) { return sum + static_cast<int64_t>(c.size()); });
    if (all_ > parts + said_) {
      trace::add_diagnostic(
          diagnostics_, Severity::kNote,
          "collectives without a counterpart in the other traces were not matched",
          all_ - parts - said_);
    }
    return std::move(out_);
  }

 private:
  struct Group {
    std::string name;
    std::map<uint32_t, UnnumberedList> ranks;  // its collectives without numbers
  };
  struct Numbered {
    uint32_t group;
    int64_t number;
    int64_t occurrence;  // among those of the rank with one number (coalesced calls)
    CollectivePart part;
    [[nodiscard]] auto key() const { return std::tie(group, number, occurrence); }
  };

  [[nodiscard]] const RankCollective& part(const CollectivePart& p) const {
    return ranks_[p.rank].rows[p.index];
  }
  [[nodiscard]] int64_t rank_of(uint32_t position) const { return ranks_[position].rank; }

  // Whether each of its numbered collectives has an identifier.
  static bool has_ids(const RankCollectives& rank) {
    return std::ranges::all_of(rank.rows, [](const RankCollective& c) {
      return c.comms_id != 0 || c.sequence < 0 || c.emulated;
    });
  }

  void add_rank(uint32_t rank) {
    const RankCollectives& own = ranks_[rank];
    std::vector<std::optional<uint32_t>> known(own.groups.size());
    std::vector<Numbered> numbered;
    for (uint32_t i = 0; i < own.rows.size(); ++i) {
      const RankCollective& c = own.rows[i];
      // An emulated collective does not wait for other ranks.
      if (!c.kind || c.emulated) {
        continue;
      }
      const bool sends = c.kind == CollectiveKind::kSendRecv;
      all_ += sends ? 0 : 1;
      uint32_t group = 0;
      if (const CollectiveGroup& named = own.groups[c.group]; named.name.empty()) {
        group = group_id(fmt::format("({} without a group)", name_of(*c.kind)));
      } else {
        if (!known[c.group]) {
          known[c.group] = group_id(fmt::format("{} {}", named.name, named.ranks));
        }
        group = *known[c.group];
      }
      if (by_id_ && c.comms_id != 0 && !sends) {
        numbered.push_back({group_id("by Comms Id"), c.comms_id, 0, {rank, i}});
      } else if (c.sequence >= 0 && !sends) {
        numbered.push_back({group, c.sequence, 0, {rank, i}});
      } else {
        groups_[group].ranks[rank].push_back(
            {c.step, i, &c,
             c.unit != kNoUnit ? std::optional<std::string_view>(own.units[c.unit])
                               : std::nullopt});
      }
    }
    std::stable_sort(numbered.begin(), numbered.end(), [](const Numbered& a, const Numbered& b) {
      return std::tie(a.group, a.number) < std::tie(b.group, b.number);
    });
    for (size_t i = 1; i < numbered.size(); ++i) {
      const Numbered& before = numbered[i - 1];
      const bool same = before.group == numbered[i].group && before.number == numbered[i].number;
      numbered[i].occurrence = same ? before.occurrence + 1 : 0;
    }
    numbered_.insert(numbered_.end(), numbered.begin(), numbered.end());
  }

  uint32_t group_id(std::string name) {
    const auto [it, fresh] = ids_.try_emplace(name, static_cast<uint32_t>(groups_.size()));
    if (fresh) {
      groups_.push_back({std::move(name), {}});
    }
    return it->second;
  }

  void match_numbered() {
    std::stable_sort(numbered_.begin(), numbered_.end(),
                     [](const Numbered& a, const Numbered& b) { return a.key() < b.key(); });
    for (size_t from = 0, to = 0; from < numbered_.size(); from = to) {
      MatchedCollective parts;
      for (to = from; to < numbered_.size() && numbered_[to].key() == numbered_[from].key(); ++to) {
        parts.push_back(numbered_[to].part);
      }
      if (parts.size() < 2) {
        continue;
      }
      const RankCollective& first = part(parts.front());
      const auto differs = std::find_if(parts.begin(), parts.end(), [&](const CollectivePart& p) {
        return !fit(part(p), first);
      });
      if (differs == parts.end()) {
        out_.collectives.push_back(std::move(parts));
        continue;
      }
      const RankCollective& other = part(*differs);
      said_ += static_cast<int64_t>(parts.size());
      trace::add_diagnostic(
          diagnostics_, Severity::kWarning,
          fmt::format("collective {} of process group {}: {} of {} bytes on rank {}, {} of {} "
                      "bytes on rank {}; not matched",
                      numbered_[from].number, groups_[numbered_[from].group].name,
                      name_of(*first.kind), first.bytes, rank_of(parts.front().rank),
                      name_of(*other.kind), other.bytes, rank_of(differs->rank)));
    }
  }

  static UnnumberedList chosen(const UnnumberedList& items, bool together) {
    UnnumberedList out;
    std::copy_if(items.begin(), items.end(), std::back_inserter(out), [&](const Unnumbered& item) {
      return ends_together(*item.collective->kind) == together;
    });
    return out;
  }

  void align(const Group& group) {
    std::map<uint32_t, UnnumberedList> items;
    for (const auto& [rank, all] : group.ranks) {
      if (UnnumberedList some = chosen(all, true); !some.empty()) {
        items.emplace(rank, std::move(some));
      }
    }
    if (items.size() < 2) {
      return;
    }
    const auto& [reference, most] = *std::max_element(
        items.begin(), items.end(),
        [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
    std::vector<MatchedCollective> found(most.size());
    for (size_t i = 0; i < most.size(); ++i) {
      found[i].push_back({reference, most[i].index});
    }
    for (const auto& [rank, theirs] : items) {
      if (rank == reference) {
        continue;
      }
      const ClockOffset &here = out_.clocks[reference], &there = out_.clocks[rank];
      const Nanoseconds expected =
          here.island == there.island ? there.offset - here.offset : Nanoseconds{0};
      const auto places = align_rank(most, theirs, expected);
      for (size_t i = 0; i < places.size(); ++i) {
        if (places[i]) {
          found[i].push_back({rank, theirs[*places[i]].index});
        }
      }
    }
    for (MatchedCollective& each : found) {
      if (each.size() > 1) {
        std::sort(each.begin(), each.end(),
                  [](const auto& a, const auto& b) { return a.rank < b.rank; });
        out_.collectives.push_back(std::move(each));
      }
    }
  }

  // Matches what the rank with most collectives has lost: parts of other ranks that, by the clocks,
  // ended at one time.
  void match_leftovers(const Group& group, const std::vector<std::vector<bool>>& matched) {
    struct Leftover {
      Nanoseconds end;  // by the common clock
      uint32_t rank;
      const Unnumbered* item;
    };
    std::vector<Leftover> left;
    for (const auto& [rank, all] : group.ranks) {
      for (const Unnumbered& item : all) {
        if (ends_together(*item.collective->kind) && !matched[rank][item.index]) {
          left.push_back({item.collective->when.end - out_.clocks[rank].offset, rank, &item});
        }
      }
    }
    std::stable_sort(left.begin(), left.end(),
                     [](const Leftover& a, const Leftover& b) { return a.end < b.end; });
    std::vector<bool> used(left.size());
    for (size_t i = 0; i < left.size(); ++i) {
      if (used[i]) {
        continue;
      }
      MatchedCollective parts{{left[i].rank, left[i].item->index}};
      const size_t last = std::min(left.size(), i + kNear);
      for (size_t k = i + 1; k < last && left[k].end - left[i].end <= kSlack; ++k) {
        const bool other = std::none_of(parts.begin(), parts.end(), [&](const CollectivePart& p) {
          return p.rank == left[k].rank;
        });
        if (!used[k] && other && left[k].item->step == left[i].item->step &&
            same_island(left[k].rank, left[i].rank) && fit(*left[i].item, *left[k].item)) {
          parts.push_back({left[k].rank, left[k].item->index});
          used[k] = true;
        }
      }
      if (parts.size() > 1) {
        std::sort(parts.begin(), parts.end(),
                  [](const auto& a, const auto& b) { return a.rank < b.rank; });
        out_.collectives.push_back(std::move(parts));
      }
    }
  }

  [[nodiscard]] bool same_island(uint32_t a, uint32_t b) const {
    return out_.clocks[a].island == out_.clocks[b].island;
  }

  // The n-th of each step and kind on all ranks that have the group.
  void match_in_order(const Group& group) {
    std::map<std::pair<int64_t, CollectiveKind>, std::map<uint32_t, std::vector<uint32_t>>> places;
    for (const auto& [rank, all] : group.ranks) {
      for (const Unnumbered& item : chosen(all, false)) {
        places[{item.step, *item.collective->kind}][rank].push_back(item.index);
      }
    }
    for (const auto& [place, ranks] : places) {
      const size_t count = ranks.begin()->second.size();
      const bool equal = std::all_of(ranks.begin(), ranks.end(),
                                     [&](const auto& each) { return each.second.size() == count; });
      if (!equal || ranks.size() < 2) {
        continue;
      }
      std::vector<MatchedCollective> found;
      bool together = true;
      for (size_t i = 0; i < count && together; ++i) {
        MatchedCollective& parts = found.emplace_back();
        for (const auto& [rank, indices] : ranks) {
          parts.push_back({rank, indices[i]});
          together = together && fit(part(parts.back()), part(parts.front()));
        }
        together = together && (place.second == CollectiveKind::kBroadcast || ran_together(parts));
      }
      // Sends have one partner each; they are one all-to-all only if all ranks ran them together.
      const bool sends = place.second == CollectiveKind::kSendRecv;
      if (together && (!sends || (ranks.size() == ranks_.size() && ranks.size() > 2))) {
        std::move(found.begin(), found.end(), std::back_inserter(out_.collectives));
        all_ += sends ? static_cast<int64_t>(count * ranks.size()) : 0;
      }
    }
  }

  // Uneven all-to-alls end at different times on their ranks, so all-to-alls count only where
  // nothing else connects two ranks, and only those in which all ranks have messages of one size.
  void solve() {
    std::vector<SeenCollective> seen;
    for (const MatchedCollective& parts : out_.collectives) {
      if (ends_together(*part(parts.front()).kind)) {
        seen.push_back(seen_parts(parts));
      }
    }
    out_.clocks = solve_clocks(ranks_.size(), seen);
    const size_t certain = seen.size();
    for (const MatchedCollective& parts : out_.collectives) {
      if (*part(parts.front()).kind == CollectiveKind::kAllToAll && connects(parts) &&
          is_even(parts)) {
        seen.push_back(seen_parts(parts));
      }
    }
    if (seen.size() > certain) {
      out_.clocks = solve_clocks(ranks_.size(), seen);
    }
  }

  [[nodiscard]] SeenCollective seen_parts(const MatchedCollective& parts) const {
    SeenCollective seen;
    for (const CollectivePart& p : parts) {
      seen.push_back({p.rank, part(p).when});
    }
    return seen;
  }

  [[nodiscard]] bool connects(const MatchedCollective& parts) const {
    const uint32_t island = out_.clocks[parts.front().rank].island;
    return std::any_of(parts.begin(), parts.end(), [&](const CollectivePart& p) {
      return out_.clocks[p.rank].island != island;
    });
  }

  [[nodiscard]] bool is_even(const MatchedCollective& parts) const {
    const auto sizes = [&](const CollectivePart& p) {
      return std::pair(part(p).sent, part(p).received);
    };
    const auto first = sizes(parts.front());
    return first.first == first.second &&
           std::all_of(parts.begin(), parts.end(),
                       [&](const CollectivePart& p) { return sizes(p) == first; });
  }

  // Whether all parts ran at one instant by the solved clocks. A rank leaves a broadcast or an
  // all-to-all when its own data is there, so only the others are this strict.
  [[nodiscard]] bool ran_together(const MatchedCollective& parts) const {
    Nanoseconds last_start = 0, first_end = 0, slack = kSlack;
    for (size_t i = 0; i < parts.size(); ++i) {
      const ClockOffset& clock = out_.clocks[parts[i].rank];
      if (clock.island != out_.clocks[parts.front().rank].island) {
        return true;  // not known
      }
      const Interval& when = part(parts[i]).when;
      last_start =
          i == 0 ? when.start - clock.offset : std::max(last_start, when.start - clock.offset);
      first_end = i == 0 ? when.end - clock.offset : std::min(first_end, when.end - clock.offset);
      slack = std::max(slack, 4 * (clock.spread + clock.residual));
    }
    return last_start <= first_end + slack;
  }

  void drop_impossible() {
    int64_t dropped = 0;
    std::erase_if(out_.collectives, [&](const MatchedCollective& parts) {
      const CollectiveKind kind = *part(parts.front()).kind;
      const bool wrong = kind != CollectiveKind::kBroadcast && !ran_together(parts);
      dropped += wrong ? static_cast<int64_t>(parts.size()) : 0;
      return wrong;
    });
    if (dropped > 0) {
      said_ += dropped;
      trace::add_diagnostic(diagnostics_, Severity::kNote,
                            "collectives whose parts did not run at the same time by the clocks of "
                            "the others were not matched",
                            dropped);
      solve();
    }
  }

  static constexpr Nanoseconds kSlack = 20'000;  // by which ends on one clock may differ
  static constexpr size_t kNear = 64;            // this many are compared at most
  const std::vector<RankCollectives>& ranks_;
  std::vector<trace::Diagnostic>& diagnostics_;
  std::vector<Numbered> numbered_;
  std::vector<Group> groups_;
  std::map<std::string, uint32_t> ids_;  // of groups_, by name
  CollectiveMatching out_;
  bool by_id_ = false;          // all ranks have identifiers
  int64_t all_ = 0, said_ = 0;  // parts; of these, named in a diagnostic of their own
};

}  // namespace

bool ends_together(CollectiveKind kind) {
  return kind != CollectiveKind::kSendRecv && kind != CollectiveKind::kBroadcast &&
         kind != CollectiveKind::kAllToAll;
}

CollectiveMatching match_collectives(const std::vector<RankCollectives>& ranks,
                                     std::vector<trace::Diagnostic>& diagnostics) {
  return Matcher(ranks, diagnostics).run();
}

}  // namespace shardlens::analysis
