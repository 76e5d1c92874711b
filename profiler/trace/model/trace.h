#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/collective.h"
#include "core/base/units.h"
#include "profiler/trace/model/event_args.h"
#include "profiler/trace/model/growing_array.h"
#include "profiler/trace/model/recorded_action.h"
#include "profiler/trace/model/sharded_parameter.h"
#include "profiler/trace/model/string_table.h"

namespace shardlens::trace {

// Kineto's "cat", compared without regard to case; for kOther, the text is in
// Trace::other_categories.
enum class Category : uint8_t {
  kCpuOp,              // cpu_op
  kUserAnnotation,     // user_annotation: ranges of the host
  kGpuUserAnnotation,  // gpu_user_annotation: span of a range's kernels, not busy time
  kKernel,
  kGpuMemcpy,
  kGpuMemset,
  kCudaRuntime,
  kCudaDriver,
  kCudaSync,
  kCudaEvent,
  kXpuRuntime,
  kXpuDriver,
  kMtiaRuntime,
  kPrivateUse1Runtime,  // privateuse1_runtime: of a device whose backend is not PyTorch's own
  kPrivateUse1Driver,
  kHipRuntime,
  kHipDriver,
  kGlowRuntime,
  kOverhead,
  kPythonFunction,
  kCommunication,  // communication: a collective on its communicator's track (Shardlens, CPU)
  kShardlens,      // shardlens: an action or a hook event of the schedule
  kTrace,          // Trace: the profiler's own span
  kAc2g,           // flow from a launch to its kernel
  kFwdBwd,         // flow from a forward operator to its backward
  kOther,
};
inline constexpr int kCategoryCount = 26;
[[nodiscard]] std::string_view name_of(Category category);
[[nodiscard]] Category parse_category(std::string_view name);  // kOther for an unknown name
// Whether its events are calls of a device's runtime or driver: cuda_runtime, xpu_driver, …
[[nodiscard]] bool is_runtime_call(Category category);

enum class EventPhase : uint8_t { kComplete, kInstant, kFlowStart, kFlowEnd, kCounter };

// One event. Half-open [start, start + duration) in nanoseconds since the epoch (or since the
// file's own zero, if it has relative times and no baseTimeNanoseconds). Instants, flows and
// counters have duration 0.
struct Event {
  Nanoseconds start = 0;
  Nanoseconds duration = 0;
  StringId name = kEmptyString;
  uint32_t track = 0;          // index into Trace::tracks
  uint32_t detail = kNoIndex;  // index into the table given by `detail_kind`
  // args."External id". An operator's own id; for a launch and a device event, the id of the
  // operator in which they were launched; 0: none.
  uint32_t external_id = 0;
  // args.correlation of launches and device events, or a flow's id; 0: none.
  uint32_t correlation = 0;
  Category category = Category::kOther;
  EventPhase phase = EventPhase::kComplete;
  ArgsKind detail_kind = ArgsKind::kNone;
  uint8_t other_category = 0;  // kOther: index into Trace::other_categories

  [[nodiscard]] Nanoseconds end() const { return start + duration; }
};
static_assert(sizeof(Event) <= 40);

// A row of the timeline: a thread of the host, or (device, stream). Ids are integers or, rarely,
// strings ("Spans").
struct Track {
  int64_t pid = 0, tid = 0;
  StringId pid_text = kEmptyString, tid_text = kEmptyString;  // not empty: the id is this string
  bool pid_is_text = false, tid_is_text = false;
  StringId name = kEmptyString;  // thread_name
  std::optional<int64_t> sort_index;
};

struct Process {  // name and position of a process in the timeline
  int64_t pid = 0;
  StringId pid_text = kEmptyString;
  bool pid_is_text = false;
  std::string name, labels;
  std::optional<int64_t> sort_index;
};

struct ProcessGroup {  // a communicator of torch.distributed
  std::string name, description, backend_config;
  std::vector<int64_t> ranks;
  int64_t size = 0;
  friend bool operator==(const ProcessGroup&, const ProcessGroup&) = default;
};

enum class Severity : uint8_t { kNote, kWarning, kError };
[[nodiscard]] std::string_view name_of(Severity severity);

// Something that was left out, repaired or uncertain; equal messages are counted, not repeated.
struct Diagnostic {
  Severity severity = Severity::kWarning;
  std::string message;
  int64_t count = 1;
  friend bool operator==(const Diagnostic&, const Diagnostic&) = default;
};
void add_diagnostic(std::vector<Diagnostic>& list,
                    Severity severity,
                    std::string message,
                    int64_t count = 1);

struct Metadata {                  // what a trace says about its run
  std::string source;              // file, for messages; not written
  std::optional<int64_t> rank;     // distributedInfo.rank, else from the file's name
  bool rank_is_from_name = false;  // the file's contents have no rank
  std::optional<int64_t> world_size;
  std::string backend;               // "gloo", "nccl", "emulated", "simulated"
  std::vector<ProcessGroup> groups;  // distributedInfo.pg_config
  Nanoseconds base_time = 0;         // baseTimeNanoseconds; already part of every Event::start
  std::string device_properties;     // JSON array, or ""
  std::string trace_name;
  // What the recording lost or left out, according to the recorder ("shardlens"."notes"). When a
  // file is read, these are also in Trace::diagnostics.
  std::vector<Diagnostic> notes;
  std::map<std::string, std::string> other;  // further top-level keys, each as JSON text
  std::map<std::string, std::string> other_distributed;  // further keys of distributedInfo

