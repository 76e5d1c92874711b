#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/json/json_reader.h"
#include "core/model/step_workload.h"
#include "core/plan/resolve.h"
#include "core/workload/host_launches.h"
#include "core/workload/workload.h"

namespace shardlens::plan {
namespace {

constexpr const char* kBf16 = R"({"version": 1, "mixed_precision": {"param_dtype": "bf16"}})";
constexpr const char* kFloat8Gathers =
    R"({"version": 1, "mixed_precision": {"param_dtype": "bf16", "gather_dtype": "float8_e4m3fn"}})";

bool is_fused(const Operator& op) {
  return op.kind != OperatorKind::kGemm && op.kind != OperatorKind::kAttention &&
         op.read + op.written > 0;
}

struct Kernels {  // that are no products or attention
  int64_t count = 0;
  Bytes read = 0, written = 0;
};

// What tests/tools/inductor_kernels.py recorded of inductor's scheduler.
class InductorKernels {
 public:
  InductorKernels() : document_(parse_json(read_text_file(path()), path())) {}

  [[nodiscard]] const nlohmann::json& families() const { return document_.at("families"); }
  [[nodiscard]] static Kernels recorded(const nlohmann::json& family, const char* phase) {
    Kernels out;
    for (const auto& each : family.at(phase)) {
      if (!each.at("extern").get<bool>()) {
        ++out.count;
        out.read += each.at("read").get<Bytes>();
        out.written += each.at("written").get<Bytes>();
      }
    }
    return out;
  }

  // Of a rank's microbatch.
  [[nodiscard]] int64_t rows() const {
    return document_.at("batch").get<int64_t>() * document_.at("seq").get<int64_t>();
  }
  // That divide a block, of which the kernels are those of one.
  [[nodiscard]] static int64_t ranks(const nlohmann::json& family) {
    return family.value("tensor", int64_t{1});
  }
  // The step of a model of two blocks of the recorded sizes.
  [[nodiscard]] Workload workload(const std::string& name, Program program, Compile compile) const {
    Software software;
    software.compile = compile;
    return workload(name, program, software);
  }
  [[nodiscard]] Workload workload(const std::string& name,
                                  Program program,
                                  const Software& software,
                                  const char* plan_file = kBf16) const {
    const auto& of = families().at(name);
    const std::string type = name.substr(0, name.find('-'));
    const auto size = [&of](const char* key) { return of.at(key).get<int64_t>(); };
    const std::string sizes =
        name == "gpt2"
            ? fmt::format(R"("n_embd": {}, "n_head": {}, "n_inner": {}, "n_layer": 2, )"
                          R"("n_positions": 4096, "activation_function": "gelu_new")",
                          size("hidden"), size("heads"), size("intermediate"))
            : fmt::format(R"("hidden_size": {}, "num_attention_heads": {}, )"
                          R"("num_key_value_heads": {}, "head_dim": {}, "intermediate_size": {}, )"
                          R"("num_hidden_layers": 2, "max_position_embeddings": 4096)",
                          size("hidden"), size("heads"), size("kv_heads"), size("head_dim"),
                          size("intermediate"));
    const std::string config =
        fmt::format(R"({{"model_type": "{}", "vocab_size": 1000, {}}})", type, sizes);
    const ModelConfig model = parse_model_config(config, "config.json");
    Plan file = parse_plan(plan_file, "plan.json");
    file.mesh.tensor = ranks(of);
    const ResolvedPlan plan = resolve(file, module_tree(model), 8);
    StepSettings step{.batch = document_.at("batch").get<int64_t>(),
                      .seq = document_.at("seq").get<int64_t>(),
                      .program = program};
    step.software = software;
    return step_workload(model, plan, step);
  }

