#include "profiler/analysis/ranks/rank_matching.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "profiler/analysis/overlap/bandwidth.h"

namespace shardlens::analysis {
namespace {

using trace::Severity;
using trace::Trace;

// One rank's part in a collective.
struct Part {
  uint32_t rank;   // position in the run
  uint32_t index;  // into the rank's Timeline::collectives
};

// The key that the parts of one collective share on all ranks: process group, sequence number
// within it, and an index among those with the same number (coalesced calls share one).
using Key = std::tuple<std::string, int64_t, int64_t>;

template <typename T>
T lower_median(std::vector<T>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Whether all ranks end such a collective at about the same time.
bool ends_together(CollectiveKind kind) {
  return kind != CollectiveKind::kSendRecv && kind != CollectiveKind::kBroadcast;
}

class Matcher {
 public:
  Matcher(const std::vector<Trace>& traces,
          std::vector<Timeline>& timelines,
          std::vector<trace::Diagnostic>& diagnostics)
      : traces_(traces), timelines_(timelines), diagnostics_(diagnostics) {}

  Matching run() {
    Matching out;
    for (uint32_t rank = 0; rank < traces_.size(); ++rank) {
      add_rank(rank);
    }
    drop_what_differs();
    if (matched_.empty()) {
      return out;
    }
    out.clocks = align_clocks();
    out.stragglers.resize(traces_.size());
    for (size_t rank = 0; rank < traces_.size(); ++rank) {
      out.stragglers[rank].rank = rank_of(rank);
    }
    measure(out);
    return out;
  }

 private:
  [[nodiscard]] const Collective& part(const Part& p) const {
    return timelines_[p.rank].collectives[p.index];
  }
  [[nodiscard]] Collective& part(const Part& p) { return timelines_[p.rank].collectives[p.index]; }
  [[nodiscard]] int64_t rank_of(size_t position) const {
    return traces_[position].metadata.rank.value_or(static_cast<int64_t>(position));
  }
  [[nodiscard]] Nanoseconds offset(uint32_t rank) const { return offsets_[rank]; }

  void add_rank(uint32_t rank) {
    const Trace& trace = traces_[rank];
    std::map<std::string, int64_t> counts;  // number of collectives without a sequence number
    // Number of those with the same sequence number.
    std::map<std::pair<std::string, int64_t>, int64_t> shared;
    for (uint32_t i = 0; i < timelines_[rank].collectives.size(); ++i) {
      const Collective& c = timelines_[rank].collectives[i];
      const trace::CollectiveArgs* args =
          c.args == trace::kNoIndex ? nullptr : &trace.collectives[c.args];
      // An emulated collective does not wait for other ranks; a send has one partner, which is not
      // in the trace.
      if (!c.kind || c.kind == CollectiveKind::kSendRecv || (args != nullptr && args->emulated)) {
        continue;
      }
      std::string group;
      if (args != nullptr && args->group != trace::kEmptyString) {
        group = fmt::format("{} {}", trace.strings.view(args->group),
                            trace.strings.view(args->group_ranks));
      } else {
        group = fmt::format("({} without a group)", name_of(*c.kind));
      }
      const bool numbered = args != nullptr && args->sequence >= 0;
      const int64_t number = numbered ? args->sequence : counts[group]++;
      const int64_t occurrence = numbered ? shared[{group, number}]++ : 0;
      groups_[{group, number, occurrence}].push_back({rank, i});
    }
  }

  // Ranks that were recorded for longer have more collectives. The parts with one key must have the
  // same kind and size.
  void drop_what_differs() {
    // Groups without sequence numbers whose ranks differ from some point on.
    std::map<std::string, bool> off;
    int64_t alone = 0;
    for (auto& [key, parts] : groups_) {
      const auto& [group, number, occurrence] = key;
      if (parts.size() < 2) {
        ++alone;
        continue;
      }
      const Collective& first = part(parts.front());
      const auto differs = std::find_if(parts.begin(), parts.end(), [&](const Part& p) {
        return part(p).kind != first.kind || (part(p).bytes != first.bytes && part(p).bytes > 0 &&
                                              first.bytes > 0 && !may_differ_in_size(*first.kind));
      });
      const trace::CollectiveArgs* args =
          first.args == trace::kNoIndex ? nullptr
                                        : &traces_[parts.front().rank].collectives[first.args];
      const bool numbered = args != nullptr && args->sequence >= 0;
      if (differs != parts.end() && !off[group]) {
        const Collective& other = part(*differs);
        trace::add_diagnostic(
            diagnostics_, Severity::kWarning,
            fmt::format("collective {} of process group {}: {} of {} bytes on rank {}, {} of {} "
                        "bytes on rank {}; not matched{}",
                        number, group, name_of(*first.kind), first.bytes,
                        rank_of(parts.front().rank), name_of(*other.kind), other.bytes,
                        rank_of(differs->rank), numbered ? "" : " from there on"));
        off[group] = !numbered;
        continue;
      }
      if (!off[group]) {
        matched_.push_back(std::move(parts));
      }
    }
    if (alone > 0 && traces_.size() > 1) {
      trace::add_diagnostic(diagnostics_, Severity::kNote,
                            "collectives that only one of the traces has were not matched", alone);
    }
  }

  static bool may_differ_in_size(CollectiveKind kind) {
    return kind == CollectiveKind::kAllToAll;  // split sizes are chosen by each rank
  }

  // Computes clock offsets and common end times alternately, each as a median based on the other.
  // With one group the first round gives the result; with several groups that share ranks a few
  // rounds converge.
  std::vector<ClockFigures> align_clocks() {
    constexpr int kRounds = 8;
    offsets_.assign(traces_.size(), 0);
    std::vector<std::vector<Nanoseconds>> late(traces_.size());
    for (int round = 0; round < kRounds; ++round) {
      for (auto& each : late) {
        each.clear();
      }
      std::vector<Nanoseconds> ends;
      for (const std::vector<Part>& parts : matched_) {
        if (!ends_together(*part(parts.front()).kind)) {
          continue;
        }
        ends.clear();
        for (const Part& p : parts) {
          ends.push_back(part(p).when.end - offset(p.rank));
        }
        const Nanoseconds end = lower_median(ends);
        for (const Part& p : parts) {
          late[p.rank].push_back(part(p).when.end - end);
        }
      }
      std::vector<Nanoseconds> next(traces_.size());
      for (size_t rank = 0; rank < late.size(); ++rank) {
        next[rank] = late[rank].empty() ? 0 : lower_median(late[rank]);
      }
      if (next == offsets_) {
        break;
      }
      offsets_ = std::move(next);
    }
    std::vector<ClockFigures> clocks;
    for (size_t rank = 0; rank < late.size(); ++rank) {
      ClockFigures& clock = clocks.emplace_back();
      clock.rank = rank_of(rank);
      clock.offset = offsets_[rank];
      for (Nanoseconds& each : late[rank]) {
        each = std::abs(each - clock.offset);
      }
      clock.spread = late[rank].empty() ? 0 : lower_median(late[rank]);
    }
    for (const std::vector<Part>& parts : matched_) {
      for (const Part& p : parts) {
        ++clocks[p.rank].collectives;
      }
    }
    return clocks;
  }

  struct Row {
    std::vector<Nanoseconds> transfers, waits, skews;
    int64_t ranks = 0;
  };

  void measure(Matching& out) {
    std::map<std::tuple<CollectiveKind, std::string, Bytes>, Row> rows;
    for (const std::vector<Part>& parts : matched_) {
      Nanoseconds first = 0, last = 0, but_one = 0, transfer = 0, total = 0;
      Part latest = parts.front();
      for (size_t i = 0; i < parts.size(); ++i) {
        const Collective& c = part(parts[i]);
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
      for (const Part& p : parts) {
        Collective& c = part(p);
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

  [[nodiscard]] std::string group_of(const Part& p) const {
    const uint32_t args = part(p).args;
    if (args == trace::kNoIndex) {
      return "";
    }
    const Trace& trace = traces_[p.rank];
    const trace::CollectiveArgs& a = trace.collectives[args];
    return std::string(trace.strings.view(
        a.group_description != trace::kEmptyString ? a.group_description : a.group));
  }

  const std::vector<Trace>& traces_;
  std::vector<Timeline>& timelines_;
  std::vector<trace::Diagnostic>& diagnostics_;
  std::map<Key, std::vector<Part>> groups_;
  std::vector<std::vector<Part>> matched_;
  std::vector<Nanoseconds> offsets_;  // by position in the run
};

}  // namespace

Matching match_ranks(const std::vector<Trace>& traces,
                     std::vector<Timeline>& timelines,
                     std::vector<trace::Diagnostic>& diagnostics) {
  return traces.size() < 2 ? Matching() : Matcher(traces, timelines, diagnostics).run();
}

}  // namespace shardlens::analysis
