#include "profiler/analysis/figures/stream_figures.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include <fmt/format.h>

namespace shardlens::analysis {
namespace {

using trace::Trace;

std::string stream_name(const Trace& trace, uint32_t track, bool device) {
  const trace::Track& t = trace.tracks[track];
  if (t.name != trace::kEmptyString) {
    return std::string(trace.strings.view(t.name));
  }
  return device ? fmt::format("stream {}", t.tid) : fmt::format("thread {}", t.tid);
}

// Adds up the time that the events of each track cover. Only sums are kept: the sets of a large
// trace would take as much memory as its compute.
class StreamTimes {
 public:
  StreamTimes(size_t tracks, const IntervalSet& window) : streams_(tracks), window_(window) {}

  // The events of a track come by start.
  void add(uint32_t track, const Interval& when) {
    if (when.length() <= 0) {
      return;
    }
    Stream& stream = streams_[track];
    stream.works = true;
    const Nanoseconds start = std::max(when.start, stream.covered);
    if (start < when.end) {
      stream.busy += window_.length_within({start, when.end});
      stream.covered = when.end;
    }
  }

  [[nodiscard]] std::vector<StreamFigures> take(const Trace& trace, bool device) const {
    std::vector<StreamFigures> out;
    for (uint32_t track = 0; track < streams_.size(); ++track) {
      if (streams_[track].works) {
        out.push_back({stream_name(trace, track, device), streams_[track].busy});
      }
    }
    return out;
  }

 private:
  struct Stream {
    bool works = false;  // has an event that takes time, within the window or not
    Nanoseconds busy = 0;
    Nanoseconds covered = std::numeric_limits<Nanoseconds>::min();  // the latest end so far
  };
  std::vector<Stream> streams_;
  NearSet window_;
};

}  // namespace

std::vector<StreamFigures> stream_figures(const Trace& trace,
                                          const Timeline& timeline,
                                          const IntervalSet& window) {
  StreamTimes times(trace.tracks.size(), window);
  if (timeline.device) {
    for (const DeviceEvent& each : timeline.device_events) {
      times.add(timeline.place(each).track, each.when);
    }
    return times.take(trace, true);
  }
  std::vector<std::pair<uint32_t, Interval>> ran;
  ran.reserve(timeline.host_events.size() + timeline.collectives.size());
  for (const DeviceEvent& each : timeline.host_events) {
    ran.emplace_back(timeline.place(each).track, each.when);
  }
  for (const Collective& each : timeline.collectives) {
    ran.emplace_back(each.track, each.when);
  }
  std::sort(ran.begin(), ran.end(),
            [](const auto& a, const auto& b) { return a.second.start < b.second.start; });
  for (const auto& [track, when] : ran) {
    times.add(track, when);
  }
  return times.take(trace, false);
}

}  // namespace shardlens::analysis
