#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/hook.h"
#include "core/base/units.h"
#include "core/schedule/action.h"
#include "profiler/trace/model/string_table.h"

// Rows of a trace's side tables, which contain the arguments that only some events have.
namespace shardlens::trace {

// The side table that Event::detail points into. Call Trace::collective(), device(), … instead of
// reading it: an event may have more than one row.
enum class ArgsKind : uint8_t {
  kNone,
  kCollective,
  kAction,
  kHook,
  kDevice,
  kSync,
  kMemory,
  kText
};

inline constexpr uint32_t kNoIndex = 0xffffffffU;

// Arguments of a collective, read from the event itself: Shardlens's own collective events, NCCL
// kernels and record_param_comms.
struct CollectiveArgs {
  StringId collective = kEmptyString;  // "Collective name": "_allgather_base", …
  StringId dtype = kEmptyString;       // "Float", …
  StringId group = kEmptyString;       // "Process Group Name"
  StringId group_description = kEmptyString;
  StringId group_ranks = kEmptyString;      // "Process Group Ranks", text as written: "[0, 1]"
  UnitId unit = kNoUnit;                    // index into Trace::units; only in Shardlens's traces
  int32_t group_size = 0;                   // 0: not given
  uint32_t action = 0;                      // seq of the action that issued it; 0: none
  int64_t in_nelems = -1, out_nelems = -1;  // -1: not given
  int64_t sequence = -1;                    // number within its communicator, from 0; -1: not given
  int64_t comms_id = 0;  // "Comms Id", 64 bits: the same on all ranks of a collective; 0: not given
  Nanoseconds issued = 0;      // time of the host's call; 0: not given
  uint32_t device = kNoIndex;  // row of Trace::devices for its kernel; see Trace::device()
  bool emulated = false;
  friend bool operator==(const CollectiveArgs&, const CollectiveArgs&) = default;
};

// Units in `action` and `hook` are indices into Trace::units.
struct ActionArgs {
  uint32_t seq = 0;       // counts from 1 since the start of the run
  uint32_t hook_seq = 0;  // seq of the hook event that caused it; 0: not known
  schedule::Action action;
  friend bool operator==(const ActionArgs&, const ActionArgs&) = default;
};
struct HookArgs {  // of an event of kShardlens: a call of a hook
  uint32_t seq = 0;
  HookEvent hook;
  friend bool operator==(const HookArgs&, const HookArgs&) = default;
};

// How a kernel was launched. Only in traces made from Shardlens's spools; the Kineto reader leaves
// these arguments in the event's text. Equal rows are stored once.
struct LaunchArgs {
  uint32_t grid[3] = {0, 0, 0};
  uint16_t block[3] = {0, 0, 0};
  uint16_t registers = 0;       // per thread
  uint32_t shared_memory = 0;   // bytes, static and dynamic
  int32_t multiprocessors = 0;  // number on the device; 0: not known
  int32_t occupancy = -1;       // estimated, percent; -1: not known
  friend auto operator<=>(const LaunchArgs&, const LaunchArgs&) = default;
};

// Where a device event ran and how many bytes it moved. Any event that names a stream has such a
// row: kernels, copies, cuda_event, and host operators of Triton, whose arguments include `stream`.
// Equal rows are stored once.
struct DeviceArgs {
  int64_t bytes = -1;       // "bytes" of a copy or memset; -1: not given
  int64_t graph_node = -1;  // "graph node id"; -1: not launched by a CUDA graph
  int64_t graph = -1;       // "graph id"
  int32_t device = -1, context = -1, stream = -1;  // -1: not given
  uint32_t event = 0;                              // "event id" of a cuda_event; 0: none
  uint32_t launch = kNoIndex;                      // row of Trace::launches
  // The module that an annotation of the kernel names: "module_fqn", or "str" after "L.".
  StringId module = kEmptyString;
  bool backward = false;  // "autograd_phase" of the annotation is "backward"
  friend bool operator==(const DeviceArgs&, const DeviceArgs&) = default;
};

// The target of a synchronisation (category cuda_sync). `stream` is on its track's device.
enum class SyncKind : uint8_t {
  kOther,
  kStream,           // "Stream Sync": the host waits for `stream`
  kEvent,            // "Event Sync": the host waits for an event
  kStreamWaitEvent,  // "Stream Wait Event": `stream` waits for an event, the host does not
  kContext,          // "Context Sync": the host waits for the device
};
[[nodiscard]] std::string_view name_of(SyncKind kind);          // as in Kineto's files
[[nodiscard]] SyncKind parse_sync_kind(std::string_view name);  // kOther for an unknown name
struct SyncArgs {                                               // of an event of kCudaSync
  SyncKind kind = SyncKind::kOther;
  int32_t device = -1;
  int32_t stream = -1;          // -1: none or not given
  int32_t wait_on_stream = -1;  // stream on which the event was recorded
  uint32_t wait_on_record = 0;  // correlation of the awaited cudaEventRecord; 0: not given
  int64_t wait_on_event = -1;   // id of the awaited CUDA event; -1: not given
  friend bool operator==(const SyncArgs&, const SyncArgs&) = default;
};

// An allocation or a free, recorded as an instant named "[memory]": by PyTorch's profile_memory
// those of its caching allocator, by Shardlens's recorder those from the driver.
struct MemoryArgs {
  int64_t address = 0;
  int64_t bytes = 0;  // negative: freed
  // On the device, after this event. `total_allocated` is -1 in the driver's events, whose
  // `total_reserved` counts from the beginning of the recording.
  int64_t total_allocated = 0;
  int64_t total_reserved = 0;
  int32_t device_type = 0;  // c10::DeviceType: 0 CPU, 1 CUDA
  int32_t device = -1;      // -1: the host
  friend bool operator==(const MemoryArgs&, const MemoryArgs&) = default;
};

// Arguments as written in the file, where they were kept, together with the row that was read from
// them.
struct TextArgs {
  std::string json;  // an object
  ArgsKind kind = ArgsKind::kNone;
  uint32_t detail = kNoIndex;
};

}  // namespace shardlens::trace
