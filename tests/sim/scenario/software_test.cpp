#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/plan/plan.h"
#include "sim/cost/gemm_model.h"
#include "sim/hardware/power_limit.h"
#include "sim/hardware/stacks.h"
#include "sim/scenario/scenario.h"
#include "sim/scenario/uncertainty.h"

namespace shardlens::sim {
namespace {

constexpr const char* kModels[] = {
    R"({"model_type": "llama", "hidden_size": 128, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 384, "num_hidden_layers": 2,
        "vocab_size": 512, "max_position_embeddings": 4096})",
    R"({"model_type": "qwen3", "hidden_size": 128, "num_attention_heads": 4, "head_dim": 64,
        "num_key_value_heads": 4, "intermediate_size": 256, "num_hidden_layers": 2,
        "vocab_size": 512, "max_position_embeddings": 4096})",
    R"({"model_type": "gpt2", "n_embd": 128, "n_head": 4, "n_layer": 2, "n_positions": 4096,
        "vocab_size": 512})",
    R"({"model_type": "qwen3_moe", "hidden_size": 128, "num_attention_heads": 4, "head_dim": 32,
        "num_key_value_heads": 2, "moe_intermediate_size": 64, "intermediate_size": 256,
        "num_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 2, "vocab_size": 512,
        "max_position_embeddings": 4096})",
    R"({"model_type": "deepseek_v3", "hidden_size": 128, "num_attention_heads": 4,
        "num_key_value_heads": 4, "intermediate_size": 256, "moe_intermediate_size": 64,
        "q_lora_rank": null, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16,
        "v_head_dim": 32, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2,
        "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "num_hidden_layers": 2,
        "vocab_size": 512, "max_position_embeddings": 4096})"};

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  size_t below(size_t count) {
    return std::uniform_int_distribution<size_t>(0, count - 1)(engine_);
  }
  bool coin() { return below(2) == 1; }

 private:
  std::mt19937 engine_;
};

// Nothing is as fast: the vendor's rate of the product's dtype, half of attention's scores, each
// byte once.
double least_us(const plan::Operator& op, const GpuSpec& gpu) {
  const auto flops = static_cast<double>(op.flops);
  switch (op.kind) {
    case plan::OperatorKind::kGemm:
      return flops / 1e6 /
             (op.matmul_dtype ? tflops_of(gpu, *op.matmul_dtype) : peak_tflops(gpu, op.dtype));
    case plan::OperatorKind::kAttention:
      return flops / 2 / 1e6 / peak_tflops(gpu, op.dtype);
    default:
      return static_cast<double>(op.read + op.written) / (gpu.memory_gbps * 1e3);
  }
}

plan::Software software_of(Random& random) {
  plan::Software out;
  out.compile = static_cast<plan::Compile>(random.below(plan::kCompileCount));
  out.cuda_graphs = random.coin();
  if (random.coin()) {
    out.matmul_dtype = static_cast<plan::MatmulDType>(random.below(plan::kMatmulDTypeCount));
    out.matmul_tail = static_cast<int64_t>(random.below(2));  // of two blocks
  }
  if (random.coin()) {
    out.loss_chunks = static_cast<int64_t>(1 + random.below(8));
  }
  if (random.coin()) {
    out.expandable_segments = random.coin();
  }
  return out;
}

// Only GPUs to which a stack was fitted with this engine's operators run them by default.
TEST(SoftwareTest, OtherGpusRunPyTorchsProgramsByDefault) {
  const std::string models = std::string(SHARDLENS_TEST_DATA) + "/models/";
  const plan::ModelConfig llama = plan::load_model_config(models + "llama-untied"),
                          qwen2 = plan::load_model_config(models + "qwen2-small");
  for (const char* fitted : {"8xA100-40", "8xA100-80", "8xH100", "8xH100-96", "2x8xH100"}) {
    EXPECT_EQ(stack_or_default("", fitted, llama), "") << fitted;
  }
  for (const char* newer : {"8xH200", "8xB200", "8xB300", "4xGB200", "8xL40S", "4xPCIe"}) {
    EXPECT_EQ(stack_or_default("", newer, llama), "torchtitan") << newer;
    // torchtitan's linear layers have no biases.
    EXPECT_EQ(stack_or_default("", newer, qwen2), "transformers") << newer;
    EXPECT_EQ(stack_or_default("bare", newer, llama), "bare") << newer;
  }
  // A file has its own constants; a model.json the operators of its program.
  EXPECT_EQ(stack_or_default("", "a/spec.json", llama), "");
  const auto exported = std::string(SHARDLENS_TEST_DATA) + "/recorded_run/model.json";
  EXPECT_EQ(stack_or_default("", "8xB200", plan::load_model_config(exported)), "");
}

