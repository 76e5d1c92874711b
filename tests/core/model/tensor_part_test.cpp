#include <array>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/model/mesh_support.h"
#include "core/model/step_workload.h"
#include "core/plan/resolve.h"
#include "tests/support/message_of.h"

namespace shardlens::plan {
namespace {

using testing::HasSubstr;

// One layer: H 256, I 512, 8 heads of 32, 4 of keys and values, V 1024.
ModelConfig model() {
  return parse_model_config(R"({"model_type": "llama", "hidden_size": 256,
      "intermediate_size": 512, "num_hidden_layers": 1, "num_attention_heads": 8,
      "num_key_value_heads": 4, "vocab_size": 1024, "max_position_embeddings": 1024})",
                            "config.json");
}

struct Step {
  ResolvedPlan plan;
  Workload workload;
};

Step step_of(const ModelConfig& config,
             int64_t tensor,
             const std::string& keys = "",
             StepSettings settings = {.batch = 2, .seq = 64}) {
  const std::string text =
      fmt::format(R"({{"version": 1, "mesh": {{"tensor": {}}}{}}})", tensor, keys);
  Step out;
  out.plan = resolve(parse_plan(text, "plan.json"), module_tree(config), tensor);
  out.workload = step_workload(config, out.plan, settings);
  return out;
}

std::string refusal(const ModelConfig& config,
                    int64_t tensor,
                    const std::string& keys = "",
                    const StepSettings& settings = {.batch = 2, .seq = 64}) {
  try {
    (void)step_of(config, tensor, keys, settings);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

Bytes saved(const Workload& workload) {
  Bytes out = 0;
  for (const Operator& op : workload.operators) {
    out += op.saved;
  }
  return out;
}

// What autograd keeps, in numbers of fp32 for each of R rows: of both norms, of a part of the rows;
// the gathered inputs of attention, MLP and head; queries, keys, values and results of a part of
// the heads, and their sums; the MLP's gate, second product and result. The loss has all logits, or
// its part of them and the labels.
TEST(TensorPart, SavesActivationsOfItsSize) {
  const int64_t rows = 2 * 64, h = 256, i = 512, q = 256, kv = 128, heads = 8, v = 1024;
  for (const int64_t t : {1, 2, 4}) {
    const int64_t norms = 3 * rows / t * (h + 1);
    const int64_t gathered = 3 * rows * h;
    const int64_t attention = rows * (2 * q + 2 * kv + heads) / t;
    const int64_t mlp = rows * 3 * i / t;
    const Bytes tokens = rows * 8;
    EXPECT_EQ(saved(step_of(model(), t).workload),
              4 * (norms + gathered + attention + mlp + rows * v) + tokens)
        << t;
    // The residual is whole on every rank.
    EXPECT_EQ(saved(step_of(model(), t, R"(, "sequence_parallel": false)").workload),
              4 * (norms * t + gathered + attention + mlp + rows * v) + tokens)
        << t;
    EXPECT_EQ(
        saved(step_of(model(), t, R"(, "loss_parallel": true)").workload),
        4 * (norms + gathered + attention + mlp + rows * v / t) + tokens + (t > 1 ? rows * 8 : 0))
        << t;
  }
}

// Twice the rows, columns and inner size of each product of forward; backward has twice as many.
TEST(TensorPart, MultipliesItsPartOfEachProduct) {
  const int64_t rows = 2 * 64, h = 256, i = 512, q = 256, kv = 128, v = 1024;
  const int64_t whole = 2 * rows * h * (q + 2 * kv + q + 3 * i + v);
  for (const int64_t t : {1, 2, 4}) {
    int64_t forward = 0, backward = 0;
    for (const Operator& op : step_of(model(), t).workload.operators) {
      if (op.kind == OperatorKind::kGemm) {
        (op.phase == Phase::kForward ? forward : backward) += op.flops;
      }
    }
    EXPECT_EQ(forward * t, whole) << t;
    EXPECT_EQ(backward * t, 2 * whole) << t;
  }
}

// Of layers with outputs for several uses the results are gathered: attention and the activation of
// the MLP are whole on every rank, and saved so. A rank copies its part of what the next layer
// takes.
TEST(TensorPart, GathersResultsForSeveralUses) {
  const ModelConfig config = parse_model_config(R"({"model_type": "phi3", "hidden_size": 256,
      "intermediate_size": 512, "num_hidden_layers": 1, "num_attention_heads": 8,
      "num_key_value_heads": 2, "vocab_size": 1024, "max_position_embeddings": 1024,
      "original_max_position_embeddings": 1024, "pad_token_id": null})",
                                                "config.json");
  const int64_t rows = 2 * 64, h = 256, i = 512, all = 256 + 2 * 64, v = 1024;
  const int64_t whole = 2 * rows * h * (all + h + 3 * i + v);
  for (const int64_t t : {1, 2, 4, 8}) {  // also more ranks than heads of keys and values
    const Step now = step_of(config, t);
    int64_t forward = 0, attention = 0, gathered = 0;
    for (const Operator& op : now.workload.operators) {
      if (op.phase == Phase::kForward) {
        forward += op.kind == OperatorKind::kGemm ? op.flops : 0;
        attention += op.kind == OperatorKind::kAttention ? op.batch : 0;
      }
    }
    for (const Communication& each : now.workload.communications) {
      const bool gathers = each.kind == CollectiveKind::kAllGather && each.phase == Phase::kForward;
      gathered += gathers ? each.bytes : 0;
    }
    EXPECT_EQ(forward * t, whole) << t;
    EXPECT_EQ(attention, 2 * 8) << t;
    EXPECT_EQ(gathered, t == 1 ? 0 : 4 * rows * (3 * h + all + 2 * i + v)) << t;
  }
}

