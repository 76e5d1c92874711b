#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/collective.h"
#include "core/base/units.h"
#include "sim/hardware/hardware_spec.h"

namespace shardlens::sim {

// What NCCL's collectives within a node gain from buffers in symmetric memory, as measured
// constants.
//
// [Note: Transports] kSymmetric: all-gathers and reduce-scatters run NCCL's symmetric kernels.
// Their speed-ups were measured on eight H100 (NVIDIA/Megatron-LM pull request 5596: device time of
// NCCL's kernels, the shortest of all ranks, ring off and on). From 256 MiB on they are as fast as
// rings (Megatron-LM issue 5655). Between sizes: linear over log2(bytes); below 2 MiB as at 2 MiB.
// The switches copy and add for them, so that they need fewer SMs than a ring has channels, and
// slow compute less. kCopyEngine: with NCCL's zero-CTA policy, all-gathers are copies by the GPU's
// copy engines, which need no SMs (PyTorch pull request 176613); reduce-scatters are symmetric
// kernels (Megatron-LM pull request 5858). No published measurement has the time of such an
// all-gather without compute; it is taken to be a ring's.

// How many times as fast as with rings a collective of `bytes` is (its larger message).
[[nodiscard]] double transport_speedup(Transport transport, CollectiveKind kind, Bytes bytes);
// SMs that large collectives occupy. Those of symmetric kernels are of a group of all GPUs of a
// node. All-reduces and all-to-alls stay rings; compute beside them is slowed as beside the others.
// Source  NCCL src/sym_kernels.cc@5067397: queryModel_lsa for the kernels AllGather_STMC and
//         ReduceScatter_LDMC, which ncclSymkPickKernel prefers; the same in 2.28.7 and 2.29.7.
[[nodiscard]] int64_t sms_of(const HardwareSpec& spec);
// Whether copy engines move the data, so that the collective needs no SMs.
[[nodiscard]] bool on_copy_engines(Transport transport, CollectiveKind kind);

// "ring", "symmetric", "copy_engine".
[[nodiscard]] std::string_view name_of(Transport transport);
[[nodiscard]] std::optional<Transport> transport_named(std::string_view name);
// Why machines of the spec do not have it: "symmetric: measured only on …"; "": they have.
[[nodiscard]] std::string refusal_of(Transport transport, const HardwareSpec& spec);

}  // namespace shardlens::sim