// Of random settings: no operator is faster than its roofline, no time is negative, the parts sum
// to the step, its interval is finite and contains it, and memory grows with the batch and with the
// sequence.
TEST(SoftwareTest, RandomSettings) {
  // With ideal software, under the nearest stack, and as torchtitan with less power.
  const std::shared_ptr<const TargetMachine> machines[] = {
      std::make_shared<const TargetMachine>(as_bare(load_hardware("8xB200"))),
      std::make_shared<const TargetMachine>(default_hardware("8xB200")),
      std::make_shared<const TargetMachine>(
          with_power_limit(hardware_under("8xB200", kTorchtitanStack, true), 750))};
  const Uncertainty uncertainty[] = {Uncertainty(machines[0]), Uncertainty(machines[1]),
                                     Uncertainty(machines[2])};
  const GpuSpec& gpu = machines[0]->spec()->gpu;
  std::vector<std::shared_ptr<const ScenarioModel>> models;
  for (const char* config : kModels) {
    models.push_back(
        std::make_shared<const ScenarioModel>(plan::parse_model_config(config, "config.json")));
  }
  for (uint32_t seed = 0; seed < 1000; ++seed) {
    Random random(seed);
    Scenario scenario;
    const size_t model = random.below(models.size());
    scenario.model = models[model];
    scenario.plan.mixed_precision.param_dtype =
        random.coin() ? std::optional(DType::kBF16) : std::nullopt;
    if (random.coin()) {
      scenario.plan.activation_checkpointing = {model == 2 ? "transformer.h.0" : "model.layers.0"};
    }
    scenario.world_size = 8;
    const size_t under = random.below(std::size(machines));
    scenario.machine = machines[under];
    scenario.step.batch = static_cast<int64_t>(1 + random.below(4));
    scenario.step.seq = static_cast<int64_t>(16 * (1 + random.below(64)));
    scenario.step.accumulate = static_cast<int64_t>(1 + random.below(3));
    scenario.step.program = random.coin()              ? plan::Program::kTransformers
                            : under == 2 && model != 2 ? plan::Program::kTorchtitan
                                                       : plan::Program::kEngine;
    scenario.step.software = software_of(random);
    scenario.plan.mixed_precision.gathers_float8 =
        scenario.plan.mixed_precision.param_dtype && scenario.step.software.matmul_tail == 0 &&
        scenario.step.software.matmul_dtype == plan::MatmulDType::kFp8Tensorwise && random.coin();
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prediction now = evaluate(scenario);
    uncertainty[under].add_to(scenario, now);
    ASSERT_TRUE(now.interval);
    ASSERT_GT(now.interval->low, 0);
    ASSERT_LE(now.interval->low, now.step.duration);
    ASSERT_GT(now.interval->high, now.step.duration);
    ASSERT_LT(now.interval->high, 100 * now.step.duration + 100'000'000);
    const auto tokens = tokens_interval(now);
    ASSERT_TRUE(tokens && std::isfinite(tokens->high));
    ASSERT_LE(tokens->low, now.tokens_per_s);
    ASSERT_GE(tokens->high * 1.000001, now.tokens_per_s);
    const auto& operators = now.priced.workload->operators;
    for (size_t i = 0; i < operators.size(); ++i) {
      const WorkTime run = now.priced.costs->operators[i].run;
      if (under != 1) {  // a stack's passes may be fewer than one; rounded to nanoseconds
        ASSERT_GE(static_cast<double>(run.alone) + 0.5, 1e3 * least_us(operators[i], gpu))
            << operators[i].name << " of " << operators[i].module;
      }
      ASSERT_GE(run.beside, run.alone);
      ASSERT_GE(now.priced.costs->operators[i].issue, 0);
    }
    const StepFigures& figures = now.figures;
    for (const Nanoseconds part :
         {figures.compute, figures.exposed_comm, figures.exposed_copy, figures.idle}) {
      ASSERT_GE(part, 0);
    }
    ASSERT_GT(figures.duration(), 0);
    ASSERT_TRUE(std::isfinite(now.tokens_per_s));
    ASSERT_TRUE(!now.mfu || (*now.mfu > 0 && std::isfinite(*now.mfu)));
    Scenario longer = scenario, larger = scenario;
    longer.step.seq = *scenario.step.seq * 2;
    larger.step.batch *= 2;
    for (const Scenario& more : {longer, larger}) {
      ASSERT_GE(evaluate(more).memory.peak_requested, now.memory.peak_requested);
    }
  }
}

