#include "profiler/trace/model/trace.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/base/error.h"

namespace shardlens::trace {
namespace {

// Source  toString(ActivityType) in libkineto/src/ActivityType.cpp of Kineto, and Shardlens's own.
constexpr std::array<std::string_view, kCategoryCount> kCategories{"cpu_op",
                                                                   "user_annotation",
                                                                   "gpu_user_annotation",
                                                                   "kernel",
                                                                   "gpu_memcpy",
                                                                   "gpu_memset",
                                                                   "cuda_runtime",
                                                                   "cuda_driver",
                                                                   "cuda_sync",
                                                                   "cuda_event",
                                                                   "xpu_runtime",
                                                                   "xpu_driver",
                                                                   "mtia_runtime",
                                                                   "privateuse1_runtime",
                                                                   "privateuse1_driver",
                                                                   "hip_runtime",
                                                                   "hip_driver",
                                                                   "glow_runtime",
                                                                   "overhead",
                                                                   "python_function",
                                                                   "communication",
                                                                   "shardlens",
                                                                   "Trace",
                                                                   "ac2g",
                                                                   "fwdbwd",
                                                                   ""};

constexpr std::array<std::string_view, 5> kSyncKinds{"Other", "Stream Sync", "Event Sync",
                                                     "Stream Wait Event", "Context Sync"};

constexpr size_t kMaxOtherCategories = 255;

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  const auto lower = [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(),
                                            [&](char x, char y) { return lower(x) == lower(y); });
}

}  // namespace

std::string_view name_of(Category category) {
  return kCategories[static_cast<size_t>(category)];
}

Category parse_category(std::string_view name) {
  for (size_t i = 0; i + 1 < kCategories.size(); ++i) {
    if (equal_ignoring_case(kCategories[i], name)) {
      return static_cast<Category>(i);
    }
  }
  // Before PyTorch 1.12 the category names were single words.
  constexpr std::array<std::pair<std::string_view, Category>, 5> kOld{
      {{"operator", Category::kCpuOp},
       {"runtime", Category::kCudaRuntime},
       {"memcpy", Category::kGpuMemcpy},
       {"memset", Category::kGpuMemset},
       {"async", Category::kAc2g}}};
  for (const auto& [old, category] : kOld) {
    if (equal_ignoring_case(old, name)) {
      return category;
    }
  }
  return Category::kOther;
}

bool is_runtime_call(Category category) {
  switch (category) {
    case Category::kCudaRuntime:
    case Category::kCudaDriver:
    case Category::kXpuRuntime:
    case Category::kXpuDriver:
    case Category::kMtiaRuntime:
    case Category::kPrivateUse1Runtime:
    case Category::kPrivateUse1Driver:
    case Category::kHipRuntime:
    case Category::kHipDriver:
    case Category::kGlowRuntime:
      return true;
    default:
      return false;
  }
}

std::string_view name_of(SyncKind kind) {
  return kSyncKinds[static_cast<size_t>(kind)];
}

SyncKind parse_sync_kind(std::string_view name) {
  const auto found = std::find(kSyncKinds.begin(), kSyncKinds.end(), name);
  return found == kSyncKinds.end() ? SyncKind::kOther
                                   : static_cast<SyncKind>(found - kSyncKinds.begin());
}

std::string_view name_of(Severity severity) {
  switch (severity) {
    case Severity::kNote:
      return "note";
    case Severity::kWarning:
      return "warning";
    case Severity::kError:
      return "error";
  }
  return "";
}

void add_diagnostic(std::vector<Diagnostic>& list,
                    Severity severity,
                    std::string message,
                    int64_t count) {
  for (Diagnostic& known : list) {
    if (known.severity == severity && known.message == message) {
      known.count += count;
      return;
    }
  }
  list.push_back({severity, std::move(message), count});
}

std::string_view Trace::category(const Event& event) const {
  return event.category == Category::kOther
             ? std::string_view(other_categories.at(event.other_category))
             : name_of(event.category);
}

template <typename T>
const T* Trace::row(const Event& event, ArgsKind kind, const GrowingArray<T>& table) const {
  if (event.detail_kind == kind) {
    return &table.at(event.detail);
  }
  if (event.detail_kind == ArgsKind::kText && texts.at(event.detail).kind == kind) {
    return &table.at(texts[event.detail].detail);
  }
  return nullptr;
}

const CollectiveArgs* Trace::collective(const Event& event) const {
  return row(event, ArgsKind::kCollective, collectives);
}
const ActionArgs* Trace::action(const Event& event) const {
  return row(event, ArgsKind::kAction, actions);
}
const HookArgs* Trace::hook(const Event& event) const {
  return row(event, ArgsKind::kHook, hooks);
}
const DeviceArgs* Trace::device(const Event& event) const {
  if (const CollectiveArgs* c = collective(event)) {
    return c->device == kNoIndex ? nullptr : &devices.at(c->device);
  }
  return row(event, ArgsKind::kDevice, devices);
}
const SyncArgs* Trace::sync(const Event& event) const {
  return row(event, ArgsKind::kSync, syncs);
}
const MemoryArgs* Trace::memory(const Event& event) const {
  return row(event, ArgsKind::kMemory, memory_events);
}
std::string_view Trace::args_json(const Event& event) const {
  return event.detail_kind == ArgsKind::kText ? std::string_view(texts.at(event.detail).json) : "";
}

