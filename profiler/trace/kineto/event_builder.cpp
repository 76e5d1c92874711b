#include "profiler/trace/kineto/event_builder.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "profiler/trace/json/decimal.h"
#include "profiler/trace/model/latest_time.h"

namespace shardlens::trace {
namespace {

constexpr std::array<std::string_view, kFaultCount> kFaultTexts{
    "elements of traceEvents that are not objects, left out",
    "events without 'ts', left out",
    "events whose 'ts' or 'dur' is not a number or does not fit in 64 bits of nanoseconds, with "
    "room for sums, left out",
    "complete events without 'dur', read with duration 0",
    "events with a negative duration, left out",
    "events with a phase ('ph') that is not supported, left out",
    "shardlens instants with unknown arguments, kept without them",
    "events with NaN or Infinity, which are not valid JSON: read as null",
    "events with invalid escape sequences in their arguments: arguments not kept",
};

// Compares with a name whose length is known when this is compiled, so that memcmp is not called.
template <size_t N>
bool is(std::string_view key, const char (&name)[N]) {
  return key.size() == N - 1 && std::memcmp(key.data(), name, N - 1) == 0;
}

std::optional<Nanoseconds> time_of(const JsonValue& value) {
  return value.is_number() || value.is_string() ? nanoseconds_of_microseconds(value.text)
                                                : std::nullopt;
}

}  // namespace

void EventBuilder::read() {
  byte_ = cursor_.byte();
  cursor_.not_json().clear();
  fields_.phase = fields_.category = fields_.name = fields_.pid = fields_.tid = fields_.time =
      fields_.duration = fields_.id = JsonValue();
  fields_.args = {};
  fields_.seen = 0;
  is_object_ = cursor_.peek() == '{';
  if (!is_object_) {
    (void)cursor_.value();
    return;
  }
  cursor_.take('{', "'{'");
  if (!cursor_.take_if('}')) {
    do {
      read_field(cursor_.key());
    } while (!cursor_.ends('}'));
  }
}

void EventBuilder::add() {
  if (!is_object_) {
    return fault(Fault::kNoObject);
  }
  const std::string_view phase = fields_.phase.text;
  switch (phase.size() == 1 && fields_.phase.is_string() ? phase.front() : '\0') {
    case 'X':
      return timed_event(EventPhase::kComplete);
    case 'M':
      return name_event();
    case 'i':
    case 'I':
      return timed_event(EventPhase::kInstant);
    case 's':
      return timed_event(EventPhase::kFlowStart);
    case 'f':
      return timed_event(EventPhase::kFlowEnd);
    case 'C':
      return timed_event(EventPhase::kCounter);
    default:
      return fault(Fault::kUnknownPhase);
  }
}

void EventBuilder::read_field(std::string_view key) {
  JsonValue* to = &fields_.other;
  if (is(key, "ts")) {
    to = &fields_.time;
  } else if (is(key, "ph")) {
    to = &fields_.phase;
  } else if (is(key, "id")) {
    to = &fields_.id;
  } else if (is(key, "cat")) {
    to = &fields_.category;
  } else if (is(key, "dur")) {
    to = &fields_.duration;
  } else if (is(key, "pid")) {
    to = &fields_.pid;
  } else if (is(key, "tid")) {
    to = &fields_.tid;
  } else if (is(key, "name")) {
    to = &fields_.name;
  } else if (is(key, "args") && cursor_.peek() == '{') {
    read_args();
    return;
  }
  cursor_.value(*to);
}

void EventBuilder::read_args() {
  const char* const begin = cursor_.here();
  cursor_.take('{', "'{'");
  if (!cursor_.take_if('}')) {
    do {
      const Argument key = kArgumentKeys.find(cursor_.key());
      cursor_.value(fields_.arguments[static_cast<size_t>(key)]);
      fields_.seen |= uint64_t{1} << static_cast<unsigned>(key);
    } while (!cursor_.ends('}'));
  }
  fields_.seen &= (uint64_t{1} << kArgumentCount) - 1;
  fields_.args = {begin, static_cast<size_t>(cursor_.behind_last() - begin)};
}

void EventBuilder::fault(Fault fault) {
  Count& count = faults_[static_cast<size_t>(fault)];
  if (count.count++ == 0) {
    count.first = byte_;
  }
}

void EventBuilder::set_units(const std::vector<std::string>& fqns) {
  // Listed units come first, in their order; units that earlier events named are renumbered.
  const std::vector<std::string> earlier = std::exchange(trace_.units, fqns);
  units_.clear();
  for (size_t i = 0; i < trace_.units.size(); ++i) {
    units_.emplace(trace_.units[i], static_cast<UnitId>(i));
  }
  std::vector<UnitId> now(earlier.size());
  for (size_t i = 0; i < earlier.size(); ++i) {
    now[i] = unit_id(earlier[i]);
  }
  const auto renumber = [&](UnitId& unit) { unit = unit == kNoUnit ? kNoUnit : now[unit]; };
  for (CollectiveArgs& c : trace_.collectives) {
    renumber(c.unit);
  }
  for (ActionArgs& a : trace_.actions) {
    renumber(a.action.unit);
    renumber(a.action.buffer.unit);
  }
  for (HookArgs& h : trace_.hooks) {
    renumber(h.hook.unit);
  }
}

void EventBuilder::finish() {
  for (int i = 0; i < kFaultCount; ++i) {
    const Count& count = faults_[static_cast<size_t>(i)];
    if (count.count > 0) {
      const auto severity =
          static_cast<Fault>(i) == Fault::kUnknownPhase ? Severity::kNote : Severity::kWarning;
      add_diagnostic(
          trace_.diagnostics, severity,
          fmt::format("{} (first at byte {})", kFaultTexts[static_cast<size_t>(i)], count.first),
          count.count);
    }
  }
}

EventBuilder::Id EventBuilder::id_of(const JsonValue& value) {
  Id id;
  if (value.is_string()) {
    id.is_text = true;
    id.text = trace_.strings.intern(text(value));
  } else if (value.is_number()) {
    id.number = integer_of(value.text).value_or(0);
  }
  return id;
}

uint32_t EventBuilder::track_of_fields() {
  const auto ids_of = [](const Id& pid, const Id& tid) {
    Track ids;
    ids.pid = pid.number;
    ids.tid = tid.number;
    ids.pid_text = pid.text;
    ids.tid_text = tid.text;
    ids.pid_is_text = pid.is_text;
    ids.tid_is_text = tid.is_text;
    return ids;
  };
  const Id pid = id_of(fields_.pid), tid = id_of(fields_.tid);
  if (pid.is_text || tid.is_text) {
    return trace_.track(ids_of(pid, tid));
  }
  KnownTrack& known =
      tracks_[(static_cast<uint64_t>(pid.number) * 31 + static_cast<uint64_t>(tid.number)) %
              kRemembered];
  if (known.track == kNoIndex || known.pid != pid.number || known.tid != tid.number) {
    known = {pid.number, tid.number, trace_.track(ids_of(pid, tid))};
  }
  return known.track;
}

Process& EventBuilder::process_of_fields() {
  const Id id = id_of(fields_.pid);
  const auto [found, fresh] = processes_.try_emplace(id, trace_.processes.size());
  if (fresh) {
    Process& process = trace_.processes.emplace_back();
    process.pid = id.number;
    process.pid_text = id.text;
    process.pid_is_text = id.is_text;
  }
  return trace_.processes[found->second];
}

void EventBuilder::set_category(Event& event) {
  const std::string_view name = text(fields_.category);
  KnownCategory& known = categories_[StringTable::hash_of(name) % kRemembered];
  if (!known.known || known.text != name) {
    known.known = true;
    known.text = name;
    known.category = parse_category(name);
    known.other = known.category == Category::kOther ? trace_.other_category(name) : 0;
  }
  event.category = known.category;
  event.other_category = known.other;
}

void EventBuilder::name_event() {
  const std::string_view what = fields_.name.text;
  const auto sort_index = [&](std::optional<int64_t>& out) {
    if (const int64_t index = number(Argument::kSortIndex, kAbsent); index != kAbsent) {
      out = index;
    }
  };
  if (what.starts_with("process_")) {
    Process& process = process_of_fields();
    if (what == "process_name") {
      process.name = text(Argument::kName).value_or("");
    } else if (what == "process_labels") {
      process.labels = text(Argument::kLabels).value_or("");
    } else if (what == "process_sort_index") {
      sort_index(process.sort_index);
    }
  } else if (what == "thread_name") {
    const StringId name = text_id(Argument::kName);
    trace_.tracks[track_of_fields()].name = name;
  } else if (what == "thread_sort_index") {
    sort_index(trace_.tracks[track_of_fields()].sort_index);
  }
}

// False if the event has no usable time.
bool EventBuilder::read_times(Event& event, EventPhase phase) {
  if (fields_.time.kind == 0) {
    fault(Fault::kNoTime);
    return false;
  }
  const std::optional<Nanoseconds> start = time_of(fields_.time);
  const std::optional<Nanoseconds> duration =
      fields_.duration.kind == 0 ? std::optional<Nanoseconds>(0) : time_of(fields_.duration);
  if (!start || !duration) {
    fault(Fault::kBadTime);
    return false;
  }
  if (*start > kLatestTime || *start < -kLatestTime) {
    fault(Fault::kBadTime);
    return false;
  }
  event.start = *start;
  if (phase != EventPhase::kComplete) {
    return true;
  }
  if (fields_.duration.kind == 0) {
    fault(Fault::kNoDuration);
  }
  if (*duration < 0 || *duration > kLatestTime - durations_ || *duration > kLatestTime - *start) {
    fault(*duration < 0 ? Fault::kNegativeDuration : Fault::kBadTime);
    return false;
  }
  durations_ += *duration;
  event.duration = *duration;
  return true;
}

void EventBuilder::timed_event(EventPhase phase) {
  Event event;
  if (!read_times(event, phase)) {
    return;
  }
  event.phase = phase;
  event.name = trace_.strings.intern(text(fields_.name));
  event.track = track_of_fields();
  set_category(event);
  if (phase == EventPhase::kFlowStart || phase == EventPhase::kFlowEnd) {
    const int64_t id = fields_.id.is_number() ? integer_of(fields_.id.text).value_or(0) : 0;
    event.correlation = id > 0 && id <= 0xffffffff ? static_cast<uint32_t>(id) : 0;
  }
  if (fields_.seen != 0) {
    event.correlation = event.correlation != 0 ? event.correlation : small(Argument::kCorrelation);
    event.external_id = small(Argument::kExternalId);
  }
  if ((fields_.seen != 0 || event.category == Category::kCommunication ||
       event.category == Category::kShardlens) &&
      !add_detail(event)) {
    fault(Fault::kBadArguments);
  }
  first_time_ = std::min(first_time_.value_or(event.start), event.start);
  emit(event);
}

void EventBuilder::emit(const Event& event) {
  if (!cursor_.not_json().empty()) {
    fault(Fault::kNotJson);
  }
  if (options_.sink != nullptr) {
    const std::string json = args_as_json();
    options_.sink->event(trace_, event, json);
    trace_.collectives.clear();
    trace_.actions.clear();
    trace_.hooks.clear();
    trace_.syncs.clear();
    trace_.memory_events.clear();
    return;
  }
  if (is_needless(event)) {
    return;
  }
  trace_.events.push_back(event);
  // For Gloo's collectives, the size is only in "Input Dims" of the c10d operators, and where these
  // take lists of tensors, the type is only in "Input type" of the gloo ranges. The size of what a
  // program waits for says which collective it was.
  const bool keep =
      options_.keep_args ||
      (event.category == Category::kCpuOp &&
       (trace_.name(event).starts_with("c10d::") ||
        trace_.name(event) == "_c10d_functional::wait_tensor")) ||
      (event.category == Category::kUserAnnotation && trace_.name(event).starts_with("gloo:"));
  if (keep && event.category != Category::kShardlens &&
      event.category != Category::kCommunication) {
    if (std::string json = args_as_json(); !json.empty()) {
      trace_.set_args(static_cast<uint32_t>(trace_.events.size() - 1), std::move(json));
    }
  }
}

bool EventBuilder::is_needless(const Event& event) {
  return !options_.keep_flows &&
         (event.phase == EventPhase::kFlowStart || event.phase == EventPhase::kFlowEnd) &&
         (event.category == Category::kAc2g || event.category == Category::kFwdBwd) &&
         fields_.seen == 0 && std::exchange(has_flow_, true);
}

std::string EventBuilder::args_as_json() {
  std::string json;
  const char* from = fields_.args.data();
  const char* const end = from + fields_.args.size();
  for (const std::string_view odd : cursor_.not_json()) {
    if (odd.data() >= from && odd.data() < end) {
      json.append(from, odd.data()).append("null");
      from = odd.data() + odd.size();
    }
  }
  json.append(from, end);
  // The cursor has checked everything except the contents of strings.
  if (json.find('\\') != std::string::npos && !nlohmann::json::accept(json)) {
    fault(Fault::kBadText);
    json.clear();
  }
  return json;
}

}  // namespace shardlens::trace
