#pragma once

#include <string>
#include <vector>

#include "core/plan/resolved_plan.h"

namespace shardlens::plan {

// The lines of a PyTorch program that apply the plan to `model` on `device`: init_device_mesh,
// parallelize_module of the layers that the axis `tensor` divides, activation checkpoints,
// fully_shard of the units; what else the program's step needs (context_parallel, loss_parallel) as
// comments, and last torchtitan's degrees. The names are those of torch.distributed and its
// modules.
//
// Errors  UsageError for units that are not of fully_shard, or whose parameters are on several
//         meshes.
// Source  torch.distributed.tensor.parallel, torch.distributed.fsdp, torch 2.11; torchtitan 0.2.2,
//         models/llama3/infra/parallelize.py and config/job_config.py.
[[nodiscard]] std::vector<std::string> pytorch_program(const ResolvedPlan& plan);

}  // namespace shardlens::plan