uint32_t Trace::track(int64_t pid, int64_t tid) {
  Track ids;
  ids.pid = pid;
  ids.tid = tid;
  return track(ids);
}

uint32_t Trace::track(const Track& ids) {
  const IdKey pid{ids.pid_is_text, ids.pid_is_text ? ids.pid_text : ids.pid};
  const IdKey tid{ids.tid_is_text, ids.tid_is_text ? ids.tid_text : ids.tid};
  const auto [found, fresh] =
      track_index_.try_emplace({pid, tid}, static_cast<uint32_t>(tracks.size()));
  if (fresh) {
    tracks.push_back(ids);
  }
  return found->second;
}

Process& Trace::process(int64_t pid) {
  Track ids;
  ids.pid = pid;
  return process(ids);
}

Process& Trace::process(const Track& ids) {
  for (Process& p : processes) {
    if (p.pid_is_text == ids.pid_is_text &&
        (p.pid_is_text ? p.pid_text == ids.pid_text : p.pid == ids.pid)) {
      return p;
    }
  }
  Process made;
  made.pid = ids.pid;
  made.pid_text = ids.pid_text;
  made.pid_is_text = ids.pid_is_text;
  return processes.emplace_back(made);
}

uint8_t Trace::other_category(std::string_view name) {
  for (size_t i = 0; i < other_categories.size(); ++i) {
    if (other_categories[i] == name) {
      return static_cast<uint8_t>(i);
    }
  }
  if (other_categories.size() >= kMaxOtherCategories) {
    add_diagnostic(diagnostics, Severity::kNote,
                   "more than 255 unknown categories; the rest are read as 'other'");
    if (other_categories.size() == kMaxOtherCategories) {
      other_categories.emplace_back("other");
    }
    return kMaxOtherCategories;
  }
  other_categories.emplace_back(name);
  return static_cast<uint8_t>(other_categories.size() - 1);
}

uint32_t Trace::add_complete(
    Category category, std::string_view name, uint32_t track, Nanoseconds start, Nanoseconds end) {
  SHARDLENS_CHECK(end >= start, "an event ends before it starts");
  SHARDLENS_CHECK(track < tracks.size(), "an event is on a track that does not exist");
  Event event;
  event.start = start;
  event.duration = end - start;
  event.name = strings.intern(name);
  event.track = track;
  event.category = category;
  events.push_back(event);
  return static_cast<uint32_t>(events.size() - 1);
}

uint32_t Trace::add_collective(std::string_view name,
                               uint32_t track,
                               Nanoseconds start,
                               Nanoseconds end,
                               const CollectiveArgs& args) {
  const uint32_t index = add_complete(Category::kCommunication, name, track, start, end);
  events[index].detail_kind = ArgsKind::kCollective;
  events[index].detail = static_cast<uint32_t>(collectives.size());
  collectives.push_back(args);
  return index;
}

uint32_t Trace::add_action(uint32_t track, Nanoseconds time, const ActionArgs& args) {
  const uint32_t index =
      add_complete(Category::kShardlens, schedule::name_of(args.action.op), track, time, time);
  events[index].phase = EventPhase::kInstant;
  events[index].detail_kind = ArgsKind::kAction;
  events[index].detail = static_cast<uint32_t>(actions.size());
  actions.push_back(args);
  return index;
}

uint32_t Trace::add_hook(uint32_t track, Nanoseconds time, const HookArgs& args) {
  const uint32_t index =
      add_complete(Category::kShardlens, shardlens::name_of(args.hook.hook), track, time, time);
  events[index].phase = EventPhase::kInstant;
  events[index].detail_kind = ArgsKind::kHook;
  events[index].detail = static_cast<uint32_t>(hooks.size());
  hooks.push_back(args);
  return index;
}

void Trace::set_args(uint32_t event, std::string json) {
  Event& e = events.at(event);
  if (e.detail_kind == ArgsKind::kText) {
    texts.at(e.detail).json = std::move(json);
    return;
  }
  texts.push_back({std::move(json), e.detail_kind, e.detail});
  e.detail_kind = ArgsKind::kText;
  e.detail = static_cast<uint32_t>(texts.size() - 1);
}

std::optional<CollectiveKind> collective_kind(const Trace& trace, const Event& event) {
  if (const CollectiveArgs* args = trace.collective(event);
      args != nullptr && args->collective != kEmptyString) {
    return parse_collective(trace.strings.view(args->collective));
  }
  return parse_collective(trace.name(event));
}

}  // namespace shardlens::trace