// All-gathers of 8 bits carry half the bytes and leave half of a unit in memory.
TEST(SoftwareTest, Float8Gathers) {
  Scenario scenario;
  scenario.model =
      std::make_shared<const ScenarioModel>(plan::parse_model_config(kModels[0], "config.json"));
  scenario.machine = std::make_shared<const TargetMachine>(load_hardware("8xH100"));
  scenario.world_size = 8;
  scenario.step = {.batch = 1, .seq = 128, .program = plan::Program::kTransformers};
  scenario.plan.mixed_precision.param_dtype = DType::kBF16;
  scenario.step.software.matmul_dtype = plan::MatmulDType::kFp8Tensorwise;
  const auto gathered = [&] {
    Bytes out = 0;
    const Prediction step = evaluate(scenario, {.communication = true});
    for (const analysis::CommunicationFigures& each : step.communication) {
      out += each.kind == CollectiveKind::kAllGather ? each.bytes : 0;
    }
    return out;
  };
  const Bytes bf16 = gathered();
  scenario.plan.mixed_precision.gathers_float8 = true;
  // Weights of a block: 2 of queries and results, 2 half as large of keys and values, 3 of the MLP.
  const int64_t block = 128 * (2 * 128 + 2 * 64 + 3 * 384);
  EXPECT_EQ(bf16 - gathered(), 2 * 2 * block);  // two blocks, in forward and backward
}

// Gradients that are not reduced are added up in one tensor, so that the second of equal
// microbatches is the last one that needs more memory.
TEST(SoftwareTest, MicrobatchesWithoutSyncNeedTheSameMemory) {
  Scenario scenario;
  scenario.model =
      std::make_shared<const ScenarioModel>(plan::parse_model_config(kModels[0], "test"));
  scenario.plan = plan::parse_plan(R"({"version": 1, "layout": "per_parameter",
      "mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32"}})",
                                   "test");
  scenario.world_size = 8;
  scenario.machine =
      std::make_shared<const TargetMachine>(hardware_under("8xH100", "transformers", true));
  const auto peak = [&](int64_t microbatches) {
    scenario.step = {.batch = 1,
                     .seq = 128,
                     .accumulate = microbatches,
                     .sync_every_microbatch = false,
                     .program = plan::Program::kTransformers};
    return evaluate(scenario).memory.peak_allocated;
  };
  EXPECT_EQ(peak(3), peak(2));
  EXPECT_EQ(peak(8), peak(2));
}

// One H200 measured 15.30 GiB for 16 compiled blocks under PyTorch's FSDP2, two samples of 2048
// tokens (bench/RESULTS.md, tests/tools/software_on_gpu.py).
TEST(SoftwareTest, PeakOfCompiledBlocksOnAnH200) {
  Scenario scenario;
  scenario.model = std::make_shared<const ScenarioModel>(plan::parse_model_config(
      R"({"model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632,
          "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 4,
          "vocab_size": 32000, "max_position_embeddings": 2048})",
      "config.json"));
  scenario.plan.mixed_precision.param_dtype = DType::kBF16;
  scenario.plan.mixed_precision.reduce_dtype = DType::kF32;
  scenario.machine = std::make_shared<const TargetMachine>(load_hardware("8xH200"));
  scenario.step = {.batch = 2, .seq = 2048, .program = plan::Program::kTransformers};
  scenario.step.software.compile = plan::Compile::kBlock;
  const double measured = 15.30 * 1024 * 1024 * 1024;
  EXPECT_NEAR(static_cast<double>(evaluate(scenario).memory.peak_allocated), measured,
              0.02 * measured);
}

}  // namespace
}  // namespace shardlens::sim