  [[nodiscard]] bool simulated() const { return backend == "simulated"; }
};

// One rank's timeline.
//
// Layout      events in the order of the file (not sorted). Arguments that only some events have
//             are in side tables, which are not indexed by event: call collective(event),
//             device(event), sync(event), memory(event), action(event), hook(event) or
//             args_json(event), each nullptr or "" for an event that has none.
// Threads     const members from any thread.
class Trace {
 public:
  Metadata metadata;
  StringTable strings;
  std::vector<std::string> other_categories;
  std::vector<Process> processes;
  std::vector<Track> tracks;
  GrowingArray<Event> events;
  GrowingArray<CollectiveArgs> collectives;
  GrowingArray<ActionArgs> actions;
  GrowingArray<HookArgs> hooks;
  GrowingArray<DeviceArgs> devices;
  GrowingArray<LaunchArgs> launches;
  GrowingArray<SyncArgs> syncs;
  GrowingArray<MemoryArgs> memory_events;
  std::vector<TextArgs> texts;
  std::vector<std::string> units;  // FQN by UnitId ("": the root); only in Shardlens's traces
  // Name by Action::group; only in Shardlens's traces.
  std::vector<std::string> groups;
  // What PyTorch's FSDP2 issued, by start; only in run directories of shardlens.record.
  std::vector<RecordedAction> recorded_actions;
  // Those that the program gathers itself, in the model's order; only in run directories of
  // shardlens.record, and where a plan was given.
  std::vector<ShardedParameter> sharded_parameters;
  std::vector<Diagnostic> diagnostics;

  [[nodiscard]] std::string_view name(const Event& event) const { return strings.view(event.name); }
  [[nodiscard]] std::string_view category(const Event& event) const;
  // "none": no group, or one whose name is not known.
  [[nodiscard]] std::string_view group_name(mesh::GroupId group) const {
    return group < groups.size() ? std::string_view(groups[group]) : "none";
  }
  // nullptr: not a collective.
  [[nodiscard]] const CollectiveArgs* collective(const Event& event) const;
  [[nodiscard]] const ActionArgs* action(const Event& event) const;
  [[nodiscard]] const HookArgs* hook(const Event& event) const;
  [[nodiscard]] const DeviceArgs* device(const Event& event) const;  // also for NCCL kernels
  [[nodiscard]] const SyncArgs* sync(const Event& event) const;
  [[nodiscard]] const MemoryArgs* memory(const Event& event) const;
  // The arguments as written ("Input Dims", …), if kept by ReadOptions::keep_args or set_args();
  // otherwise "".
  [[nodiscard]] std::string_view args_json(const Event& event) const;

  // Index of the track, which is created if it is new. Complexity: amortised O(1).
  uint32_t track(int64_t pid, int64_t tid);
  uint32_t track(const Track& ids);  // uses only the ids of `ids`, numbers or strings
  Process& process(int64_t pid);
  Process& process(const Track& ids);
  uint8_t other_category(std::string_view name);  // the 255th and later share one entry, "other"

  // Builders, for the recorder and for tests; each appends one event and returns its index.
  uint32_t add_complete(
      Category category, std::string_view name, uint32_t track, Nanoseconds start, Nanoseconds end);
  uint32_t add_collective(std::string_view name,
                          uint32_t track,
                          Nanoseconds start,
                          Nanoseconds end,
                          const CollectiveArgs& args);
  uint32_t add_action(uint32_t track, Nanoseconds time, const ActionArgs& args);  // named by its op
  uint32_t add_hook(uint32_t track, Nanoseconds time, const HookArgs& args);  // named by its hook
  // `json`: an object, e.g. {"Input Dims": [[2, 3]]}; the writer writes it unchanged, instead of
  // the arguments that it would derive from the side tables.
  void set_args(uint32_t event, std::string json);

 private:
  // Row of a side table, or nullptr.
  template <typename T>
  const T* row(const Event& event, ArgsKind kind, const GrowingArray<T>& table) const;

  struct IdKey {
    bool is_text;
    int64_t value;  // the number, or the StringId of the text
    friend auto operator<=>(const IdKey&, const IdKey&) = default;
  };
  std::map<std::pair<IdKey, IdKey>, uint32_t> track_index_;
};

// The kind of a collective event, from its arguments, else from its name; nullopt if neither
// contains it.
[[nodiscard]] std::optional<CollectiveKind> collective_kind(const Trace& trace, const Event& event);

}  // namespace shardlens::trace