// DTensor copies tensors into the order in which collectives have them: the input of each
// reduce-scatter, and, of several samples, the result of each all-gather. Logits are gathered along
// their last dimension.
TEST(TensorPart, CopiesRowsIntoTheOrderOfCollectives) {
  const auto copies = [](int64_t batch) {
    int64_t out = 0;
    for (const Operator& op :
         step_of(model(), 2, "", {.batch = batch, .seq = 64}).workload.operators) {
      out += op.name == "aten::cat" ? 1 : 0;
    }
    return out;
  };
  constexpr int64_t kReduceScatters = 6, kAllGathers = 6, kLogits = 1;
  EXPECT_EQ(copies(2), kReduceScatters + kAllGathers + kLogits);
  EXPECT_EQ(copies(1), kReduceScatters + kLogits);
}

// DTensor computes the gradient of the whole table on every rank, and copies the rank's rows.
TEST(TensorPart, ComputesTheGradientOfTheWholeTable) {
  const Bytes table = 1024 * 256 * 4;
  for (const int64_t t : {1, 2, 4}) {
    Bytes written = 0, copied = 0;
    for (const Operator& op : step_of(model(), t).workload.operators) {
      written += op.name == "aten::embedding_dense_backward" ? op.written : 0;
      copied += op.name == "aten::clone" && op.module == "model.embed_tokens" ? op.written : 0;
    }
    EXPECT_EQ(written, t == 1 ? 2 * 64 * 256 * 4 : table) << t;
    EXPECT_EQ(copied, t == 1 ? 0 : table / t) << t;
  }
}

TEST(TensorPart, WithoutTheAxisNothingIsCommunicated) {
  EXPECT_TRUE(step_of(model(), 1).workload.communications.empty());
}

TEST(TensorPart, RefusesSizesThatDoNotDivide) {
  EXPECT_THAT(refusal(model(), 3),
              HasSubstr("plan.json#/mesh/tensor: tensor 3 does not divide 8 heads; expected one of "
                        "1, 2, 4"));
  EXPECT_THAT(refusal(model(), 8),
              HasSubstr("tensor 8 does not divide 4 heads of keys and values; expected one of 1, "
                        "2, 4"));
  ModelConfig odd = model();
  odd.vocab_size = 1022;
  EXPECT_THAT(refusal(odd, 4),
              HasSubstr("tensor 4 does not divide 1022 tokens in the vocabulary; expected one of "
                        "1, 2"));
  const StepSettings samples{.batch = 2, .seq = 66};
  EXPECT_THAT(refusal(model(), 4, "", samples),
              HasSubstr("tensor 4 does not divide 66 tokens in a sample; expected one of 1, 2"));
  EXPECT_EQ(refusal(model(), 4, R"(, "sequence_parallel": false)", samples), "");
}

TEST(MeshSupport, RefusesWhatStepWorkloadRefuses) {
  const ModelConfig config = model();
  const auto check = [&](int64_t tensor) {
    Plan plan;
    plan.source = "plan.json";
    plan.mesh.tensor = tensor;
    require_mesh(config, resolve(plan, module_tree(config), tensor), {.seq = 64});
  };
  EXPECT_EQ(test::message_of<InputError>([&] { check(3); }), refusal(config, 3));
  EXPECT_NO_THROW(check(4));
}

