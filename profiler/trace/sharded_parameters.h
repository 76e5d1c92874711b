#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/plan/resolved_plan.h"
#include "profiler/trace/model/sharded_parameter.h"

namespace shardlens::trace {

// The parameters that the program gathers itself, in the model's order, as run.json (as text) lists
// them; empty if it lists none, or not all of it can be read.
[[nodiscard]] std::vector<ShardedParameter> sharded_parameters_of_run(std::string_view run_json);

// Those of a plan, for traces of a program that gathers by other means than FSDP; empty if the plan
// divides parameters along other axes than those of data.
[[nodiscard]] std::vector<ShardedParameter> sharded_parameters_of_plan(
    const plan::ResolvedPlan& plan);

// The block that a parameter is in, the unit that programs shard by: "layers.0" of
// "layers.0.mlp.up.weight"; "": none of a list of modules.
[[nodiscard]] std::string block_of_parameter(std::string_view name);

}  // namespace shardlens::trace
