#include "gui/model/details/idle_reason.h"

#include <algorithm>

#include <QObject>

namespace shardlens::gui {
namespace {

using analysis::DeviceEvent;
using analysis::IdleCause;
using analysis::Interval;

// The event that the analysis names: if several start at the same time, the one launched first.
std::optional<size_t> ending(const RankData& rank, const Interval& idle) {
  const std::vector<DeviceEvent>& all = rank.timeline.device_events;
  const auto starts_before = [](const DeviceEvent& e, Nanoseconds t) { return e.when.start < t; };
  auto next = std::lower_bound(all.begin(), all.end(), idle.end, starts_before);
  while (next != all.end() && next->when.length() == 0) {
    ++next;
  }
  if (next == all.end()) {
    return std::nullopt;
  }
  auto first = next;
  for (auto e = next; e != all.end() && e->when.start == next->when.start; ++e) {
    first = e->launch != trace::kNoIndex && e->launched < first->launched ? e : first;
  }
  return static_cast<size_t>(first - all.begin());
}

struct Longest {
  uint32_t event = trace::kNoIndex;
  Nanoseconds inside = 0;
};

// The item of a host's lane that the thread spent most of `idle` in.
Longest longest_in(const RankData& rank, const char* name, uint32_t thread, const Interval& idle) {
  Longest out;
  for (const Lane& lane : rank.lanes) {
    for (size_t row = 0; lane.name == name && row < lane.rows.size(); ++row) {
      const LaneItems items = lane.rows[row].items();
      for (size_t i = lane.rows[row].first_ending_after(idle.start);
           i < items.size() && items[i].start < idle.end; ++i) {
        const Nanoseconds inside =
            std::min(items[i].end, idle.end) - std::max(items[i].start, idle.start);
        if (inside > out.inside && rank.trace.events[items[i].ref].track == thread) {
          out = {items[i].ref, inside};
        }
      }
    }
  }
  return out;
}

}  // namespace

IdleReason idle_reason(const RankData& rank, uint32_t index) {
  const analysis::IdlePart& part = rank.idle()[index];
  IdleReason out;
  out.ended_by = ending(rank, part.when);
  const bool of_host = part.cause == IdleCause::kHostLate || part.cause == IdleCause::kEventWait;
  if (!out.ended_by || !of_host) {
    return out;
  }
  const DeviceEvent& next = rank.timeline.device_events[*out.ended_by];
  if (next.launch == trace::kNoIndex || next.launched < part.when.end) {
    return out;  // launched before: a stream waited, not the host
  }
  const uint32_t thread = rank.timeline.place(next).thread;
  const Longest call = longest_in(rank, Lane::kCalls, thread, part.when);
  const Longest op = longest_in(rank, Lane::kOperators, thread, part.when);
  out.host = 2 * call.inside >= part.when.length() ? call.event : op.event;
  return out;
}

QString idle_words(IdleCause cause) {
  const std::string_view words = words_of(cause);
  return QString::fromUtf8(words.data(), static_cast<qsizetype>(words.size()));
}

QString idle_explanation(IdleCause cause) {
  switch (cause) {
    case IdleCause::kHostLate:
      return QObject::tr("The host had not launched the next event yet.");
    case IdleCause::kEventWait:
      return QObject::tr(
          "The host waited for the device before it launched the next event, or the "
          "next event's stream waited for an event of another one.");
    case IdleCause::kGap:
      return QObject::tr("The next event was launched and free to start, but did not start yet.");
    case IdleCause::kUnknown:
      break;
  }
  return QObject::tr("The launch of the next event is not in the trace.");
}

QString idle_text(const RankData& rank, uint32_t index) {
  const QString cause = idle_words(rank.idle()[index].cause);
  const IdleReason reason = idle_reason(rank, index);
  const uint32_t host = reason.host;
  if (host == trace::kNoIndex) {
    return reason.ended_by ? cause : QObject::tr("nothing follows");
  }
  const std::string_view name = rank.trace.name(rank.trace.events[host]);
  return QStringLiteral("%1: %2").arg(
      cause, QString::fromUtf8(name.data(), static_cast<qsizetype>(name.size())));
}

}  // namespace shardlens::gui