TEST(TensorPart, RefusesStylesThatDoNotFitTogether) {
  const std::string styles = R"(, "tensor_parallel": {"**.q_proj": "column", "**.k_proj": "column",
      "**.v_proj": "column", "**.o_proj": "column", "**.gate_proj": "column",
      "**.up_proj": "column", "**.down_proj": "row"})";
  EXPECT_THAT(
      refusal(model(), 2, styles),
      HasSubstr("plan.json#/tensor_parallel: 'model.layers.0.self_attn.o_proj' is divided in "
                "another way than the layers that it works with; expected style row"));
}

TEST(TensorPart, RefusesWhatIsNotSimulatedInParts) {
  EXPECT_THAT(refusal(model(), 2, R"(, "dialect": "fsdp1")"), HasSubstr("expected dialect fsdp2"));
  EXPECT_THAT(refusal(model(), 2, R"(, "units": [{"modules": "", "api": "replicate"}])"),
              HasSubstr("DDP takes no layers that parallelize_module divides"));
  const auto with = [](Compile compile, MatmulDType dtype) {
    StepSettings settings{.batch = 2, .seq = 64};
    settings.software.compile = compile;
    settings.software.matmul_dtype = dtype;
    return refusal(model(), 2, "", settings);
  };
  EXPECT_THAT(with(Compile::kBlock, MatmulDType::kMxfp8),
              HasSubstr("torchtitan refuses mxfp8 in compiled blocks"));
  EXPECT_EQ(with(Compile::kNone, MatmulDType::kMxfp8), "");
  EXPECT_EQ(with(Compile::kBlock, MatmulDType::kFp8Rowwise), "");
  EXPECT_THAT(with(Compile::kNone, MatmulDType::kNvfp4), HasSubstr("nvfp4"));
}

// Compiled blocks issue the collectives of eager ones, in the same order, and multiply the same.
TEST(TensorPart, CompiledBlocksCommunicateAsEagerOnes) {
  const auto items = [](Compile compile, int64_t batch, const std::string& keys) {
    StepSettings settings{.batch = batch, .seq = 64, .program = Program::kTransformers};
    settings.software.compile = compile;
    const Workload workload = step_of(model(), 2, keys, settings).workload;
    std::vector<std::pair<std::string, int64_t>> out;  // with bytes or FLOPs
    for (const WorkloadItem& item : workload.order) {
      if (item.kind == WorkloadItem::Kind::kOperator &&
          workload.operators[item.index].kind == OperatorKind::kGemm) {
        out.emplace_back("product", workload.operators[item.index].flops);
      } else if (item.kind == WorkloadItem::Kind::kCommunication) {
        const Communication& each = workload.communications[item.index];
        out.emplace_back(name_of(each.kind), each.bytes);
      }
    }
    return out;
  };
  for (const int64_t batch : {1, 2}) {
    for (const char* keys : {"", R"(, "sequence_parallel": false)",
                             R"(, "activation_checkpointing": ["model.layers.0"])"}) {
      const auto eager = items(Compile::kNone, batch, keys);
      EXPECT_GT(eager.size(), 24) << keys;
      EXPECT_EQ(items(Compile::kBlock, batch, keys), eager) << keys << batch;
      EXPECT_EQ(items(Compile::kModel, batch, keys), eager) << keys << batch;
    }
  }
}

// Collectives that a layer adds to a step: of forward, of backward with what runs again. From
// KempnerForge's layers on a fake group of torch 2.11, whose checkpoints are those of transformers:
// eager blocks gather five times in forward, twice that with the repetition, and twice in backward;
// they scatter twice, once again, and five times in backward. Compiled, equal gathers are merged.
TEST(TensorPart, LayersMayGatherByThemselves) {
  const auto counts = [](int64_t layers, Compile compile) {
    const ModelConfig config = parse_model_config(
        fmt::format(R"({{"model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
            "num_hidden_layers": {}, "num_attention_heads": 8, "num_key_value_heads": 4,
            "vocab_size": 1024, "max_position_embeddings": 1024}})",
                    layers),
        "config.json");
    StepSettings settings{.batch = 4, .seq = 64, .program = Program::kTransformers};
    settings.software.compile = compile;
    const Workload workload =
        step_of(config, 2,
                R"(, "shared_gathers": false, "activation_checkpointing": ["model.layers.*"])",
                settings)
            .workload;
    std::array<std::array<int64_t, 2>, 2> out{};  // by kind: gathers, scatters
    for (const Communication& each : workload.communications) {
      const bool gathers = each.kind == CollectiveKind::kAllGather;
      if (gathers || each.kind == CollectiveKind::kReduceScatter) {
        ++out[gathers ? 0 : 1][each.phase == Phase::kForward ? 0 : 1];
      }
    }
    return out;
  };
  using Counts = std::array<std::array<int64_t, 2>, 2>;
  for (const auto& [compile, expected] : {std::pair{Compile::kNone, Counts{{{5, 7}, {2, 6}}}},
                                          std::pair{Compile::kModel, Counts{{{2, 4}, {2, 6}}}}}) {
    const Counts two = counts(2, compile), four = counts(4, compile);
    for (size_t kind = 0; kind < 2; ++kind) {
      for (size_t phase = 0; phase < 2; ++phase) {
        EXPECT_EQ(four[kind][phase] - two[kind][phase], 2 * expected[kind][phase]) << kind << phase;
      }
    }
  }
}

