#include "profiler/analysis/timeline/dependencies.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include <queue>

#include "profiler/analysis/events/launches.h"
#include "profiler/analysis/events/names.h"

namespace shardlens::analysis {

using trace::Event;
using trace::SyncKind;

Dependencies::Dependencies(const trace::Trace& trace, const Timeline& timeline)
    : trace_(trace), timeline_(timeline), waiting_(trace.tracks.size()) {
  find_before();
  if (!trace.syncs.empty()) {
    order_streams();
    waited_for_.assign(timeline.device_events.size(), kNone);
    add_stream_waits(LaunchIndex(timeline.lists.calls));
  }
  add_host_waits();
}

Nanoseconds Dependencies::end_of(uint32_t i) const {
  return timeline_.device_events[i].when.end;
}

Nanoseconds Dependencies::launched(uint32_t i) const {
  return timeline_.device_events[i].launched;
}

void Dependencies::find_before() {
  std::vector<uint32_t> latest(trace_.tracks.size(), kNone);
  before_.reserve(timeline_.device_events.size());
  for (uint32_t i = 0; i < timeline_.device_events.size(); ++i) {
    uint32_t& last = latest[timeline_.place(timeline_.device_events[i]).track];
    before_.push_back(std::exchange(last, i));
  }
}

void Dependencies::order_streams() {
  streams_.resize(trace_.tracks.size());
  for (uint32_t i = 0; i < timeline_.device_events.size(); ++i) {
    streams_[timeline_.place(timeline_.device_events[i]).track].push_back(i);
  }
  for (uint32_t i = 0; i < trace_.tracks.size(); ++i) {
    if (!streams_[i].empty()) {
      track_of_.try_emplace({trace_.tracks[i].pid, trace_.tracks[i].tid}, i);
    }
  }
}

uint32_t Dependencies::last_launched(uint32_t track, Nanoseconds instant) const {
  if (track == kNone) {
    return kNone;
  }
  // A stream runs in the order of its launches.
  const std::vector<uint32_t>& stream = streams_[track];
  const auto after = std::partition_point(stream.begin(), stream.end(),
                                          [&](uint32_t i) { return launched(i) < instant; });
  return after == stream.begin() ? kNone : *std::prev(after);
}

uint32_t Dependencies::stream_track(uint32_t device_track, int64_t stream) const {
  const auto found = track_of_.find({trace_.tracks[device_track].pid, stream});
  return found == track_of_.end() ? kNone : found->second;
}

void Dependencies::add_stream_waits(const LaunchIndex& launches) {
  for (const Event& event : trace_.events) {
    const trace::SyncArgs* sync = trace_.sync(event);
    if (sync == nullptr || sync->kind != SyncKind::kStreamWaitEvent || sync->wait_on_stream < 0) {
      continue;
    }
    const uint32_t record = launches.of(sync->wait_on_record),
                   call = launches.of(event.correlation);
    const uint32_t track = stream_track(event.track, sync->stream);
    if (record == trace::kNoIndex || track == kNone) {
      continue;
    }
    const uint32_t source =
        last_launched(stream_track(event.track, sync->wait_on_stream), trace_.events[record].start);
    if (source == kNone) {
      continue;  // nothing was launched before the event was recorded
    }
    const Nanoseconds issued = call == trace::kNoIndex ? event.start : trace_.events[call].start;
    const std::vector<uint32_t>& stream = streams_[track];
    const auto held = std::partition_point(stream.begin(), stream.end(),
                                           [&](uint32_t i) { return launched(i) < issued; });
    if (held != stream.end()) {
      uint32_t& known = waited_for_[*held];
      known = known == kNone || end_of(source) > end_of(known) ? source : known;
    }
  }
}

void Dependencies::add_host_waits() {
  std::vector<std::vector<Interval>> waiting(trace_.tracks.size());
  timeline_.lists.for_calls_named(trace_, is_host_wait, [&](uint32_t i) {
    const Event& event = trace_.events[i];
    const Interval when{event.start, event.end()};
    waiting[event.track].push_back(when);
    host_waits_.push_back({when, event.track, kNone});
  });
  for (size_t i = 0; i < waiting.size(); ++i) {
    waiting_[i] = union_of(std::move(waiting[i]));
  }
  std::sort(host_waits_.begin(), host_waits_.end(),
            [](const HostWait& a, const HostWait& b) { return a.when.end < b.when.end; });
  // The device event that ended last before the call returned is taken as the one waited for: the
  // trace has no better information.
  using End = std::pair<Nanoseconds, uint32_t>;
  std::priority_queue<End, std::vector<End>, std::greater<>> running;
  std::optional<End> latest;
  const auto end_by = [&](Nanoseconds instant) {
    for (; !running.empty() && running.top().first <= instant; running.pop()) {
      latest = running.top();
    }
  };
  uint32_t next = 0;
  for (HostWait& wait : host_waits_) {
    for (; next < timeline_.device_events.size() &&
           timeline_.device_events[next].when.start <= wait.when.end;
         ++next) {
      end_by(timeline_.device_events[next].when.start);
      running.emplace(end_of(next), next);
    }
    end_by(wait.when.end);
    if (latest && latest->first > wait.when.start) {
      wait.until = latest->second;
    }
  }
}

}  // namespace shardlens::analysis
