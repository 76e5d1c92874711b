#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/base/units.h"

namespace shardlens::trace {

// Names in exports of Nsight Systems, as Kineto has them.

// "cudaLaunchKernel" of "cudaLaunchKernel_ptsz_v7000".
[[nodiscard]] std::string_view without_version(std::string_view call);

// The parts of an NVTX range's name by torch's emit_nvtx: "aten::mm, seq = 3, op_id = 5, sizes =
// [[2, 3]]".
struct NvtxRange {
  std::string_view name;   // "aten::mm"; of other ranges, all of it
  std::string_view sizes;  // "[[2, 3]]", or ""
};
[[nodiscard]] NvtxRange parse_nvtx(std::string_view text);
// The number of a range around a step, "step 12", "iteration_12", "train_step#12"; nullopt: another
// range.
[[nodiscard]] std::optional<int64_t> step_of_range(std::string_view name);

// Names for the numbers of copies and kinds of memory: "Memcpy HtoD (Pinned -> Device)", "Memset
// (Device)".
[[nodiscard]] std::string copy_name(int64_t copy_kind, int64_t source, int64_t destination);
[[nodiscard]] std::string memset_name(int64_t memory);

}  // namespace shardlens::trace