 private:
  static std::string path() { return std::string(SHARDLENS_TEST_DATA) + "/inductor_kernels.json"; }
  nlohmann::json document_;
};

// Of the last block: "….1" and what is in it.
template <typename Function>
void of_last_block(const Workload& workload, const Function& function) {
  for (const Operator& op : workload.operators) {
    const std::string module = op.module + ".";
    if (module.find("layers.1.") != std::string::npos || module.find("h.1.") != std::string::npos) {
      function(op);
    }
  }
}

Kernels kernels(const Workload& workload, Phase phase) {
  Kernels out;
  of_last_block(workload, [&](const Operator& op) {
    if (op.phase == phase && is_fused(op)) {
      ++out.count;
      out.read += op.read;
      out.written += op.written;
    }
  });
  return out;
}

TEST(CompiledTest, ABlockHasTheKernelsOfInductor) {
  const InductorKernels inductor;
  ASSERT_EQ(inductor.families().size(), 4);
  for (const auto& [name, family] : inductor.families().items()) {
    const Workload workload = inductor.workload(name, Program::kTransformers, Compile::kBlock);
    for (const auto& [key, phase] :
         {std::pair{"forward", Phase::kForward}, {"backward", Phase::kBackward}}) {
      const Kernels expected = InductorKernels::recorded(family, key);
      const Kernels found = kernels(workload, phase);
      EXPECT_NEAR(static_cast<double>(found.count), static_cast<double>(expected.count),
                  0.1 * static_cast<double>(expected.count))
          << name << ' ' << key;
      EXPECT_NEAR(static_cast<double>(found.read + found.written),
                  static_cast<double>(expected.read + expected.written),
                  0.05 * static_cast<double>(expected.read + expected.written))
          << name << ' ' << key;
    }
  }
}

// Without the block's input, which the block before it has made.
TEST(CompiledTest, ABlockSavesWhatTheMinCutPartitionerLeaves) {
  const InductorKernels inductor;
  for (const auto& [name, family] : inductor.families().items()) {
    Bytes saved = 0;
    of_last_block(inductor.workload(name, Program::kTransformers, Compile::kBlock),
                  [&](const Operator& op) { saved += op.phase == Phase::kForward ? op.saved : 0; });
    const Bytes input =
        2 * 2048 * family.at("hidden").get<Bytes>() * 2 / InductorKernels::ranks(family);
    const auto expected = family.at("saved").get<double>();
    EXPECT_NEAR(static_cast<double>(saved - input), expected, 0.01 * expected) << name;
  }
}

// The collectives of a divided block, in the order in which the compiled graphs issue them.
TEST(CompiledTest, ADividedBlockCommunicatesAsCompiled) {
  const InductorKernels inductor;
  const nlohmann::json& family = inductor.families().at("llama-t2");
  const Workload workload = inductor.workload("llama-t2", Program::kTransformers, Compile::kBlock);
  for (const auto& [key, phase] :
       {std::pair{"forward", Phase::kForward}, {"backward", Phase::kBackward}}) {
    std::vector<std::pair<CollectiveKind, Bytes>> expected, found;
    for (const auto& each : family.at(key)) {
      const std::string name = each.at("name");
      const auto bytes = std::max(each.at("read").get<Bytes>(), each.at("written").get<Bytes>());
      if (name.find("all_gather_into_tensor.") != std::string::npos) {
        expected.emplace_back(CollectiveKind::kAllGather, bytes);
      } else if (name.find("reduce_scatter_tensor.") != std::string::npos) {
        expected.emplace_back(CollectiveKind::kReduceScatter, bytes);
      }
    }
    for (const WorkloadItem& item : workload.order) {
      if (item.kind == WorkloadItem::Kind::kCommunication) {
        const Communication& each = workload.communications[item.index];
        if (each.phase == phase && each.purpose == Purpose::kActivations &&
            each.module.find("layers.1") != std::string::npos) {
          found.emplace_back(each.kind, each.bytes);
        }
      }
    }
    EXPECT_EQ(expected.size(), 4U) << key;
    EXPECT_EQ(found, expected) << key;
  }
}

// Eager transformers runs norms, rotary embeddings and gates as many operators.
TEST(CompiledTest, CompiledCodeMovesLess) {
  const InductorKernels inductor;
  for (const char* name : {"llama", "qwen3"}) {
    const Workload eager = inductor.workload(name, Program::kTransformers, Compile::kNone);
    const Workload block = inductor.workload(name, Program::kTransformers, Compile::kBlock);
    for (const Phase phase : {Phase::kForward, Phase::kBackward}) {
      EXPECT_LT(3 * kernels(block, phase).count, kernels(eager, phase).count);
      EXPECT_LT(kernels(block, phase).read, kernels(eager, phase).read);
    }
  }
}

// A block's result is x + a + b, which the next norm stores when it computes it, so that nothing
// reads it before: the sum's own kernel reads 3 and writes 1, the norm 1 and 1; together 3 and 2.
TEST(CompiledTest, AModelFusesTheLastSumWithTheNextNorm) {
  const InductorKernels inductor;
  const auto moved = [&](Compile compile) {
    Kernels out;
    for (const Operator& op :
         inductor.workload("llama", Program::kTransformers, compile).operators) {
      if (op.phase == Phase::kForward && op.module.find(".layers.") != std::string::npos &&
          is_fused(op)) {
        ++out.count;
        out.read += op.read + op.written;
      }
    }
    return out;
  };
  const Kernels block = moved(Compile::kBlock), model = moved(Compile::kModel);
  const Bytes values = 2LL * 2048 * 2048 * 2;
  EXPECT_EQ(block.count, 12);
  EXPECT_EQ(model.count, 10);  // the last sum is that of the final norm, outside of the block
  EXPECT_EQ(block.read - model.read, values + 4 * values);
}

TEST(CompiledTest, ACallBeginsWithEachBlockAndDirection) {
  const InductorKernels inductor;
  const auto starts = [&](Compile compile) {
    const Workload workload = inductor.workload("llama", Program::kTransformers, compile);
    return std::ranges::count_if(
        workload.operators, [](const Operator& op) { return op.launch == Launch::kFirstKernel; });
  };
  EXPECT_EQ(starts(Compile::kNone), 0);
  EXPECT_EQ(starts(Compile::kBlock), 2 * (2 + 1));  // two blocks and the loss
  EXPECT_EQ(starts(Compile::kModel), 2);
}

TEST(CompiledTest, AGraphIsEverythingBeforeTheOptimizer) {
  const ModelConfig model =
      load_model_config(std::string(SHARDLENS_TEST_DATA) + "/models/llama-untied");
  const ResolvedPlan plan = resolve(parse_plan(kBf16, "plan.json"), module_tree(model), 8);
  StepSettings step{.batch = 1, .seq = 8};
  step.software.cuda_graphs = true;
  const Workload workload = step_workload(model, plan, step);
  int64_t first = 0;
  for (const Operator& op : workload.operators) {
    EXPECT_EQ(op.launch == Launch::kOperator, op.phase == Phase::kOptimizer);
    first += op.launch == Launch::kFirstInGraph ? 1 : 0;
  }
  EXPECT_EQ(first, 1);
}

TEST(CompiledTest, AWorkloadFileKeepsSoftware) {
  const InductorKernels inductor;
  const ModelConfig model =
      load_model_config(std::string(SHARDLENS_TEST_DATA) + "/models/qwen3-small");
  ResolvedPlan plan = resolve(parse_plan(kBf16, "plan.json"), module_tree(model), 8);
  StepSettings step{.batch = 1, .seq = 8, .program = Program::kTransformers};
  step.software.compile = Compile::kBlock;
  const Workload workload = step_workload(model, plan, step);
  EXPECT_EQ(parse_workload(to_json(workload, plan), "workload.json", plan), workload);
}

// The host waits for the device in FSDP1's limiter.
TEST(CompiledTest, AGraphCannotContainTheLimiter) {
  const ModelConfig model =
      load_model_config(std::string(SHARDLENS_TEST_DATA) + "/models/llama-untied");
  StepSettings step{.batch = 1, .seq = 8};
  step.software.cuda_graphs = true;
  const auto of = [&](const char* limits) {
    const std::string text =
        fmt::format(R"({{"version": 1, "dialect": "fsdp1", "limit_all_gathers": {}}})", limits);
    return step_workload(model, resolve(parse_plan(text, "plan.json"), module_tree(model), 8),
                         step);
  };
  EXPECT_FALSE(of("false").operators.empty());
  EXPECT_THROW((void)of("true"), InputError);
}

// torchao's tensorwise recipe, compiled, of the layer after attention, whose input no other has: in
// forward input and weight are read for their largest number and cast from 2 bytes to 1; in
// backward the gradient is read for it and cast by rows and by columns, and weight and input are
// cast again. A weight that was gathered in 8 bits is only copied by columns in backward.
TEST(CompiledTest, TensorwiseCastsOfALayer) {
  const InductorKernels inductor;
  Software software;
  software.compile = Compile::kBlock;
  software.matmul_dtype = MatmulDType::kFp8Tensorwise;
  const int64_t rows = 2 * 2048, features = 2048;
  const Bytes input = (2 + 3 + 3) * rows * features;
  const Bytes gradient = (2 + 4) * rows * features;
  for (const auto& [plan, weight] : {std::pair{kBf16, (2 + 3 + 3) * features * features},
                                     {kFloat8Gathers, (1 + 1) * features * features}}) {
    Bytes casts = 0;
    int64_t products = 0;
    for (const Operator& op :
         inductor.workload("llama", Program::kTransformers, software, plan).operators) {
      if (op.module == "model.layers.1.self_attn.o_proj") {
        casts += op.kind == OperatorKind::kElementwise ? op.read + op.written : 0;
        products += op.matmul_dtype ? 1 : 0;
      }
    }
    EXPECT_EQ(products, 3);
    EXPECT_EQ(casts, input + weight + gradient);
  }
}

// The optimizer is followed by one read of the new weights, in fp32, for their scales: seven linear
// layers in each of two blocks, an eighth on each rank.
TEST(CompiledTest, ScalesOfGatheredWeights) {
  const InductorKernels inductor;
  Software software;
  software.matmul_dtype = MatmulDType::kFp8Tensorwise;
  const Workload step =
      inductor.workload("llama", Program::kTransformers, software, kFloat8Gathers);
  ASSERT_EQ(step.operators.back().name, "aten::_foreach_norm");
  const auto& of = inductor.families().at("llama");
  const int64_t hidden = of.at("hidden"), inner = of.at("intermediate");
  const int64_t keys = of.at("kv_heads").get<int64_t>() * of.at("head_dim").get<int64_t>();
  const int64_t block = 2 * hidden * hidden + 2 * hidden * keys + 3 * hidden * inner;
  EXPECT_EQ(step.operators.back().read, 2 * block / 8 * 4);
}

// A plan can gather 8 bits only where linear layers multiply in them, with one scale for a tensor.
TEST(CompiledTest, Float8GathersNeedTensorwiseProducts) {
  const InductorKernels inductor;
  Software software;
  for (const auto dtype : {std::optional<MatmulDType>(), std::optional(MatmulDType::kFp8Rowwise)}) {
    software.matmul_dtype = dtype;
    EXPECT_THROW((void)inductor.workload("llama", Program::kTransformers, software, kFloat8Gathers),
                 InputError);
  }
}

// Bytes that the operators of a name move.
Bytes moved_by(const Workload& workload, std::string_view name) {
  Bytes out = 0;
  for (const Operator& op : workload.operators) {
    out += op.name == name ? op.read + op.written : 0;
  }
  return out;
}

// torchao, prototype/mx_formats/README.md at 4446ad9: inductor's cast along rows takes 220.10 us
// with scales rounded up and 125.92 with scales rounded down; the kernel along columns is as fast.
TEST(CompiledTest, ScalesRoundedUpCostInductorsCasts) {
  const InductorKernels inductor;
  const auto moved = [&](MatmulDType dtype, const char* name) {
    Software software;
    software.compile = Compile::kBlock;
    software.matmul_dtype = dtype;
    return static_cast<double>(
        moved_by(inductor.workload("llama", Program::kTorchtitan, software), name));
  };
  EXPECT_NEAR(moved(MatmulDType::kMxfp8CublasRceil, "triton_to_mxfp8_dim0") /
                  moved(MatmulDType::kMxfp8, "triton_to_mxfp8_dim0"),
              220.10 / 125.92, 1e-6);
  EXPECT_EQ(moved(MatmulDType::kMxfp8CublasRceil, "mxfp8_quantize_dim1"),
            moved(MatmulDType::kMxfp8, "mxfp8_quantize_dim1"));
  EXPECT_GT(moved(MatmulDType::kMxfp8, "mxfp8_quantize_dim1"), 0);
}

// torchao multiplies the gradient of a weight with the scales of rows and columns after the
// product: it is read and written once more in bf16 (seven linear layers in each of two blocks).
TEST(CompiledTest, ScalesOfRowsAfterTheProductsOfBackward) {
  const InductorKernels inductor;
  const auto moved = [&](MatmulDType dtype, Compile compile, std::string_view name) {
    Software software;
    software.compile = compile;
    software.matmul_dtype = dtype;
    return moved_by(inductor.workload("llama", Program::kTorchtitan, software), name);
  };
  const auto& of = inductor.families().at("llama");
  const int64_t hidden = of.at("hidden"), inner = of.at("intermediate");
  const int64_t keys = of.at("kv_heads").get<int64_t>() * of.at("head_dim").get<int64_t>();
  const int64_t block = 2 * hidden * hidden + 2 * hidden * keys + 3 * hidden * inner;
  EXPECT_EQ(moved(MatmulDType::kFp8Rowwise, Compile::kBlock, "triton_poi_fused_mul"),
            2 * block * (2 + 2));
  EXPECT_EQ(moved(MatmulDType::kFp8Tensorwise, Compile::kBlock, "triton_poi_fused_mul"), 0);
  // Eager: the product of the scales is a tensor of the result's size in fp32, and so is that of
  // the input's gradient.
  const int64_t rows = inductor.rows();
  const int64_t inputs = 6 * hidden + inner;
  EXPECT_EQ(moved(MatmulDType::kFp8Rowwise, Compile::kNone, "aten::mul_"),
            2 * (block + rows * inputs) * (2 + 4 + 2));
  EXPECT_EQ(moved(MatmulDType::kFp8Tensorwise, Compile::kNone, "aten::mul_"), 0);
}

// torchao, benchmarks/prototype/nvfp4_training/README.md at 36027d8, GB200, whose copies reach 0.85
// of 8.0 TB/s: what a kernel takes more with twice the columns (of the input or the gradient of
// 2048 rows), and with four times the weight.
TEST(CompiledTest, CastsTo4BitsTakeWhatTritonsKernelsDo) {
  const auto microseconds = [](int64_t hidden, const char* layer, std::string_view name,
                               Phase phase) {
    const ModelConfig model = parse_model_config(
        fmt::format(R"({{"model_type": "llama", "hidden_size": {}, "num_attention_heads": 32, )"
                    R"("intermediate_size": {}, "num_hidden_layers": 1, "vocab_size": 96, )"
                    R"("max_position_embeddings": 2048}})",
                    hidden, 7 * hidden / 2),
        "config.json");
    const ResolvedPlan plan = resolve(parse_plan(kBf16, "plan.json"), module_tree(model), 8);
    StepSettings step{.batch = 1, .seq = 2048, .program = Program::kTorchtitan03};
    step.software = {.compile = Compile::kBlock, .matmul_dtype = MatmulDType::kNvfp4};
    for (const Operator& op : step_workload(model, plan, step).operators) {
      if (op.module.ends_with(layer) && op.name == name && op.phase == phase) {
        return static_cast<double>(op.read + op.written) / (0.85 * 8.0e6);
      }
    }
    return 0.0;
  };
  const auto more = [&](const char* layer, std::string_view name, Phase phase) {
    return microseconds(8192, layer, name, phase) - microseconds(4096, layer, name, phase);
  };
  const Phase forward = Phase::kForward, backward = Phase::kBackward;
  EXPECT_NEAR(more("down_proj", "triton_rht_amax", forward), 42.92 - 27.41, 0.2);
  EXPECT_NEAR(more("down_proj", "triton_rht_quantize_row_col", forward), 113.71 - 60.47, 0.3);
  EXPECT_NEAR(more("gate_proj", "triton_rht_quantize_row_col", backward), 166.624 - 91.168, 0.5);
  EXPECT_NEAR(more("gate_proj", "triton_weight_quantize_2d", forward), 948.65 - 249.05, 4);
}

// torchtitan's filter leaves the head out; torchao the layers with sizes that are no multiples of
// 16, such as those of 88; and nvfp4_bf16_tail_fqns() the last blocks.
TEST(CompiledTest, SomeProductsStayAsTheyAre) {
  const auto converted = [](const char* inner, int64_t tail = 0, const std::string& text = kBf16) {
    const std::string config =
        fmt::format(R"({{"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, )"
                    R"("intermediate_size": {}, "num_hidden_layers": 2, "vocab_size": 96, )"
                    R"("max_position_embeddings": 64}})",
                    inner);
    const ModelConfig model = parse_model_config(config, "config.json");
    const ResolvedPlan plan = resolve(parse_plan(text, "plan.json"), module_tree(model), 8);
    StepSettings step{.batch = 1, .seq = 8};
    step.software.matmul_dtype = MatmulDType::kFp8Rowwise;
    step.software.matmul_tail = tail;
    std::map<std::string, int64_t> out;
    for (const Operator& op : step_workload(model, plan, step).operators) {
      if (op.matmul_dtype) {
        ++out[op.module.substr(0, op.module.find('.', std::string("model.layers.").size()))];
      }
    }
    return out;
  };
  using Counts = std::map<std::string, int64_t>;
  EXPECT_EQ(converted("96"), (Counts{{"model.layers.0", 3 * 7}, {"model.layers.1", 3 * 7}}));
  EXPECT_EQ(converted("88"), (Counts{{"model.layers.0", 3 * 4}, {"model.layers.1", 3 * 4}}));
  EXPECT_EQ(converted("96", 1), (Counts{{"model.layers.0", 3 * 7}}));
  const auto refusal = [&](int64_t tail, const std::string& plan) -> std::string {
    try {
      return fmt::format("{} blocks", converted("96", tail, plan).size());
    } catch (const InputError& error) {
      return error.what();
    }
  };
  EXPECT_THAT(refusal(2, kBf16),
              ::testing::HasSubstr("the model has 2 blocks; expected fewer, found 2"));
  EXPECT_THAT(refusal(1, kFloat8Gathers), ::testing::HasSubstr("which the last blocks do not"));
}

// What a checkpoint saves again is freed by the backward of the operator that saved it.
TEST(CompiledTest, BackwardFreesWhatACheckpointOfExpertsSavesAgain) {
  const ModelConfig model = parse_model_config(
      R"({"model_type": "qwen3_moe", "hidden_size": 128, "num_attention_heads": 4, "head_dim": 32,
          "num_key_value_heads": 4, "intermediate_size": 256, "moe_intermediate_size": 64,
          "num_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 2, "vocab_size": 512,
          "max_position_embeddings": 4096})",
      "config.json");
  Plan plan = parse_plan(kBf16, "plan.json");
  plan.activation_checkpointing = {"model.layers.0", "model.layers.1"};
  StepSettings step{.batch = 1, .seq = 64};
  step.program = Program::kTorchtitan;
  step.software.compile = Compile::kBlock;
  const Workload workload = step_workload(model, resolve(plan, module_tree(model), 8), step);
  int64_t repeated = 0;
  for (const Operator& op : workload.operators) {
    if (op.phase != Phase::kRecompute || op.saved == 0) {
      continue;
    }
    ++repeated;
    EXPECT_TRUE(std::ranges::any_of(workload.operators,
                                    [&](const Operator& each) {
                                      return each.phase == Phase::kBackward &&
                                             each.forward == op.forward;
                                    }))
        << op.module << " " << op.name;
  }
  EXPECT_GT(repeated, 20);
}

