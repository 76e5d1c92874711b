#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/base/hook.h"
#include "core/base/units.h"
#include "core/mesh/mesh.h"

namespace shardlens::schedule {

// An operation that an executor performs. Executors perform actions in order, on the thread that
// raised the hook, and make no decisions.
//
// [Note: Streams of an action] `stream` is the stream on which the work is issued; it runs after
// all earlier work of that stream. kAlloc and kFree name the streams that use the buffer first and
// last. Host-side ops (kUseFull, kUseShard) count as compute. "Logical" below means in issue order:
// the allocator determines when the bytes can be reused.
enum class Op : uint8_t {
  // `buffer` gets storage (size from ShardLayout). Logical.
  kAlloc,
  // `buffer` is freed: no later action uses it. Logical; immediate on CPU.
  kFree,
  // The sharded parameters of `unit` are cast to param_dtype (and, per-parameter layout, packed)
  // into this rank's slice of `buffer`. Omitted if the all-gather can read the shard itself (flat
  // layout without a cast). Under no_shard with a cast, and in a group of one rank, the slice is
  // the whole buffer, and no all-gather follows.
  kCopyIn,
  // Gathers all ranks' slices of `buffer` over `group`. Input: the slice that kCopyIn wrote or, if
  // there was no kCopyIn, the local shard (over the group of the kept sub-mesh, the buffer
  // kSubShard).
  kAllGather,
  // Per-parameter layout: kGathered is split into the unsharded parameters (`buffer`,
  // kUnsharded). With `buffer` kSubShard (reshard_after_forward = k): this rank's part of
  // kUnsharded is copied into it.
  kCopyOut,
  // The unit's parameters become the unsharded tensors. In forward this makes new views, even if
  // the parameters are unsharded already. FSDP1 issues it before the wait for the all-gather.
  kUseFull,
  // The unit's parameters become this rank's slices again.
  kUseShard,
  // The unit's unsharded gradients are cast to reduce_dtype (and packed) into `buffer`,
  // kReduceInput. If the buffer was not newly allocated (accumulation without sync), they are added
  // to it. With `buffer` kReduceOutput: kReduceInput is copied into it (a group of one rank).
  kReduceCopyIn,
  // Reduce-scatters kReduceInput (kUnshardedGrad if no copy-in was needed) of `unit` into `buffer`,
  // kReduceOutput, over `group`. If the buffer was not newly allocated, it contains a partial sum
  // (all-reduce switched off), and the result is added to it.
  kReduceScatter,
  // In place on `buffer`, over `group`.
  kAllReduce,
  // `buffer` (kReduceOutput, or the all-reduced gradient) is cast to the master dtype and added
  // to, or becomes, the gradient of the unit's shard.
  kStoreGrad,
  // kStoreGrad with cpu_offload: the gradient of the shard is on the host.
  kToHost,
  // kCopyIn with cpu_offload: the shard is on the host.
  kToDevice,
  // `event` is recorded on `stream`. It completes when all earlier work of `stream` has completed.
  // An event may be recorded many times; a wait refers to its last recording.
  kRecord,
  // Later work on `stream` waits for `event`. On CPU the compute stream is the host thread, which
  // blocks.
  kStreamWait,
  // The host blocks until `event` is complete.
  kHostWait,
  // With optimizer_in_backward: the optimizer updates the shard of `unit` by its gradient, which
  // kStoreGrad has just made from `buffer`, and the gradient is dropped. Its bytes are those of
  // `buffer` if that was not cast.
  kStep,
};
inline constexpr int kOpCount = 17;

enum class Stream : uint8_t {  // where an action runs
  kCompute,
  kCopyIn,
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kHostCopy
};
inline constexpr int kStreamCount = 6;

// Why an action was issued. Recorded in the trace, so that analyses need not infer it.
enum class Cause : uint8_t {
  kOwn,
  kForwardPrefetch,
  kBackwardPrefetch,
  kExplicitPrefetch,
  kLimiter,
  kUser,
  kBackwardEnd
};
inline constexpr int kCauseCount = 7;

enum class BufferKind : uint8_t {  // which tensor of a unit an action is about
  kNone,
  kUnsharded,      // param_dtype, padded_numel (flat: the flat parameter; gathered in place)
  kGathered,       // per-parameter layout only: all-gather output, before copy-out
  kSubShard,       // the larger shard kept after forward when reshard_after_forward = k
  kUnshardedGrad,  // param_dtype, padded_numel; allocated by autograd, freed by kFree
  kReduceInput,    // reduce_dtype, padded_numel
  kReduceOutput,   // reduce_dtype, shard_numel
};

inline constexpr int kBufferKindCount = 7;

using EventId = uint32_t;
inline constexpr EventId kNoEvent = 0xffffffffU;

// `generation` counts the allocations of (kind, unit) since the schedule was created, from 0, so
// that each BufferId is unique.
struct BufferId {
  BufferKind kind = BufferKind::kNone;
  UnitId unit = kNoUnit;
  uint32_t generation = 0;
  friend bool operator==(const BufferId&, const BufferId&) = default;
};

struct Action {  // one thing that the executor does
  Op op = Op::kAlloc;
  Stream stream = Stream::kCompute;
  mesh::GroupId group = mesh::kNoGroup;  // of a collective: one of the plan's groups
  Cause cause = Cause::kOwn;
  UnitId unit = kNoUnit;
  BufferId buffer;
  EventId event = kNoEvent;
  // Of a reduction and its buffers: the gradients that it carries; kAll, kLast or kOthers.
  Grads grads = Grads::kAll;
  friend bool operator==(const Action&, const Action&) = default;
};
static_assert(std::is_trivially_copyable_v<Action> && sizeof(Action) <= 32);

using ActionList = std::vector<Action>;

// "all_gather", "compute", "forward_prefetch", "unsharded", "shard": used in traces, JSON and
// messages. parse_* accept the same names.
[[nodiscard]] std::string_view name_of(Op op);
[[nodiscard]] std::string_view name_of(Stream stream);
[[nodiscard]] std::string_view name_of(Cause cause);
[[nodiscard]] std::string_view name_of(BufferKind kind);
[[nodiscard]] std::optional<Op> parse_op(std::string_view name);
[[nodiscard]] std::optional<Stream> parse_stream(std::string_view name);
[[nodiscard]] std::optional<Cause> parse_cause(std::string_view name);
[[nodiscard]] std::optional<BufferKind> parse_buffer_kind(std::string_view name);

}  // namespace shardlens::schedule