// Adapters of rank 8 of two layers, by hand: forward multiplies with W, A and B; backward has the
// gradients of both inputs, and of A and B only. Each rank has a part of A's and B's rows, or of
// their columns. The first block's input needs no gradient.
TEST(TensorPart, DividesAdapters) {
  const ModelConfig config = parse_model_config(
      R"({"model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
          "num_hidden_layers": 1, "num_attention_heads": 8, "num_key_value_heads": 4,
          "vocab_size": 1024, "max_position_embeddings": 1024,
          "lora": {"r": 8, "target_modules": ["o_proj", "up_proj"]}})",
      "config.json");
  const int64_t rows = 2 * 64, h = 256, i = 512, q = 256, kv = 128, v = 1024, r = 8;
  const int64_t adapters = 2 * rows * r * (q + h + h + i);
  const int64_t whole = 2 * rows * h * (q + 2 * kv + q + 3 * i + v);
  // Up to the output projection, which is the first layer with an adapter, nothing needs gradients.
  const int64_t inputs = 2 * rows * h * (3 * i + v) + 2 * rows * r * (h + h + i);
  for (const int64_t t : {1, 2, 4}) {
    const Step now = step_of(config, t);
    int64_t forward = 0, backward = 0, optimized = 0, small = 0;
    for (const Operator& op : now.workload.operators) {
      if (op.kind == OperatorKind::kGemm) {
        (op.phase == Phase::kForward ? forward : backward) += op.flops;
      }
    }
    for (const Parameter& each : now.plan.tree.parameters) {
      optimized += each.requires_grad ? each.numel : 0;
    }
    for (const Communication& each : now.workload.communications) {
      small += each.bytes == 4 * rows * r ? 1 : 0;
    }
    EXPECT_EQ(forward * t, whole + adapters) << t;
    EXPECT_EQ(backward * t, inputs + adapters) << t;
    EXPECT_EQ(optimized, r * (q + h + h + i)) << t;
    EXPECT_EQ(small, t == 1 ? 0 : 4) << t;  // of two layers, in both directions
  }
  EXPECT_THAT(refusal(config, 16), HasSubstr("tensor 16"));
}

TEST(ModelConfig, AdaptersNameLinearLayers) {
  const auto message = [](const std::string& lora) {
    try {
      (void)parse_model_config(R"({"model_type": "llama", "lora": )" + lora + "}", "config.json");
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message(R"({"r": 8, "target_modules": ["q_proj"]})"), "");
  EXPECT_THAT(message(R"({"r": 8, "target_modules": ["query"]})"), HasSubstr("'query'"));
  EXPECT_THAT(message(R"({"r": 0, "target_modules": ["q_proj"]})"), HasSubstr("lora/r"));
}

// What compiled blocks fuse is around attention: its products over parts of the sequence, and the
// keys and values that are exchanged between them, are those of eager blocks.
TEST(ContextPart, CompiledBlocksHaveTheSameAttention) {
  const auto attention = [](Compile compile) {
    const ModelConfig config = model();
    const ResolvedPlan plan =
        resolve(parse_plan(R"({"version": 1, "mesh": {"context": 4}})", "plan.json"),
                module_tree(config), 4);
    StepSettings settings{.batch = 1, .seq = 256, .program = Program::kTorchtitan};
    settings.software.compile = compile;
    const Workload workload = step_workload(config, plan, settings);
    std::vector<std::pair<std::string, int64_t>> out;  // in order, with pairs or bytes
    for (const WorkloadItem& item : workload.order) {
      if (item.kind == WorkloadItem::Kind::kOperator) {
        const Operator& op = workload.operators[item.index];
        if (op.kind == OperatorKind::kAttention) {
          out.emplace_back(op.name, op.batch * op.m * op.n);
        }
      } else if (item.kind == WorkloadItem::Kind::kCommunication) {
        const Communication& each = workload.communications[item.index];
        out.emplace_back(name_of(each.kind), each.bytes);
      }
    }
    return out;
  };
  const auto eager = attention(Compile::kNone);
  // Four products forward and backward each; keys and values twice, their gradients four times.
  EXPECT_EQ(eager.size(), 4 + 4 + 2 + 4);
  EXPECT_EQ(attention(Compile::kBlock), eager);
}

// Two layers: D 48, I 104, 4 heads, V 192, recorded with two samples of 32 tokens, here in fp32.
ModelConfig exported() {
  return load_model_config(std::string(SHARDLENS_TEST_DATA) + "/tensor/decoder/model.json");
}
const std::string kStyles = R"("blocks.*.attention.query": "column",
    "blocks.*.attention.key": "column", "blocks.*.attention.value": "column",
    "blocks.*.attention.out": "row", "blocks.*.mlp.widen": "column", "blocks.*.mlp.narrow": "row",
    "scores": "column")";

