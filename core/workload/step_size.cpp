#include "core/workload/step_size.h"

#include <fmt/format.h>

#include "core/base/error.h"

namespace shardlens::plan {

void require_step_size(const Workload& workload, int64_t microbatches, int64_t most) {
  const auto each = static_cast<int64_t>(workload.operators.size());
  if (each > most / microbatches) {
    throw InputError("", fmt::format("{} microbatches of {} operators: expected at most {} "
                                     "operators in a step; use fewer, larger microbatches",
                                     microbatches, each, most));
  }
}

}  // namespace shardlens::plan
