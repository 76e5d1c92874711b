#include "profiler/analysis/critical_path/path_walk.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "profiler/analysis/figures/exposed_time.h"
#include "profiler/analysis/figures/window_figures.h"

namespace shardlens::analysis {
namespace {

using trace::kNoIndex;

Bound bound_of(Nature nature) {
  return nature == Nature::kCompute         ? Bound::kCompute
         : nature == Nature::kCommunication ? Bound::kCommunication
                                            : Bound::kCopy;
}

// Walks back over device events. Positions are in the current rank's Timeline::device_events.
class DeviceWalk {
 public:
  DeviceWalk(const std::vector<PathRank>& ranks,
             const std::vector<PathLinks>& links,
             PathSpent& path)
      : ranks_(ranks), links_(links), path_(path) {}

  void run() {
    std::optional<size_t> next = last_event();
    while (next && !path_.done()) {
      next = before(*next);
    }
    path_.spend(Bound::kIdle, path_.start());
  }

 private:
  [[nodiscard]] const PathRank& rank() const { return ranks_[path_.rank()]; }
  [[nodiscard]] const Timeline& timeline() const { return rank().timeline; }
  [[nodiscard]] const Dependencies& dependencies() const { return rank().dependencies; }
  [[nodiscard]] const DeviceEvent& event(size_t i) const { return timeline().device_events[i]; }
  // On the clock of the path.
  [[nodiscard]] Nanoseconds start(size_t i) const { return event(i).when.start + path_.shift(); }
  [[nodiscard]] Nanoseconds end(size_t i) const { return event(i).when.end + path_.shift(); }

  // Where the walk begins. A step ends where the next step's first event could start; so if there
  // is such an event, the walk begins with the reason for its start, otherwise with the event that
  // ends last.
  std::optional<size_t> last_event() {
    const auto& events = timeline().device_events;
    const Nanoseconds step_end = path_.at();
    const auto begin =
        std::partition_point(events.begin(), events.end(),
                             [&](const DeviceEvent& e) { return e.when.start < step_end; });
    std::optional<size_t> last;
    for (auto i = static_cast<size_t>(begin - events.begin()); i-- > 0;) {
      if (end(i) <= path_.start() && last) {
        break;
      }
      if (!last || std::min(end(i), step_end) > std::min(end(*last), step_end)) {
        last = i;
      }
      if (end(i) >= step_end) {
        break;
      }
    }
    const auto next = static_cast<size_t>(begin - events.begin());
    if (begin != events.end() && start(next) == step_end && (!last || end(*last) < step_end)) {
      return reason(next);
    }
    return last;
  }

  // Adds event `i` to the path; returns the event that it had to wait for.
  std::optional<size_t> before(size_t i) {
    if (end(i) < path_.at()) {
      path_.spend(Bound::kIdle, end(i));
    }
    if (const uint32_t known = links_[path_.rank()].collective_of[i]; known != kNoIndex) {
      if (const auto there = path_.cross(timeline().collectives[known], event(i).when.start)) {
        return reason(links_[path_.rank()].device_of[*there]);
      }
    }
    path_.spend(bound_of(event(i).nature), start(i), event(i).event);
    return reason(i);
  }

  // Extends the path to the latest of what event `i` waited for: the previous event of its stream,
  // an event of another stream or of its CUDA graph, or its launch. nullopt: the path leaves the
  // step, or the trace contains no reason.
  std::optional<size_t> reason(size_t i) {
    const uint32_t stream = dependencies().before_in_stream(i),
                   source = dependencies().waited_for(i);
    uint32_t device = stream;
    if (source != Dependencies::kNone && start(source) < start(i) &&
        (device == Dependencies::kNone || end(source) > end(device))) {
      device = source;
    }
    const uint32_t inside = links_[path_.rank()].graph_source[i];
    if (inside != kNoIndex && (device == Dependencies::kNone || end(inside) > end(device))) {
      device = inside;
    }
    const uint32_t launch = event(i).launch;
    if (launch != kNoIndex) {
      const Nanoseconds called = std::min(event(i).launched + path_.shift(), path_.at());
      if (device == Dependencies::kNone || end(device) <= called) {
        path_.spend(Bound::kLaunch, called, launch);
        return host();
      }
    }
    if (device == Dependencies::kNone) {
      return std::nullopt;
    }
    // Events of one stream may overlap: then the earlier event is on the path until this one
    // begins.
    path_.spend(Bound::kIdle, std::min(end(device), path_.at()));
    return device;
  }

