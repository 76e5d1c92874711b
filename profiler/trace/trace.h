#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/collective.h"
#include "core/base/hook.h"
#include "core/base/units.h"
#include "core/schedule/action.h"
#include "profiler/trace/string_table.h"

namespace shardlens::trace {

// What Kineto calls "cat", without regard to case; kOther keeps the text in
// Trace::other_categories.
enum class Category : uint8_t {
  kCpuOp,              // cpu_op
  kUserAnnotation,     // user_annotation: ranges of the host
  kGpuUserAnnotation,  // gpu_user_annotation: hull of a range's kernels, never busy time
  kKernel,
  kGpuMemcpy,
  kGpuMemset,
  kCudaRuntime,
  kCudaDriver,
  kCudaSync,
  kCudaEvent,
  kOverhead,
  kPythonFunction,
  kCommunication,  // communication: a collective on the track of its communicator (ours, CPU)
  kShardlens,      // shardlens: an action or a hook event of the schedule
  kTrace,          // Trace: the profiler's own span
  kAc2g,           // flow from a launch to its kernel
  kFwdBwd,         // flow from a forward operator to its backward
  kOther,
};
inline constexpr int kCategoryCount = 18;
[[nodiscard]] std::string_view name_of(Category category);
[[nodiscard]] Category parse_category(std::string_view name);  // kOther if none fits

enum class Phase : uint8_t { kComplete, kInstant, kFlowStart, kFlowEnd, kCounter };

// Which side table Event::detail points into.
enum class Detail : uint8_t { kNone, kCollective, kAction, kHook };

inline constexpr uint32_t kNoIndex = 0xffffffffU;

// One event. Half-open [start, start + duration) in nanoseconds since the epoch (or since the
// file's own zero, where it has no baseTimeNanoseconds and relative times). Instants, flows and
// counters have duration 0.
struct Event {
  Nanoseconds start = 0;
  Nanoseconds duration = 0;
  StringId name = kEmptyString;
  uint32_t track = 0;          // index into Trace::tracks
  uint32_t detail = kNoIndex;  // index into the table that `detail_kind` names
  uint32_t args = kNoIndex;    // index into Trace::raw_args: the args as written, where they were kept
  uint32_t correlation =
      0;  // args.correlation of launches and device events, or a flow's id; 0: none
  Category category = Category::kOther;
  Phase phase = Phase::kComplete;
  Detail detail_kind = Detail::kNone;
  uint8_t other_category = 0;  // kOther: index into Trace::other_categories

