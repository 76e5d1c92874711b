#include <fmt/format.h>

#include "profiler/record/device/device_tracer.h"

namespace shardlens::record {

std::string subscribe_failure(int code, std::string_view code_name, std::string_view other_tool) {
  constexpr int kMultipleSubscribers = 39;
  // CUPTI's text for a tool that did not say its name, such as compute-sanitizer.
  const bool anonymous = other_tool.empty() || other_tool == "<not provided>";
  if (code == kMultipleSubscribers) {
    return fmt::format(
        "no device records: {} records this process already, and CUPTI allows one user at a time; "
        "run without it (Nsight Systems, Nsight Compute, cuda-gdb, compute-sanitizer, PyTorch's "
        "profiler)",
        anonymous ? "another tool" : fmt::format("'{}'", other_tool));
  }
  return fmt::format(
      "no device records: CUPTI cannot be used ({}, error {}); is an NVIDIA driver loaded, as "
      "nvidia-smi shows?",
      code_name, code);
}

}  // namespace shardlens::record
