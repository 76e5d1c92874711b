#pragma once

#include <cstdint>
#include <string>

#include "core/workload/workload_builder.h"

// Parts of forwards and trees that several families have in common.
namespace shardlens::plan {

// The class that transformers' ACT2FN makes for a name.
[[nodiscard]] std::string activation_type(const std::string& name);

// A norm of `features`. `residual`: its input is used again after it, so that two gradients are
// summed there.
void rms_norm(WorkloadBuilder& build,
              const std::string& module,
              int64_t features,
              bool residual = true);
void layer_norm(WorkloadBuilder& build,
                const std::string& module,
                int64_t features,
                bool residual = true);

}  // namespace shardlens::plan
