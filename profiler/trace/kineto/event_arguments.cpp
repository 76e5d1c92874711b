// Reads the arguments of an event into rows of the trace's side tables.
#include <algorithm>
#include <charconv>
#include <functional>
#include <string_view>
#include <system_error>

#include "profiler/trace/json/decimal.h"
#include "profiler/trace/kineto/event_builder.h"
#include "profiler/trace/model/annotation.h"

namespace shardlens::trace {

int64_t EventBuilder::number(Argument key, int64_t absent) const {
  if (!has(key)) {
    return absent;
  }
  switch (const JsonValue& value = argument(key); value.kind) {
    case '0':
      return integer_of(value.text).value_or(absent);
    case 't':
      return 1;
    case 'f':
      return 0;
    default:
      return absent;
  }
}

uint32_t EventBuilder::small(Argument key) const {
  const int64_t value = number(key, 0);
  return value < 0 || value > 0xffffffff ? 0 : static_cast<uint32_t>(value);
}

int32_t EventBuilder::small_signed(Argument key) const {
  const int64_t value = number(key, -1);
  return value < 0 || value > 0x7fffffff ? -1 : static_cast<int32_t>(value);
}

int64_t EventBuilder::count(Argument key) const {
  return std::max<int64_t>(-1, number(key, -1));
}

std::string_view EventBuilder::text(const JsonValue& value) {
  return value.is_string() ? cursor_.unescaped(value.text, storage_) : std::string_view();
}

std::optional<std::string_view> EventBuilder::text(Argument key) {
  return has(key) && argument(key).is_string() ? std::optional(text(argument(key))) : std::nullopt;
}

StringId EventBuilder::text_id(Argument key) {
  const auto found = text(key);
  return found ? trace_.strings.intern(*found) : kEmptyString;
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

// nullopt: "", or there are too many groups.
std::optional<mesh::GroupId> EventBuilder::group_id(std::string_view name) {
  if (name == "none") {
    return mesh::kNoGroup;
  }
  std::vector<std::string>& all = trace_.groups;
  const auto found = std::ranges::find(all, name);
  const auto id = static_cast<size_t>(found - all.begin());
  if (name.empty() || id >= mesh::kNoGroup) {
    return std::nullopt;
  }
  if (found == all.end()) {
    all.emplace_back(name);
  }
  return static_cast<mesh::GroupId>(id);
}

bool EventBuilder::add_detail(Event& event) {
  if (event.category == Category::kShardlens) {
    return has(Argument::kOp) ? add_action(event) : add_hook(event);
  }
  if (has(Argument::kCollectiveName) || event.category == Category::kCommunication) {
    add_collective(event);
  } else if (has(Argument::kSyncKind)) {
    add_sync(event);
  } else if (has(Argument::kAddress) && has(Argument::kMemoryBytes)) {
    add_memory(event);
  } else if (const uint32_t row = device_row(); row != kNoIndex) {
    event.detail_kind = ArgsKind::kDevice;
    event.detail = row;
  }
  return true;
}

size_t EventBuilder::DeviceHash::operator()(const DeviceArgs& args) const {
  uint64_t hash = static_cast<uint64_t>(args.bytes);
  for (const int64_t part :
       {args.graph_node, args.graph, int64_t{args.device}, int64_t{args.context},
        int64_t{args.stream}, int64_t{args.event}, int64_t{args.module}, int64_t{args.backward}}) {
    hash = (hash ^ static_cast<uint64_t>(part)) * 0x9E3779B97F4A7C15ULL;
    hash ^= hash >> 29;
  }
  return hash;
}

// torch.cuda's module hooks write "L.layers.0" as `str`, which is also the key of free texts. The
// root has no name of its own.
StringId EventBuilder::annotated_module() {
  constexpr std::string_view kLocal = "L.";
  std::optional<std::string_view> module = text(Argument::kModuleFqn);
  if (!module) {
    const auto annotation = text(Argument::kAnnotation);
    if (!annotation || !annotation->starts_with(kLocal)) {
      return kEmptyString;
    }
    module = annotation->substr(kLocal.size());
  }
  return trace_.strings.intern(module->empty() ? kRootModule : *module);
}

uint32_t EventBuilder::device_row() {
  if (!has(Argument::kStream) || !argument(Argument::kStream).is_number()) {
    return kNoIndex;
  }
  DeviceArgs args;
  args.stream = small_signed(Argument::kStream);
  args.device = small_signed(Argument::kDevice);
  args.context = small_signed(Argument::kContext);
  args.bytes = count(Argument::kBytes);
  args.graph = count(Argument::kGraph);
  args.graph_node = count(Argument::kGraphNode);
  args.event = small(Argument::kEventId);
  args.module = annotated_module();
  args.backward = text(Argument::kAutogradPhase).value_or("") == "backward";
  // Most kernels of a stream have the same row as the kernel before; those of a CUDA graph, which
  // differ in their node, come in the order of the replay before.
  uint32_t& last = devices_[static_cast<uint32_t>(args.stream) % kRemembered];
  for (const uint32_t likely : {last, last + 1}) {
    if (likely < trace_.devices.size() && trace_.devices[likely] == args) {
      return last = likely;
    }
  }
  const auto [found, fresh] =
      device_rows_.try_emplace(args, static_cast<uint32_t>(trace_.devices.size()));
  if (fresh) {
    trace_.devices.push_back(args);
  }
  return last = found->second;
}

// A hash of 64 bits, as a signed or an unsigned number or as text; as only equality matters,
// another text is hashed.
int64_t EventBuilder::comms_id() {
  if (!has(Argument::kCommsId)) {
    return 0;
  }
  const JsonValue& value = argument(Argument::kCommsId);
  const std::string_view written = value.is_string()   ? text(value)
                                   : value.is_number() ? std::string_view(value.text)
                                                       : std::string_view();
  uint64_t id = 0;
  int64_t negative = 0;
  const char* const end = written.data() + written.size();
  if (const auto [rest, error] = std::from_chars(written.data(), end, id);
      error == std::errc() && rest == end) {
    return static_cast<int64_t>(id);
  }
  if (const auto [rest, error] = std::from_chars(written.data(), end, negative);
      error == std::errc() && rest == end) {
    return negative;
  }
  return written.empty() ? 0 : static_cast<int64_t>(std::hash<std::string_view>{}(written));
}

void EventBuilder::add_collective(Event& event) {
  CollectiveArgs args;
  args.collective = text_id(Argument::kCollectiveName);
  args.dtype = text_id(Argument::kDtype);
  args.group = text_id(Argument::kGroup);
  args.group_description = text_id(Argument::kGroupDescription);
  args.group_ranks = text_id(Argument::kGroupRanks);
  args.unit = unit_id(text(Argument::kUnit));
  args.group_size = std::max(0, small_signed(Argument::kGroupSize));
  args.action = small(Argument::kAction);
  args.in_nelems = count(Argument::kInNelems);
  args.out_nelems = count(Argument::kOutNelems);
  args.sequence = has(Argument::kSeq) ? count(Argument::kSeq) : count(Argument::kKinetoSeq);
  args.comms_id = comms_id();
  args.issued = number(Argument::kIssued, 0);
  args.emulated = number(Argument::kEmulated, 0) != 0;
  args.device = device_row();
  event.detail_kind = ArgsKind::kCollective;
  event.detail = static_cast<uint32_t>(trace_.collectives.size());
  trace_.collectives.push_back(args);
}

void EventBuilder::add_sync(Event& event) {
  SyncArgs args;
  args.kind = parse_sync_kind(text(Argument::kSyncKind).value_or(""));
  args.device = small_signed(Argument::kDevice);
  args.stream = small_signed(Argument::kStream);
  args.wait_on_stream = small_signed(Argument::kWaitOnStream);
  args.wait_on_record = small(Argument::kWaitOnRecord);
  args.wait_on_event = count(Argument::kWaitOnEvent);
  event.detail_kind = ArgsKind::kSync;
  event.detail = static_cast<uint32_t>(trace_.syncs.size());
  trace_.syncs.push_back(args);
}

void EventBuilder::add_memory(Event& event) {
  MemoryArgs args;
  args.address = number(Argument::kAddress, 0);
  args.bytes = number(Argument::kMemoryBytes, 0);
  args.total_allocated = number(Argument::kTotalAllocated, -1);
  args.total_reserved = number(Argument::kTotalReserved, 0);
  args.device_type = std::max(0, small_signed(Argument::kDeviceType));
  args.device = small_signed(Argument::kDeviceId);
  event.detail_kind = ArgsKind::kMemory;
  event.detail = static_cast<uint32_t>(trace_.memory_events.size());
  trace_.memory_events.push_back(args);
}

bool EventBuilder::add_action(Event& event) {
  ActionArgs args;
  args.seq = small(Argument::kSeq);
  args.hook_seq = small(Argument::kHookSeq);
  // Parsed one after another, because text() may overwrite the storage of its previous result.
  const auto op = schedule::parse_op(text(Argument::kOp).value_or(""));
  const auto stream = schedule::parse_stream(text(Argument::kStream).value_or(""));
  const auto cause = schedule::parse_cause(text(Argument::kCause).value_or(""));
  const auto group = group_id(text(Argument::kAxis).value_or(""));
  const auto buffer = has(Argument::kBuffer)
                          ? schedule::parse_buffer_kind(text(Argument::kBuffer).value_or(""))
                          : std::optional(schedule::BufferKind::kNone);
  if (!op || !stream || !cause || !group || !buffer) {
    return false;
  }
  args.action.op = *op;
  args.action.stream = *stream;
  args.action.cause = *cause;
  args.action.group = *group;
  args.action.unit = unit_id(text(Argument::kUnit));
  args.action.buffer = {*buffer, unit_id(text(Argument::kBufferUnit)),
                        small(Argument::kGeneration)};
  args.action.event =
      number(Argument::kEvent, kAbsent) == kAbsent ? schedule::kNoEvent : small(Argument::kEvent);
  event.detail_kind = ArgsKind::kAction;
  event.detail = static_cast<uint32_t>(trace_.actions.size());
  trace_.actions.push_back(args);
  return true;
}

bool EventBuilder::add_hook(Event& event) {
  HookArgs args;
  args.seq = small(Argument::kSeq);
  const auto hook = parse_hook(text(Argument::kHook).value_or(""));
  const auto grads = parse_grads(text(Argument::kGrads).value_or("all"));
  if (!hook || !grads) {
    return false;
  }
  args.hook.hook = *hook;
  args.hook.unit = unit_id(text(Argument::kUnit));
  args.hook.invocation = small(Argument::kInvocation);
  args.hook.grad_mode = number(Argument::kGradMode, 1) != 0;
  args.hook.recompute = number(Argument::kRecompute, 0) != 0;
  args.hook.grads = *grads;
  event.detail_kind = ArgsKind::kHook;
  event.detail = static_cast<uint32_t>(trace_.hooks.size());
  trace_.hooks.push_back(args);
  return true;
}

}  // namespace shardlens::trace