  // Adds the host's own time, back to where it last waited for the device.
  std::optional<size_t> host() {
    const auto& waits = dependencies().host_waits();
    auto it = std::upper_bound(
        waits.begin(), waits.end(), path_.at() - path_.shift(),
        [](Nanoseconds t, const Dependencies::HostWait& w) { return t < w.when.end; });
    while (it != waits.begin()) {
      --it;
      if (it->when.end + path_.shift() <= path_.start()) {
        break;
      }
      if (it->until != Dependencies::kNone && end(it->until) < path_.at()) {
        path_.spend(Bound::kHost, end(it->until));
        return it->until;
      }
    }
    path_.spend(Bound::kHost, path_.start());
    return std::nullopt;
  }

  const std::vector<PathRank>& ranks_;
  const std::vector<PathLinks>& links_;
  PathSpent& path_;
};

// Walks back over the host's time: compute, copy, waiting for communication, or other work.
class HostWalk {
 public:
  HostWalk(const std::vector<PathRank>& ranks, const std::vector<PathLinks>& links, PathSpent& path)
      : ranks_(ranks), links_(links), path_(path) {}

  void run() {
    while (!path_.done()) {
      const auto& pieces = links_[path_.rank()].pieces;
      const Nanoseconds shift = path_.shift();
      const auto after = std::partition_point(
          pieces.begin(), pieces.end(),
          [&](const PathLinks::Piece& p) { return p.when.start + shift < path_.at(); });
      if (after == pieces.begin()) {
        break;
      }
      const PathLinks::Piece& piece = *std::prev(after);
      path_.spend(Bound::kHost, std::min(piece.when.end + shift, path_.at()));
      if (piece.collective == kNoIndex) {
        path_.spend(piece.bound, piece.when.start + shift);
        continue;
      }
      const Collective& c = ranks_[path_.rank()].timeline.collectives[piece.collective];
      if (const auto there = path_.cross(c, piece.when.start)) {
        arrive(*there);
      } else {
        path_.spend(piece.bound, piece.when.start + shift, c.event);
      }
    }
    path_.spend(Bound::kHost, path_.start());
  }

 private:
  // Why collective `i` of the current rank did not begin earlier: it was queued behind others of
  // its communicator, or the host had not issued it yet. In the latter case the walk continues on
  // the host.
  void arrive(uint32_t i) {
    while (!path_.done()) {
      const auto& collectives = ranks_[path_.rank()].timeline.collectives;
      const uint32_t earlier = links_[path_.rank()].earlier[i];
      const Nanoseconds issued = collectives[i].issued.value_or(collectives[i].when.start);
      if (earlier == kNoIndex || collectives[earlier].when.end <= issued) {
        path_.spend(Bound::kLaunch, issued + path_.shift(), collectives[i].event);
        return;
      }
      const Collective& queued_behind = collectives[earlier];
      path_.spend(Bound::kIdle, queued_behind.when.end + path_.shift());
      if (const auto there = path_.cross(queued_behind, queued_behind.when.start)) {
        i = *there;
      } else {
        path_.spend(Bound::kCommunication, queued_behind.when.start + path_.shift(),
                    queued_behind.event);
        i = earlier;
      }
    }
  }