Step exported_step(int64_t tensor, const std::string& keys = R"(, "table": "vocabulary"})") {
  return step_of(exported(), tensor,
                 tensor == 1 ? "" : R"(, "tensor_parallel": {)" + kStyles + keys,
                 {.batch = 2, .seq = 32});
}

TEST(TensorPart, OfAnExportedModelMultipliesItsPartOfEachProduct) {
  const int64_t rows = 2 * 32, d = 48, i = 104, v = 192;
  const int64_t whole = 2 * rows * (2 * (4 * d * d + 2 * d * i) + d * v);
  for (const int64_t t : {1, 2, 4}) {
    int64_t forward = 0, backward = 0;
    for (const Operator& op : exported_step(t).workload.operators) {
      if (op.kind == OperatorKind::kGemm) {
        (op.phase == Phase::kForward ? forward : backward) += op.flops;
      }
    }
    EXPECT_EQ(forward * t, whole) << t;
    EXPECT_EQ(backward * t, 2 * whole) << t;
  }
}

// Norms save their inputs and two numbers for each row; attention queries, keys, values, its result
// and a number for each head; the MLP what is before and after its activation. Gathered inputs and
// logits are whole.
TEST(TensorPart, OfAnExportedModelSavesActivationsOfItsSize) {
  const Bytes rows = 2 * 32, d = 48, i = 104, heads = 4;
  const Bytes norms = 4 * 5 * rows * (d + 2);
  const Bytes attention = 4 * 2 * rows * (4 * d + heads);
  const Bytes mlp = 4 * 2 * rows * 2 * i;
  const Bytes parts = norms + attention + mlp;
  const Bytes whole = saved(exported_step(1).workload);
  EXPECT_EQ(whole - saved(exported_step(2).workload), parts / 2);
  EXPECT_EQ(whole - saved(exported_step(4).workload), parts - parts / 4);
}

TEST(TensorPart, OfAnExportedModelRefusesStylesThatDoNotFitTogether) {
  const auto refused = [](const std::string& keys) {
    return refusal(exported(), 2, keys, {.batch = 2, .seq = 32});
  };
  EXPECT_THAT(refused(R"(, "tensor_parallel": {)" + kStyles + "}"),
              HasSubstr("'aten::addmm' in module 'blocks.0.attention.query' takes rows that every "
                        "rank has; expected style vocabulary for the embedding, or "
                        "\"sequence_parallel\": false"));
  EXPECT_EQ(refused(R"(, "sequence_parallel": false, "tensor_parallel": {)" + kStyles + "}"), "");
  EXPECT_THAT(refused(R"(, "tensor_parallel": {"blocks.*.mlp.narrow": "row",
                  "table": "vocabulary"}, "sequence_parallel": false)"),
              HasSubstr("'aten::addmm' in module 'blocks.0.mlp.narrow' takes whole features; "
                        "expected style column for the layers before it"));
  EXPECT_THAT(
      refusal(exported(), 8, R"(, "tensor_parallel": {)" + kStyles + R"(, "table": "vocabulary"})",
              {.batch = 2, .seq = 32}),
      HasSubstr("tensor 8 does not divide 4 heads of module 'blocks.0.attention'; expected a "
                "divisor of 4"));
}

}  // namespace
}  // namespace shardlens::plan
