#pragma once

#include <cstdint>

#include "core/model/model_config.h"
#include "core/workload/workload_builder.h"

namespace shardlens::plan {

// What inductor makes of a layer of experts that transformers runs (grouped_mm_experts_forward),
// torch 2.11: tests/tools/inductor_moe.py records it. Products stay kernels of their own.

// Whether the current module is such a layer.
[[nodiscard]] bool compiles_experts(const WorkloadBuilder& build);

// The router's scores of each row, the choice of its experts, and their order.
void compiled_scores(WorkloadBuilder& build, const ModelConfig::Experts& experts);

// The layer without its router. `biased`: products with biases and a clamped gate, those of
// gpt_oss. `wide`: the experts' weights are fp32 when they multiply.
void compiled_experts(WorkloadBuilder& build,
                      const ModelConfig::Experts& experts,
                      int64_t hidden,
                      bool biased,
                      bool wide);

}  // namespace shardlens::plan
