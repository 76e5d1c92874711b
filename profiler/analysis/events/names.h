#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/collective.h"
#include "core/base/units.h"

// Interprets the names of operators, kernels and ranges.
namespace shardlens::analysis {

// A kernel that communicates, by its name: NCCL and RCCL (old and new names, symmetric kernels),
// PyTorch's symmetric memory, custom and fused all-reduces, DeepEP, NVSHMEM, oneCCL, userbuffers.
struct CommunicationKernel {
  std::optional<CollectiveKind> kind;  // nullopt: not in the name
};
[[nodiscard]] std::optional<CommunicationKernel> communication_kernel(std::string_view name);

// A copy between two devices by the copy engine ("Memcpy PtoP (Device -> Device)").
[[nodiscard]] bool is_peer_copy(std::string_view name);

// A host operator that communicates, or copies between devices, on the device: "c10d::…",
// "_c10d_functional::…", "symm_mem::…" (PyTorch's symmetric memory).
[[nodiscard]] bool is_collective_operator(std::string_view name);

// Bytes of one element with the dtype that Kineto ("Float", "Float8_e4m3fn") or C++
// ("c10::BFloat16") names; nullopt for any other name.
[[nodiscard]] std::optional<Bytes> element_size(std::string_view name);

// "gloo:all_gather", "nccl:_reduce_scatter_base": an annotation of c10d around a collective.
[[nodiscard]] bool is_c10d_annotation(std::string_view name);

// [Note: Leaf operators] On the CPU an operator and the helpers that it calls (views, allocation,
// resolve_conj, copy_) are all recorded, and even aten::mm calls a helper. So a leaf is an operator
// that contains no other operators except helpers. Autograd nodes ("AddmmBackward0",
// "autograd::engine::…") do not count as operators, because hooks that wait run inside them.
[[nodiscard]] bool is_operator(std::string_view name);
[[nodiscard]] bool is_helper_operator(std::string_view name);
// "c10d::…", "record_param_comms", "fsdp::…", "…wait_tensor".
[[nodiscard]] bool is_c10d_operator(std::string_view name);
// What DTensor does around a collective: "Redistribute", "RedistributeBackward".
[[nodiscard]] bool is_redistribution(std::string_view name);

// "FSDP::all_gather (layers.3)" (FSDP2 and Shardlens), "FullyShardedDataParallel._pre_forward"
// (FSDP1, whose ranges contain no unit name).
struct FsdpRange {
  std::string_view what;                // "all_gather"; "_pre_forward"
  std::optional<std::string_view> fqn;  // nullopt: names no unit
  // "FSDP::all_gather (layers.3) [pg=4]", of a unit with several groups of parameters: the ranks of
  // the group; 0: not named.
  int64_t ranks = 0;
  bool is_fsdp1 = false;
  // Whether the range contains only FSDP's own work: true except for FSDP1's "forward", which
  // contains the module's forward.
  [[nodiscard]] bool is_own_work() const { return !is_fsdp1 || what != "forward"; }
};
[[nodiscard]] std::optional<FsdpRange> parse_fsdp_range(std::string_view name);

// A unit's name without the parts that PyTorch's wrappers add to it (checkpoint_wrapper,
// torch.compile, FSDP1): "layers.0" for "layers.0._checkpoint_wrapped_module". A unit of several
// modules has several names, with ", " between them.
[[nodiscard]] std::string without_wrappers(std::string_view fqn);

// A call in which the host waits for the device: "cudaStreamSynchronize", "hipEventSynchronize",
// "zeEventHostSynchronize", "aclrtSynchronizeStream", …
[[nodiscard]] bool is_host_wait(std::string_view name);

// A call that launches a whole graph: "cudaGraphLaunch_v10000", "hipGraphLaunch".
[[nodiscard]] bool is_graph_launch(std::string_view name);

// k of "ProfilerStep#k".
[[nodiscard]] std::optional<int64_t> parse_profiler_step(std::string_view name);

}  // namespace shardlens::analysis
