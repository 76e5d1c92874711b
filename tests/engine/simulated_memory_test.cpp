// The simulator's memory of a step compared with what the engine allocates in it: a Llama of four
// blocks, two ranks, the third step.
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ops/randint.h>

#include "core/dist/world.h"
#include "core/fsdp/apply/fully_shard.h"
#include "core/model/step_workload.h"
#include "core/models/model.h"
#include "core/models/ops.h"
#include "core/plan/resolve.h"
#include "core/train/optimizer.h"
#include "core/train/parallel_model.h"
#include "core/workload/workload_builder.h"
#include "sim/memory/peak_memory.h"
#include "tests/engine/counted_memory.h"

namespace shardlens {
namespace {

constexpr int64_t kBatch = 2, kSeq = 64;
// Bytes of a block: two norms, four projections of attention and three of the MLP, in fp32.
constexpr double kUnitBytes = 4 * (2 * 256 + 2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 704);

plan::ModelConfig llama() {
  return plan::parse_model_config(R"({"model_type": "llama", "hidden_size": 256,
    "intermediate_size": 704, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 128})",
                                  "the test");
}

struct Measured {
  test::CountingAllocator::Peak peak;
  int64_t parameters = 0;
  [[nodiscard]] int64_t of(test::Role role) const {
    return peak.by_role[static_cast<size_t>(role)];
  }
};

Measured measure(const plan::ModelConfig& config, const plan::ResolvedPlan& plan) {
  test::CountingAllocator& allocator = test::CountingAllocator::instance();
  const int64_t before = allocator.live();
  dist::WorldOptions of_world;
  of_world.backend = dist::BackendKind::kEmulated;
  of_world.world_size = 2;
  const auto world = dist::World::join(of_world);
  const auto model = models::make_model(config, models::Init::kRandom);
  fsdp::Options sharding;
  sharding.world = world.get();
  int64_t in_flight = 0;
  sharding.make_executor = [&](std::vector<fsdp::FlatParamHandle*> handles) {
    return std::make_unique<test::PromptExecutor>(std::move(handles), *world, in_flight);
  };
  const auto sharded = train::apply_plan(model, plan, sharding);
  const std::shared_ptr<train::Optimizer> optimizer =
      train::make_optimizer(sharded->flat_shards(), {});
  if (plan.steps_in_backward()) {
    sharded->set_optimizer_in_backward({[optimizer](std::span<const fsdp::ShardUpdate> updates) {
      optimizer->step_in_backward(updates);
    }});
  }
  const at::Tensor tokens = at::randint(0, 512, {kBatch, kSeq + 1}, at::kLong);
  Measured out;
  for (int step = 0; step < 3; ++step) {
    static_cast<void>(allocator.take_peak());
    at::Tensor loss =
        models::token_loss(model->logits(tokens.narrow(1, 0, kSeq).contiguous()).flatten(0, 1),
                           tokens.narrow(1, 1, kSeq).flatten());
    loss.backward();
    loss = at::Tensor();
    optimizer->step();
    sharded->optimizer_done();
    sharded->zero_grad();
    out.peak = allocator.take_peak();
    out.peak.bytes -= before;
  }
  for (const at::Tensor& shard : sharded->flat_shards()) {
    out.parameters += static_cast<int64_t>(shard.nbytes());
  }
  return out;
}

sim::StepMemory simulate(const plan::ModelConfig& config, const plan::ResolvedPlan& plan) {
  const plan::Workload workload = plan::step_workload(config, plan, {.batch = kBatch, .seq = kSeq});
  sim::MemoryOptions options;
  options.capacity = int64_t{1} << 40;
  const schedule::PlannedStep step = schedule::planned_step(workload, plan);
  return sim::step_memory(sim::PricedStep::borrowed(workload, plan, step, {}), options);
}

const char* const kPlans[] = {
    R"("layout": "flat")",
    R"("layout": "flat", "reshard_after_forward": false)",
    R"("layout": "flat", "reshard_after_forward": true)",
    R"("layout": "flat", "forward_prefetch": 1)",
    R"("layout": "flat", "backward_prefetch": "none")",
    R"("layout": "flat", "activation_checkpointing": ["model.layers.*"])",
    R"("layout": "flat", "activation_checkpointing": ["model.layers.*"], "reshard_after_forward": false)",
    R"("layout": "per_parameter")",
    R"("layout": "per_parameter", "reshard_after_forward": false)",
    R"("layout": "per_parameter", "forward_prefetch": 1)",
    R"("layout": "per_parameter", "activation_checkpointing": ["model.layers.*"])",
    R"("layout": "flat", "mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32"})",
    R"("layout": "per_parameter", "mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32"})",
    R"("layout": "flat", "mixed_precision": {"param_dtype": "bf16"})",
    R"("dialect": "fsdp1")",
    R"("dialect": "fsdp1", "reshard_after_forward": false)",
    R"("dialect": "fsdp1", "activation_checkpointing": ["model.layers.*"])",
    R"("dialect": "fsdp1", "limit_all_gathers": false)",
    R"("optimizer_in_backward": true)",
    R"("layout": "per_parameter", "optimizer_in_backward": true)",
    R"("dialect": "fsdp1", "optimizer_in_backward": true)",
    R"("optimizer_in_backward": true, "mixed_precision": {"reduce_dtype": "bf16"})",
    R"("mesh": {"replicate": 2, "shard": 1})",
    R"("layout": "flat", "views": "frozen")",
};

TEST(SimulatedMemoryTest, PeaksAreThoseOfTheEngine) {
  const plan::ModelConfig config = llama();
  const plan::ModuleTree tree = plan::module_tree(config);
  for (const char* keys : kPlans) {
    SCOPED_TRACE(keys);
    const plan::Plan plan = plan::parse_plan(
        std::string(
            R"({"version": 1, "units": [{"modules": "model.layers.*"}, {"modules": ""}], )") +
            keys + "}",
        "plan.json");
    const plan::ResolvedPlan resolved = plan::resolve(plan, tree, 2);
    const Measured engine = measure(config, resolved);
    const sim::StepMemory memory = simulate(config, resolved);
    const auto at_peak = [&memory](sim::MemoryCategory category) {
      int64_t sum = 0;
      for (const sim::AliveAtPeak& row : memory.alive) {
        sum += row.category == category ? row.requested : 0;
      }
      return sum;
    };
    EXPECT_EQ(at_peak(sim::MemoryCategory::kParameters), engine.parameters);
    EXPECT_EQ(at_peak(sim::MemoryCategory::kOptimizer), 2 * engine.parameters);
    EXPECT_EQ(at_peak(sim::MemoryCategory::kUnsharded), engine.of(test::Role::kUnsharded));
    EXPECT_EQ(at_peak(sim::MemoryCategory::kCommunication), engine.of(test::Role::kCommunication));
    // With recomputation, memory at two moments of a block's backward differs by less than 1 %, and
    // the two peaks may be at different ones; then gradients differ by up to one unit's. In bf16,
    // the gradient of a norm is fp32 until it is reduced.
    const bool again = !resolved.plan.activation_checkpointing.empty();
    const double apart = again ? kUnitBytes : resolved.param_dtype(0) == DType::kBF16 ? 2 * 256 : 0;
    EXPECT_NEAR(static_cast<double>(at_peak(sim::MemoryCategory::kGradients)),
                static_cast<double>(engine.of(test::Role::kGradient)), apart);
    EXPECT_NEAR(static_cast<double>(memory.peak_allocated), static_cast<double>(engine.peak.bytes),
                0.03 * static_cast<double>(engine.peak.bytes));
  }
}

}  // namespace
}  // namespace shardlens
