#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "core/model/step_workload.h"
#include "core/plan/resolve.h"
#include "core/plan/unit_sizes.h"
#include "core/schedule/ledger.h"
#include "core/schedule/planned/planned.h"
#include "sim/cost/gpu_cost_model.h"
#include "sim/engine/step_costs.h"
#include "sim/hardware/hardware_spec.h"
#include "sim/scenario/traced_plan.h"

namespace shardlens::sim {
namespace {

struct TracedProgram {
  plan::ResolvedPlan plan;
  plan::Workload workload;
};

TracedProgram traced_program(plan::Program program, const std::string& keys = "") {
  const plan::ModelConfig config = plan::parse_model_config(
      R"({"model_type": "llama", "hidden_size": 128, "num_attention_heads": 4,
          "num_key_value_heads": 2, "intermediate_size": 384, "num_hidden_layers": 3,
          "vocab_size": 512, "max_position_embeddings": 1024})",
      "config.json");
  const std::string text = R"({"version": 1, "dialect": "fsdp2", "layout": "per_parameter",
      "forward_prefetch": 1, "units": [{"modules": "model.layers.*"}, {"modules": ""}],
      "mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32"})";
  TracedProgram out{
      plan::resolve(plan::parse_plan(text + keys + "}", "plan.json"), plan::module_tree(config), 8),
      {}};
  out.workload =
      plan::step_workload(config, out.plan, {.batch = 1, .seq = 128, .program = program});
  return out;
}

// A traced step has no streams of copies: what is packed, unpacked and allocated is on compute.
TEST(TracedStepCosts, CopiesAndAllocatesWhereComputeRuns) {
  const TracedProgram traced = traced_program(plan::Program::kSimpleFsdp);
  schedule::Ledger ledger(schedule::unit_specs(traced.plan),
                          schedule::schedule_options(traced.plan, true));
  int copies = 0;
  for (const schedule::PlannedAction& each :
       schedule::planned_step(traced.workload, traced.plan, 1, 2, true).actions) {
    const Result<void> done = ledger.consume(each.action);
    ASSERT_TRUE(done.ok()) << done.message();
    if (each.action.op == schedule::Op::kCopyIn || each.action.op == schedule::Op::kAlloc) {
      EXPECT_EQ(each.action.stream, schedule::Stream::kCompute);
      ++copies;
    }
  }
  EXPECT_TRUE(ledger.finish().ok());
  EXPECT_GT(copies, 0);
}

// aten._to_copy of the gradients, then torch.cat: the second one reads and writes 4 bytes each.
TEST(TracedStepCosts, GradientsAreConvertedAndThenPacked) {
  const TracedProgram traced = traced_program(plan::Program::kSimpleFsdp);
  const GpuCostModel model(load_hardware("8xH100"));
  const auto sizes = plan::unit_sizes(traced.plan);
  const auto apart = unit_costs(traced.plan, sizes, model, plan::Program::kGraphTrainer);
  const auto together = unit_costs(traced.plan, sizes, model, plan::Program::kTorchtitan03);
  for (size_t unit = 0; unit < sizes.size(); ++unit) {
    const Bytes packed = sizes[unit].reduced_of(Grads::kAll).full * 4;
    EXPECT_EQ(apart[unit].reduce_copy_in - together[unit].reduce_copy_in,
              model.copy(packed, packed));
  }
}

// tensor.div_(reduction_divide_factor) before the reduce-scatter, of fp32 gradients.
TEST(TracedStepCosts, SimpleFsdpDividesTheGradientsOfDividedExperts) {
  const plan::ModelConfig config = plan::parse_model_config(
      R"({"model_type": "qwen3_moe", "hidden_size": 128, "num_attention_heads": 4,
          "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 384,
          "moe_intermediate_size": 64, "num_experts": 8, "num_experts_per_tok": 2,
          "num_hidden_layers": 2, "vocab_size": 512, "max_position_embeddings": 1024})",
      "config.json");
  const plan::ResolvedPlan plan = plan::resolve(
      plan::parse_plan(R"({"version": 1, "dialect": "fsdp2", "layout": "per_parameter",
          "mesh": {"shard": 8, "expert": 2},
          "units": [{"modules": "model.layers.*.mlp.experts",
                     "groups": [{"parameters": ["**"], "mesh": "expert"}]},
                    {"modules": "model.layers.*"}, {"modules": ""}],
          "mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32"}})",
                       "plan.json"),
      plan::module_tree(config), 8);
  const GpuCostModel model(load_hardware("8xH100"));
  const auto sizes = plan::unit_sizes(plan);
  const auto divided = unit_costs(plan, sizes, model, plan::Program::kSimpleFsdp);
  const auto summed = unit_costs(plan, sizes, model, plan::Program::kGraphTrainer);
  int experts = 0;
  for (size_t unit = 0; unit < sizes.size(); ++unit) {
    const Bytes packed = sizes[unit].reduced_of(Grads::kAll).full * 4;
    const bool own = plan.units[unit].expert;
    EXPECT_EQ(divided[unit].reduce_copy_in - summed[unit].reduce_copy_in,
              own ? model.copy(packed, packed) : 0);
    experts += own ? 1 : 0;
  }
  EXPECT_EQ(experts, 2);
}

TEST(TracedStepCosts, EachParameterIsShardedAndGatheredAUnitEarly) {
  plan::Plan plan;
  plan.dialect = plan::Dialect::kFsdp2;
  EXPECT_EQ(as_run_by(plan::Program::kTorchtitan, plan), plan);
  EXPECT_EQ(as_run_by(plan::Program::kSimpleFsdp, plan).layout, plan::Layout::kPerParameter);
  EXPECT_EQ(as_run_by(plan::Program::kSimpleFsdp, plan).forward_prefetch, 1);
  plan.forward_prefetch = 2;
  EXPECT_EQ(as_run_by(plan::Program::kGraphTrainer, plan).forward_prefetch, 2);
  plan.forward_prefetch = 0;
  plan.forward_prefetch_lists = {{"model.layers.0", {"model.layers.2"}}};
  EXPECT_EQ(as_run_by(plan::Program::kGraphTrainer, plan).forward_prefetch, 0);
}

TEST(TracedStepCosts, NoHookRuns) {
  HardwareSpec spec = load_hardware("8xH100");
  spec.software.unit_us = 1000;
  const GpuCostModel model(spec);
  const auto hooks = [&](plan::Program program) {
    const TracedProgram each = traced_program(program);
    Nanoseconds sum = 0;
    for (const Nanoseconds hook : step_costs(each.workload, each.plan, model).hooks) {
      sum += hook;
    }
    return sum;
  };
  EXPECT_EQ(hooks(plan::Program::kTorchtitan), 1'000'000);
  EXPECT_EQ(hooks(plan::Program::kSimpleFsdp), 0);
}

}  // namespace
}  // namespace shardlens::sim