  const std::vector<PathRank>& ranks_;
  const std::vector<PathLinks>& links_;
  PathSpent& path_;
};

}  // namespace

void PathSpent::spend(Bound bound, Nanoseconds from, uint32_t event) {
  from = std::max(from, start_);
  if (from >= at_) {
    return;
  }
  out_.segments.push_back({{from, at_}, bound, rank_, event});
  out_.lengths[static_cast<size_t>(bound)] += at_ - from;
  at_ = from;
}

std::optional<uint32_t> PathSpent::cross(const Collective& c, Nanoseconds since) {
  // Strictly before at(), so that the walk always makes progress.
  if (!c.last_start || c.last_rank == rank_ || *c.last_start <= since ||
      *c.last_start + shift() >= at_ ||
      ranks_[c.last_rank].timeline.device != ranks_[rank_].timeline.device) {
    return std::nullopt;
  }
  spend(Bound::kCommunication, *c.last_start + shift(), c.event);
  rank_ = c.last_rank;
  return c.last_index;
}

namespace {

// [Note: Inside a graph] The events of a CUDA graph have one launch, and the trace has no rows for
// the graph's edges between streams. So an event that did not start right after the event before it
// in its stream is taken to have waited for the event of its graph that ended last before it.
constexpr Nanoseconds kGraphHandOver = 3'000;

std::vector<uint32_t> graph_sources(const PathRank& rank) {
  const auto& events = rank.timeline.device_events;
  std::vector<uint32_t> sources(events.size(), kNoIndex);
  std::unordered_map<uint32_t, std::vector<uint32_t>> graphs;  // by launch, if it has several
  std::vector<uint32_t> first(rank.trace.events.size(), kNoIndex);
  for (uint32_t i = 0; i < events.size(); ++i) {
    if (events[i].launch == kNoIndex) {
      continue;
    }
    uint32_t& known = first[events[i].launch];
    if (known == kNoIndex) {
      known = i;
      continue;
    }
    std::vector<uint32_t>& graph = graphs[events[i].launch];
    if (graph.empty()) {
      graph.push_back(known);
    }
    graph.push_back(i);
  }
  for (const auto& [launch, graph] : graphs) {  // each by start
    std::vector<uint32_t> by_end = graph;
    std::stable_sort(by_end.begin(), by_end.end(), [&](uint32_t a, uint32_t b) {
      return events[a].when.end < events[b].when.end;
    });
    uint32_t latest = kNoIndex;
    auto ended = by_end.begin();
    for (const uint32_t i : graph) {
      for (; ended != by_end.end() && events[*ended].when.end <= events[i].when.start; ++ended) {
        // Not those without length: two of them could have waited for each other.
        latest = events[*ended].when.length() > 0 ? *ended : latest;
      }
      const uint32_t before = rank.dependencies.before_in_stream(i);
      const bool right_after = before != kNoIndex && events[before].launch == launch &&
                               events[i].when.start - events[before].when.end <= kGraphHandOver;
      sources[i] = right_after ? kNoIndex : latest;
    }
  }
  return sources;
}

}  // namespace

PathLinks device_links(const PathRank& rank) {
  PathLinks links;
  const auto& events = rank.timeline.device_events;
  const auto& collectives = rank.timeline.collectives;
  links.graph_source = graph_sources(rank);
  links.collective_of.assign(events.size(), kNoIndex);
  links.device_of.assign(collectives.size(), kNoIndex);
  std::unordered_map<uint32_t, uint32_t> by_event;
  for (uint32_t i = 0; i < collectives.size(); ++i) {
    by_event.emplace(collectives[i].event, i);
  }
  for (uint32_t i = 0; i < events.size(); ++i) {
    if (const auto found = by_event.find(events[i].event); found != by_event.end()) {
      links.collective_of[i] = found->second;
      links.device_of[found->second] = i;
    }
  }
  return links;
}

PathLinks host_links(const PathRank& rank) {
  const Timeline& timeline = rank.timeline;
  PathLinks links;
  const auto add = [&](const IntervalSet& set, Bound bound, uint32_t collective) {
    for (const Interval& each : set) {
      links.pieces.push_back({each, bound, collective});
    }
  };
  add(timeline.compute, Bound::kCompute, kNoIndex);
  add(subtract(timeline.copy, unite(timeline.compute, timeline.communication)), Bound::kCopy,
      kNoIndex);
  const Partition partition(timeline);
  std::unordered_map<uint32_t, uint32_t> last;  // by track
  links.earlier.assign(timeline.collectives.size(), kNoIndex);
  for (uint32_t i = 0; i < timeline.collectives.size(); ++i) {
    add(partition.exposed(i), Bound::kCommunication, i);
    const auto [before, fresh] = last.try_emplace(timeline.collectives[i].track, i);
    if (!fresh) {
      links.earlier[i] = std::exchange(before->second, i);
    }
  }
  std::sort(links.pieces.begin(), links.pieces.end(),
            [](const PathLinks::Piece& a, const PathLinks::Piece& b) {
              return a.when.start < b.when.start;
            });
  return links;
}

void walk_device(const std::vector<PathRank>& ranks,
                 const std::vector<PathLinks>& links,
                 PathSpent& path) {
  DeviceWalk(ranks, links, path).run();
}

void walk_host(const std::vector<PathRank>& ranks,
               const std::vector<PathLinks>& links,
               PathSpent& path) {
  HostWalk(ranks, links, path).run();
}

}  // namespace shardlens::analysis