// Each of four parts has the products and the loss of a quarter of the rows; the first three are
// differentiated at once.
TEST(CompiledTest, ALossInPartsHasThePartsOfTheWhole) {
  const InductorKernels inductor;
  const auto head = [&](std::optional<int64_t> chunks) {
    Software software;
    software.loss_chunks = chunks;
    std::vector<Operator> out;
    for (const Operator& op : inductor.workload("llama", Program::kEngine, software).operators) {
      if (op.phase != Phase::kOptimizer &&
          (op.module == "lm_head" || op.kind == OperatorKind::kLoss)) {
        out.push_back(op);
      }
    }
    return out;
  };
  const auto sum = [](const std::vector<Operator>& of, OperatorKind kind) {
    int64_t flops = 0;
    for (const Operator& op : of) {
      flops += op.kind == kind ? op.flops : 0;
    }
    return flops;
  };
  const std::vector<Operator> whole = head(std::nullopt), parts = head(4);
  EXPECT_EQ(head(1), whole);
  EXPECT_EQ(sum(parts, OperatorKind::kGemm), sum(whole, OperatorKind::kGemm));
  EXPECT_EQ(sum(parts, OperatorKind::kLoss), sum(whole, OperatorKind::kLoss));
  Bytes saved = 0;
  for (const Operator& op : parts) {
    saved += op.kind == OperatorKind::kLoss ? op.saved : 0;
  }
  const Bytes logits = 2LL * 2048 * 1000 * 4;
  EXPECT_EQ(saved, logits / 4);
}

