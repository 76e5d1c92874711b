#include "profiler/trace/event_fields.h"

#include <cstring>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "profiler/trace/decimal.h"

namespace shardlens::trace {
namespace {

namespace od = simdjson::ondemand;

// A key as written, up to its closing quote: keys that matter have no escapes.
std::string_view key_of(od::field& field) {
  const char* begin = field.key().raw();
  const char* end = begin;
  while (*end != '"') {  // stands in the text: the first pass of simdjson has found it
    end += *end == '\\' ? 2 : 1;
  }
  return {begin, static_cast<size_t>(end - begin)};
}

template <typename T>
struct KeyRow {
  std::string_view key;
  T value;
};

uint32_t small(int64_t value) {
  return value < 0 || value > 0xffffffff ? 0 : static_cast<uint32_t>(value);
}

int32_t small_signed(int64_t value) {
  return value < -1 || value > 0x7fffffff ? -1 : static_cast<int32_t>(value);
}

constexpr std::array<std::string_view, kFaultCount> kFaultTexts{
    "elements of traceEvents that are no objects, left out",
    "events without 'ts', left out",
    "events whose 'ts' or 'dur' is no number or does not fit in 64 bits of nanoseconds, left out",
    "complete events without 'dur', taken as 0 long",
    "events with a negative duration, left out",
    "events of a phase ('ph') that is not read, left out",
    "shardlens instants whose arguments are not understood, kept without them",
};

}  // namespace

std::string_view number_token(od::value value) {
  const std::string_view token = value.raw_json_token();
  const size_t end = token.find_last_not_of(" \t\r\n");
  return token.substr(0, end == std::string_view::npos ? 0 : end + 1);
}

void EventBuilder::fault(Fault fault) {
  Count& count = faults_[static_cast<size_t>(fault)];
  if (count.count++ == 0) {
    count.first = byte_;
  }
}

void EventBuilder::set_units(const std::vector<std::string>& fqns) {
  // Listed units come first, in their order; those that events named before are renumbered by
  // finish().
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

void EventBuilder::event(od::object object) {
  Fields fields;
  fields.numbers.fill(kAbsent);
  for (od::field field : object) {
    const std::string_view key = key_of(field);
    read_field(fields, key, field.value());
  }
  if (fields.phase == "M") {
    name_event(fields);
  } else if (fields.phase == "X") {
    timed_event(fields, Phase::kComplete);
  } else if (fields.phase == "i" || fields.phase == "I") {
    timed_event(fields, Phase::kInstant);
  } else if (fields.phase == "s") {
    timed_event(fields, Phase::kFlowStart);
  } else if (fields.phase == "f") {
    timed_event(fields, Phase::kFlowEnd);
  } else if (fields.phase == "C") {
    timed_event(fields, Phase::kCounter);
  } else {
    fault(Fault::kUnknownPhase);
  }
}

void EventBuilder::read_field(Fields& fields, std::string_view key, od::value value) {
  const auto text = [&](std::string_view& out) {
    if (value.type() == od::json_type::string) {
      out = value.get_string();
    }
  };
  const auto time = [&](std::optional<Nanoseconds>& out) {
    fields.has_time = fields.has_time || key == "ts";
    switch (value.type()) {
      case od::json_type::number:
        out = nanoseconds_of_microseconds(number_token(value));
        break;
      case od::json_type::string:
        out = nanoseconds_of_microseconds(std::string_view(value.get_string()));
        break;
      default:
        break;
    }
    fields.bad_time = fields.bad_time || !out;
  };
  const auto id = [&](Id& out) {
    if (value.type() == od::json_type::string) {
      out.text = value.get_string();
      out.is_text = true;
    } else if (value.type() == od::json_type::number) {
      out.number = scaled_decimal(number_token(value), 0).value_or(0);
    }
  };
  if (key == "ts") {
    time(fields.time);
  } else if (key == "dur") {
    time(fields.duration);
  } else if (key == "name") {
    text(fields.name);
  } else if (key == "ph") {
    text(fields.phase);
  } else if (key == "cat") {
    text(fields.category);
  } else if (key == "pid") {
    id(fields.pid);
  } else if (key == "tid") {
    id(fields.tid);
  } else if (key == "args") {
    if (value.type() == od::json_type::object) {
      read_args(fields, value.get_object());
    }
  } else if (key == "id") {
    if (value.type() == od::json_type::number) {
      fields.id = scaled_decimal(number_token(value), 0).value_or(kAbsent);
    }
  }
}

void EventBuilder::read_args(Fields& fields, od::object args) {
  if (keep_args_) {
    const std::string_view raw = args.raw_json();
    const size_t end = raw.find_last_of('}');
    fields.raw_args = raw.substr(0, end == std::string_view::npos ? 0 : end + 1);
    args.reset();
  }
  for (od::field field : args) {
    const std::string_view key = key_of(field);
    read_argument(fields, key, field.value());
  }
}

void EventBuilder::read_argument(Fields& fields, std::string_view key, od::value value) {
  static constexpr std::array<KeyRow<Text>, 17> kTexts{
      {{"Collective name", Text::kCollectiveName},
       {"dtype", Text::kDtype},
       {"Process Group Name", Text::kGroup},
       {"Process Group Description", Text::kGroupDescription},
       {"Process Group Ranks", Text::kGroupRanks},
       {"unit", Text::kUnit},
       {"buffer_unit", Text::kBufferUnit},
       {"op", Text::kOp},
       {"hook", Text::kHook},
       {"stream", Text::kStream},
       {"buffer", Text::kBuffer},
       {"cause", Text::kCause},
       {"axis", Text::kAxis},
       {"grads", Text::kGrads},
       {"name", Text::kName},
       {"labels", Text::kLabels},
       {"cuda_sync_kind", Text::kSyncKind}}};
  static constexpr std::array<KeyRow<Number>, 33> kNumbers{
      {{"In msg nelems", Number::kInNelems},
       {"Out msg nelems", Number::kOutNelems},
       {"Group size", Number::kGroupSize},
       {"seq", Number::kSeq},
       {"Seq", Number::kSeq},
       {"hook_seq", Number::kHookSeq},
       {"action", Number::kAction},
       {"issued_ns", Number::kIssued},
       {"correlation", Number::kCorrelation},
       {"generation", Number::kGeneration},
       {"event", Number::kEvent},
       {"invocation", Number::kInvocation},
       {"sort_index", Number::kSortIndex},
       {"emulated", Number::kEmulated},
       {"grad_mode", Number::kGradMode},
       {"recompute", Number::kRecompute},
       {"External id", Number::kExternalId},
       {"stream", Number::kStreamId},
       {"device", Number::kDevice},
       {"context", Number::kContext},
       {"bytes", Number::kBytes},
       {"graph id", Number::kGraph},
       {"graph node id", Number::kGraphNode},
       {"event id", Number::kEventId},
       {"wait_on_stream", Number::kWaitOnStream},
       {"wait_on_cuda_event_record_corr_id", Number::kWaitOnRecord},
       {"wait_on_cuda_event_id", Number::kWaitOnEvent},
       {"Addr", Number::kAddress},
       {"Bytes", Number::kMemoryBytes},
       {"Total Allocated", Number::kTotalAllocated},
       {"Total Reserved", Number::kTotalReserved},
       {"Device Type", Number::kDeviceType},
       {"Device Id", Number::kDeviceId}}};
  switch (value.type()) {
    case od::json_type::string:
      for (const auto& row : kTexts) {
        if (row.key == key) {
          fields.texts[static_cast<size_t>(row.value)] = std::string_view(value.get_string());
          return;
        }
      }
      return;
    case od::json_type::number:
      for (const auto& row : kNumbers) {
        if (row.key == key) {
          fields.numbers[static_cast<size_t>(row.value)] =
              scaled_decimal(number_token(value), 0).value_or(kAbsent);
          return;
        }
      }
      return;
    case od::json_type::boolean:
      for (const auto& row : kNumbers) {
        if (row.key == key) {
          fields.numbers[static_cast<size_t>(row.value)] = value.get_bool() ? 1 : 0;
          return;
        }
      }
      return;
    default:
      return;
  }
}

uint32_t EventBuilder::track_of(const Fields& fields) {
  const bool texts = fields.pid.is_text || fields.tid.is_text;
  if (!texts && last_track_ != kNoIndex && fields.pid.number == last_pid_.number &&
      fields.tid.number == last_tid_.number) {
    return last_track_;
  }
  Track ids;
  ids.pid = fields.pid.number;
  ids.tid = fields.tid.number;
  ids.pid_is_text = fields.pid.is_text;
  ids.tid_is_text = fields.tid.is_text;
  ids.pid_text = fields.pid.is_text ? trace_.strings.intern(fields.pid.text) : kEmptyString;
  ids.tid_text = fields.tid.is_text ? trace_.strings.intern(fields.tid.text) : kEmptyString;
  const uint32_t track = trace_.track(ids);
  if (!texts) {
    last_pid_ = fields.pid;
    last_tid_ = fields.tid;
    last_track_ = track;
  }
  return track;
}

Category EventBuilder::category_of(std::string_view text, uint8_t& other) {
  if (!has_last_category_ || text != last_category_text_) {
    has_last_category_ = true;
    last_category_text_ = text;
    last_category_ = parse_category(text);
    last_other_ = last_category_ == Category::kOther ? trace_.other_category(text) : 0;
  }
  other = last_other_;
  return last_category_;
}

void EventBuilder::name_event(const Fields& fields) {
  if (fields.name.starts_with("process_")) {
    Track ids;
    ids.pid = fields.pid.number;
    ids.pid_is_text = fields.pid.is_text;
    ids.pid_text = fields.pid.is_text ? trace_.strings.intern(fields.pid.text) : kEmptyString;
    Process& process = trace_.process(ids);
    if (fields.name == "process_name") {
      process.name = fields[Text::kName].value_or("");
    } else if (fields.name == "process_labels") {
      process.labels = fields[Text::kLabels].value_or("");
    } else if (fields.name == "process_sort_index" &&
               fields.number(Number::kSortIndex, kAbsent) != kAbsent) {
      process.sort_index = fields.number(Number::kSortIndex, 0);
    }
  } else if (fields.name == "thread_name") {
    const uint32_t track = track_of(fields);
    trace_.tracks[track].name = trace_.strings.intern(fields[Text::kName].value_or(""));
  } else if (fields.name == "thread_sort_index" &&
             fields.number(Number::kSortIndex, kAbsent) != kAbsent) {
    const uint32_t track = track_of(fields);
    trace_.tracks[track].sort_index = fields.number(Number::kSortIndex, 0);
  }
}

void EventBuilder::timed_event(const Fields& fields, Phase phase) {
  if (fields.bad_time) {
    return fault(Fault::kBadTime);
  }
  if (!fields.has_time) {
    return fault(Fault::kNoTime);
  }
  Event event;
  event.start = *fields.time;
  if (phase == Phase::kComplete) {
    if (!fields.duration) {
      fault(Fault::kNoDuration);
    }
    event.duration = fields.duration.value_or(0);
    Nanoseconds end = 0;
    if (event.duration < 0) {
      return fault(Fault::kNegativeDuration);
    }
    if (__builtin_add_overflow(event.start, event.duration, &end)) {
      return fault(Fault::kBadTime);
    }
  }
  event.name = trace_.strings.intern(fields.name);
  event.track = track_of(fields);
  event.category = category_of(fields.category, event.other_category);
  event.phase = phase;
  const bool flow = phase == Phase::kFlowStart || phase == Phase::kFlowEnd;
  event.correlation = small(flow ? fields.id : fields.number(Number::kCorrelation, 0));
  event.external_id = small(fields.number(Number::kExternalId, 0));
  if (!add_detail(event, fields)) {
    fault(Fault::kBadArguments);
  }
  first_time_ = std::min(first_time_.value_or(event.start), event.start);
  trace_.events.push_back(event);
  if (keep_args_ && event.detail_kind != Detail::kAction && event.detail_kind != Detail::kHook &&
      event.category != Category::kCommunication && !fields.raw_args.empty() &&
      nlohmann::json::accept(fields.raw_args)) {
    trace_.set_args(static_cast<uint32_t>(trace_.events.size() - 1), std::string(fields.raw_args));
  }
}

bool EventBuilder::add_detail(Event& event, const Fields& fields) {
  if (event.category == Category::kShardlens) {
    return fields[Text::kOp] ? add_action(event, fields) : add_hook(event, fields);
  }
  if (fields[Text::kCollectiveName] || event.category == Category::kCommunication) {
    add_collective(event, fields);
  } else if (fields[Text::kSyncKind]) {
    add_sync(event, fields);
  } else if (fields.number(Number::kAddress, kAbsent) != kAbsent) {
    add_memory(event, fields);
  } else if (const uint32_t row = device_row(fields); row != kNoIndex) {
    event.detail_kind = Detail::kDevice;
    event.detail = row;
  }
  return true;
}

StringId EventBuilder::text_id(const Fields& fields, Text key) {
  return fields[key] ? trace_.strings.intern(*fields[key]) : kEmptyString;
}

UnitId EventBuilder::unit_id(const std::optional<std::string_view>& fqn) {
  if (!fqn) {
    return kNoUnit;
  }
  if (const auto found = units_.find(*fqn); found != units_.end()) {
    return found->second;
  }
  const auto id = static_cast<UnitId>(trace_.units.size());
  trace_.units.emplace_back(*fqn);
  units_.emplace(*fqn, id);
  return id;
}

void EventBuilder::add_collective(Event& event, const Fields& fields) {
  CollectiveArgs args;
  args.collective = text_id(fields, Text::kCollectiveName);
  args.dtype = text_id(fields, Text::kDtype);
  args.group = text_id(fields, Text::kGroup);
  args.group_description = text_id(fields, Text::kGroupDescription);
  args.group_ranks = text_id(fields, Text::kGroupRanks);
  args.unit = unit_id(fields[Text::kUnit]);
  args.group_size = static_cast<int32_t>(small(fields.number(Number::kGroupSize, 0)) & 0x7fffffffU);
  args.action = small(fields.number(Number::kAction, 0));
  args.in_nelems = std::max<int64_t>(-1, fields.number(Number::kInNelems, -1));
  args.out_nelems = std::max<int64_t>(-1, fields.number(Number::kOutNelems, -1));
  args.sequence = std::max<int64_t>(-1, fields.number(Number::kSeq, -1));
  args.issued = fields.number(Number::kIssued, 0);
  args.emulated = fields.number(Number::kEmulated, 0) != 0;
  args.device = device_row(fields);
  event.detail_kind = Detail::kCollective;
  event.detail = static_cast<uint32_t>(trace_.collectives.size());
  trace_.collectives.push_back(args);
}

bool EventBuilder::DeviceOrder::operator()(const DeviceArgs& a, const DeviceArgs& b) const {
  const auto key = [](const DeviceArgs& d) {
    return std::tie(d.stream, d.device, d.context, d.bytes, d.graph_node, d.graph, d.event);
  };
  return key(a) < key(b);
}

uint32_t EventBuilder::device_row(const Fields& fields) {
  if (fields.number(Number::kStreamId, kAbsent) == kAbsent) {
    return kNoIndex;
  }
  DeviceArgs args;
  args.stream = small_signed(fields.number(Number::kStreamId, -1));
  args.device = small_signed(fields.number(Number::kDevice, -1));
  args.context = small_signed(fields.number(Number::kContext, -1));
  args.bytes = std::max<int64_t>(-1, fields.number(Number::kBytes, -1));
  args.graph = std::max<int64_t>(-1, fields.number(Number::kGraph, -1));
  args.graph_node = std::max<int64_t>(-1, fields.number(Number::kGraphNode, -1));
  args.event = small(fields.number(Number::kEventId, 0));
  const auto [found, fresh] =
      device_rows_.try_emplace(args, static_cast<uint32_t>(trace_.devices.size()));
  if (fresh) {
    trace_.devices.push_back(args);
  }
  return found->second;
}

void EventBuilder::add_sync(Event& event, const Fields& fields) {
  SyncArgs args;
  args.kind = parse_sync_kind(*fields[Text::kSyncKind]);
  args.device = small_signed(fields.number(Number::kDevice, -1));
  args.stream = small_signed(fields.number(Number::kStreamId, -1));
  args.wait_on_stream = small_signed(fields.number(Number::kWaitOnStream, -1));
  args.wait_on_record = small(fields.number(Number::kWaitOnRecord, 0));
  args.wait_on_event = std::max<int64_t>(-1, fields.number(Number::kWaitOnEvent, -1));
  event.detail_kind = Detail::kSync;
  event.detail = static_cast<uint32_t>(trace_.syncs.size());
  trace_.syncs.push_back(args);
}

void EventBuilder::add_memory(Event& event, const Fields& fields) {
  MemoryArgs args;
  args.address = fields.number(Number::kAddress, 0);
  args.bytes = fields.number(Number::kMemoryBytes, 0);
  args.total_allocated = fields.number(Number::kTotalAllocated, 0);
  args.total_reserved = fields.number(Number::kTotalReserved, 0);
  args.device_type = small_signed(fields.number(Number::kDeviceType, 0));
  args.device = small_signed(fields.number(Number::kDeviceId, -1));
  event.detail_kind = Detail::kMemory;
  event.detail = static_cast<uint32_t>(trace_.memory_events.size());
  trace_.memory_events.push_back(args);
}

bool EventBuilder::add_action(Event& event, const Fields& fields) {
  ActionArgs args;
  args.seq = small(fields.number(Number::kSeq, 0));
  args.hook_seq = small(fields.number(Number::kHookSeq, 0));
  const auto op = schedule::parse_op(*fields[Text::kOp]);
  const auto stream = schedule::parse_stream(fields[Text::kStream].value_or(""));
  const auto cause = schedule::parse_cause(fields[Text::kCause].value_or(""));
  const auto axis = schedule::parse_axis(fields[Text::kAxis].value_or(""));
  const auto buffer = fields[Text::kBuffer] ? schedule::parse_buffer_kind(*fields[Text::kBuffer])
                                            : std::optional(schedule::BufferKind::kNone);
  if (!op || !stream || !cause || !axis || !buffer) {
    return false;
  }
  args.action.op = *op;
  args.action.stream = *stream;
  args.action.cause = *cause;
  args.action.axis = *axis;
  args.action.unit = unit_id(fields[Text::kUnit]);
  args.action.buffer = {*buffer, unit_id(fields[Text::kBufferUnit]),
                        small(fields.number(Number::kGeneration, 0))};
  const int64_t id = fields.number(Number::kEvent, kAbsent);
  args.action.event = id == kAbsent ? schedule::kNoEvent : small(id);
  event.detail_kind = Detail::kAction;
  event.detail = static_cast<uint32_t>(trace_.actions.size());
  trace_.actions.push_back(args);
  return true;
}

bool EventBuilder::add_hook(Event& event, const Fields& fields) {
  HookArgs args;
  args.seq = small(fields.number(Number::kSeq, 0));
  const auto hook = parse_hook(fields[Text::kHook].value_or(""));
  const std::string_view grads = fields[Text::kGrads].value_or("all");
  if (!hook || (grads != "all" && grads != "some" && grads != "none")) {
    return false;
  }
  args.hook.hook = *hook;
  args.hook.unit = unit_id(fields[Text::kUnit]);
  args.hook.invocation = small(fields.number(Number::kInvocation, 0));
  args.hook.grad_mode = fields.number(Number::kGradMode, 1) != 0;
  args.hook.recompute = fields.number(Number::kRecompute, 0) != 0;
  args.hook.grads = grads == "all" ? Grads::kAll : grads == "some" ? Grads::kSome : Grads::kNone;
  event.detail_kind = Detail::kHook;
  event.detail = static_cast<uint32_t>(trace_.hooks.size());
  trace_.hooks.push_back(args);
  return true;
}

}  // namespace shardlens::trace