  [[nodiscard]] Nanoseconds end() const { return start + duration; }
};
static_assert(sizeof(Event) <= 40);

// Row of the timeline: a thread of the host, or (device, stream). Ids are integers or, seldom,
// strings ("Spans").
struct Track {
  int64_t pid = 0, tid = 0;
  StringId pid_text = kEmptyString, tid_text = kEmptyString;  // not empty: the id is this string
  bool pid_is_text = false, tid_is_text = false;
  StringId name = kEmptyString;  // thread_name
  std::optional<int64_t> sort_index;
};

struct Process {
  int64_t pid = 0;
  StringId pid_text = kEmptyString;
  bool pid_is_text = false;
  std::string name, labels;
  std::optional<int64_t> sort_index;
};

// Arguments of a collective: from the event itself (ours, NCCL kernels, record_param_comms).
struct CollectiveArgs {
  StringId collective = kEmptyString;  // "Collective name": "_allgather_base", …
  StringId dtype = kEmptyString;       // "Float", …
  StringId group = kEmptyString;       // "Process Group Name"
  StringId group_description = kEmptyString;
  StringId group_ranks = kEmptyString;      // "Process Group Ranks", text as written: "[0, 1]"
  UnitId unit = kNoUnit;                    // index into Trace::units; ours only
  int32_t group_size = 0;                   // 0: not given
  uint32_t action = 0;                      // seq of the action that issued it; 0: none
  int64_t in_nelems = -1, out_nelems = -1;  // -1: not given
  int64_t sequence = -1;                    // n-th of its communicator, from 0; -1: not given
  Nanoseconds issued = 0;                   // when the host called; 0: not given
  bool emulated = false;
  friend bool operator==(const CollectiveArgs&, const CollectiveArgs&) = default;
};

// Units in `action`, `hook` are indices into Trace::units.
struct ActionArgs {
  uint32_t seq = 0;       // from 1 since the start of the run
  uint32_t hook_seq = 0;  // of the hook event that caused it; 0: not known
  schedule::Action action;
  friend bool operator==(const ActionArgs&, const ActionArgs&) = default;
};
struct HookArgs {
  uint32_t seq = 0;
  HookEvent hook;
  friend bool operator==(const HookArgs&, const HookArgs&) = default;
};

struct ProcessGroup {
  std::string name, description, backend_config;
  std::vector<int64_t> ranks;
  int64_t size = 0;
  friend bool operator==(const ProcessGroup&, const ProcessGroup&) = default;
};

enum class Severity : uint8_t { kNote, kWarning, kError };
[[nodiscard]] std::string_view name_of(Severity severity);

// Something that was left out, repaired or doubtful; equal messages are counted, not repeated.
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

struct Metadata {
  std::string source;              // file it came from, for messages; not written
  std::optional<int64_t> rank;     // distributedInfo.rank, else from the file's name
  bool rank_is_from_name = false;  // not in the file
  std::optional<int64_t> world_size;
  std::string backend;               // "gloo", "nccl", "emulated"
  std::vector<ProcessGroup> groups;  // distributedInfo.pg_config
  Nanoseconds base_time = 0;         // baseTimeNanoseconds; already part of every Event::start
  std::string device_properties;     // JSON array, or ""
  std::string trace_name;
  std::map<std::string, std::string> other;  // further top-level keys, each as JSON text
  std::map<std::string, std::string> other_distributed;  // further keys of distributedInfo
};

// One rank's timeline.
//
// Layout   events in the order of the file (not sorted); arguments that only some events have are
// in side tables. Threads  const members from any thread.
class Trace {
 public:
  Metadata metadata;
  StringTable strings;
  std::vector<std::string> other_categories;
  std::vector<Process> processes;
  std::vector<Track> tracks;
  std::vector<Event> events;
  std::vector<CollectiveArgs> collectives;
  std::vector<ActionArgs> actions;
  std::vector<HookArgs> hooks;
  std::vector<std::string> raw_args;  // JSON objects, as written
  std::vector<std::string> units;  // FQN by UnitId ("" is the root); only ours
  std::vector<Diagnostic> diagnostics;

  [[nodiscard]] std::string_view name(const Event& event) const { return strings.view(event.name); }
  [[nodiscard]] std::string_view category(const Event& event) const;
  [[nodiscard]] const CollectiveArgs* collective(const Event& event) const;  // nullptr: it is none
  [[nodiscard]] const ActionArgs* action(const Event& event) const;
  [[nodiscard]] const HookArgs* hook(const Event& event) const;

  // Index of the track, made if new. Complexity: amortised O(1).
  uint32_t track(int64_t pid, int64_t tid);
  uint32_t track(const Track& ids);  // by the ids of `ids`, numbers or strings
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
  // `json`: an object, e.g. {"Input Dims": [[2, 3]]}; the writer adds it as it stands. On a
  // collective, action or hook it takes the place of what the writer would derive from the side
  // table.
  void set_args(uint32_t event, std::string json);

 private:
  // Linear probing over few tracks would be quadratic for traces with many threads.
  std::map<std::pair<std::string, std::string>, uint32_t> text_tracks_;
  std::map<std::pair<int64_t, int64_t>, uint32_t> number_tracks_;
};

// What a collective event stands for: kind from its arguments, else from its name; nullopt if
// neither tells.
[[nodiscard]] std::optional<CollectiveKind> collective_kind(const Trace& trace, const Event& event);

}  // namespace shardlens::trace