// Selective checkpoints of torchtitan: attention and every second product. Compiled code does not
// keep the last product's result, which backward does not need. The numbers are those of
// tests/tools/checkpointed_saves.py, torch 2.11.
TEST(CompiledTest, CheckpointsKeepWhatBackwardNeedsOfTheirResults) {
  const ModelConfig model = parse_model_config(
      R"({"model_type": "llama", "vocab_size": 1000, "hidden_size": 64, "num_attention_heads": 4,
          "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 224,
          "num_hidden_layers": 2, "max_position_embeddings": 128})",
      "config.json");
  const ResolvedPlan plan =
      resolve(parse_plan(R"({"version": 1, "activation_checkpointing": ["model.layers.*"],
                             "checkpointing_saves": ["attention", "every_second_product"]})",
                         "plan.json"),
              module_tree(model), 2);
  for (const auto& [compile, hidden_tensors] :
       {std::pair{Compile::kNone, 7.8125}, {Compile::kBlock, 6.8125}}) {
    StepSettings step{.batch = 2, .seq = 128, .program = Program::kTorchtitan};
    step.software.compile = compile;
    Bytes saved = 0;
    for (const Operator& op : step_workload(model, plan, step).operators) {
      if (op.phase == Phase::kForward && op.module.starts_with("model.layers.1")) {
        saved += op.saved;
      }
    }
    EXPECT_EQ(static_cast<double>(saved), hidden_tensors * 2 * 128 * 64 * 4);
  }
}

}  // namespace
}  // namespace shardlens::plan
