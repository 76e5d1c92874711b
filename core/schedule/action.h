#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/base/units.h"

namespace shardlens::schedule {

// What an executor is told to do. Executors obey in order, on the thread that raised the hook, and decide nothing.
//
// [Note: What each op means to an executor]
// kAlloc          `buffer` gets storage (size from ShardLayout). Logical time is issue order.
// kFree           `buffer` is given back. Issued only once nothing later in issue order uses it; on CPU that is immediate.
// kCopyIn         sharded parameters of `unit` are cast to param_dtype (and, per-parameter layout, packed) into this rank's slice
//                 of `buffer`. Absent when the all-gather can read the shard itself (flat layout, no cast).
// kAllGather      all ranks' slices of `buffer` over `axis`. Input: the slice that kCopyIn wrote, or the local shard if there was none.
// kCopyOut        per-parameter layout: the gathered buffer is split into the unsharded parameters (kUnsharded).
// kUseFull        the unit's parameters become the unsharded tensors, with fresh views (see Views) when in forward.
// kUseShard       the unit's parameters become this rank's slices again.
// kReduceCopyIn   the unit's unsharded gradients are cast to reduce_dtype (and packed) into `buffer` (kReduceInput).
//                 With buffer kSubShard (reshard_after_forward = k): this rank's part of kUnsharded is copied into it.
// kReduceScatter  kReduceInput (or kUnshardedGrad where no copy-in was needed) of `unit` → `buffer` (kReduceOutput), over `axis`.
//                 A kReduceOutput that was not allocated anew holds a partial sum (all-reduce switched off): added to it.
// kAllReduce      in place on `buffer`, over `axis`.
// kStoreGrad      `buffer` (kReduceOutput, or the all-reduced gradient) is cast to the master dtype and added to, or becomes, the
//                 gradient of the unit's shard.
// kToHost/kToDevice  cpu_offload.
// kRecord         `event` is recorded on `stream`: complete when all that was issued on `stream` before it is.
// kStreamWait     work issued on `stream` from here on waits for `event`. On CPU the compute stream is the host thread: it blocks.
// kHostWait       the host blocks until `event` is complete.
enum class Op : uint8_t {
  kAlloc, kFree, kCopyIn, kAllGather, kCopyOut, kUseFull, kUseShard, kReduceCopyIn, kReduceScatter, kAllReduce,
  kStoreGrad, kToHost, kToDevice, kRecord, kStreamWait, kHostWait,
};
inline constexpr int kOpCount = 16;

enum class Stream : uint8_t { kCompute, kCopyIn, kAllGather, kReduceScatter, kAllReduce, kHostCopy };
inline constexpr int kStreamCount = 6;

// Why an action was issued; travels into the trace, so that attribution is read, not guessed.
enum class Cause : uint8_t { kOwn, kForwardPrefetch, kBackwardPrefetch, kExplicitPrefetch, kLimiter, kUser, kBackwardEnd };
inline constexpr int kCauseCount = 7;

// Mesh axis that a collective runs over. kSubShard: the smaller mesh of reshard_after_forward = k.
enum class Axis : uint8_t { kNone, kShard, kReplicate, kSubShard };

enum class BufferKind : uint8_t {
  kNone,
  kUnsharded,      // param_dtype, padded_numel (flat: the flat parameter; gathered in place)
  kGathered,       // per-parameter layout only: all-gather output, before copy-out
  kSubShard,       // the larger shard kept after forward when reshard_after_forward = k
  kUnshardedGrad,  // param_dtype, padded_numel; made by autograd, so never kAlloc'ed; freed by the schedule
  kReduceInput,    // reduce_dtype, padded_numel
  kReduceOutput,   // reduce_dtype, shard_numel
};

inline constexpr int kBufferKindCount = 7;

using EventId = uint32_t;
inline constexpr EventId kNoEvent = 0xffffffffU;

// `generation` counts the allocations of (kind, unit) since the schedule was made, so that a buffer is named uniquely.
struct BufferId {
  BufferKind kind = BufferKind::kNone;
  UnitId unit = kNoUnit;
  uint32_t generation = 0;
  friend bool operator==(const BufferId&, const BufferId&) = default;
};

struct Action {
  Op op = Op::kAlloc;
  Stream stream = Stream::kCompute;
  Axis axis = Axis::kNone;
  Cause cause = Cause::kOwn;
  UnitId unit = kNoUnit;
  BufferId buffer;
  EventId event = kNoEvent;
  friend bool operator==(const Action&, const Action&) = default;
};
static_assert(std::is_trivially_copyable_v<Action> && sizeof(Action) <= 32);

using ActionList = std::vector<Action>;

// "all_gather", "compute", "forward_prefetch", "unsharded", "shard": traces, JSON, messages. parse_* accept the same.
[[nodiscard]] std::string_view name_of(Op op);
[[nodiscard]] std::string_view name_of(Stream stream);
[[nodiscard]] std::string_view name_of(Cause cause);
[[nodiscard]] std::string_view name_of(Axis axis);
[[nodiscard]] std::string_view name_of(BufferKind kind);
[[nodiscard]] std::optional<Op> parse_op(std::string_view name);
[[nodiscard]] std::optional<Stream> parse_stream(std::string_view name);
[[nodiscard]] std::optional<Cause> parse_cause(std::string_view name);
[[nodiscard]] std::optional<Axis> parse_axis(std::string_view name);
[[nodiscard]] std::optional<BufferKind> parse_buffer_kind(std::string_view name);

}  // namespace shardlens::schedule
