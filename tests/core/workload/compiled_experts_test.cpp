#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "core/json/json_reader.h"
#include "core/model/step_workload.h"
#include "core/plan/resolve.h"
#include "core/workload/workload.h"

namespace shardlens::plan {
namespace {

struct MovedBytes {  // by kernels that are no products or attention
  int64_t kernels = 0;
  Bytes bytes = 0;
};

// What tests/tools/inductor_moe.py recorded of layers that transformers runs.
class InductorExperts {
 public:
  InductorExperts() : document_(parse_json(read_text_file(path()), path())) {}

  [[nodiscard]] const nlohmann::json& families() const { return document_.at("families"); }
  [[nodiscard]] Bytes bytes_of_rows(const std::string& family) const {
    return document_.at("batch").get<Bytes>() * document_.at("seq").get<Bytes>() *
           families().at(family).at("config").at("hidden_size").get<Bytes>() * 2;
  }

  // Of the whole layer, or of what follows attention in forward and what is before it in backward.
  [[nodiscard]] MovedBytes recorded(const std::string& family,
                                    bool whole,
                                    const char* phase) const {
    const bool forward = std::string_view(phase) == "forward";
    MovedBytes out;
    bool counts = whole || !forward;
    for (const auto& each : families().at(family).at(phase)) {
      const std::string name = each.at("name");
      if (name.find("shown.attention") != std::string::npos) {
        counts = whole || forward;
      } else if (counts && !name.starts_with("extern_kernels")) {
        ++out.kernels;
        out.bytes += each.at("read").get<Bytes>() + each.at("written").get<Bytes>();
      }
    }
    return out;
  }

  // The step of a model of two of these layers.
  [[nodiscard]] Workload workload(const std::string& family, Compile compile) const {
    const ModelConfig model =
        parse_model_config(families().at(family).at("config").dump(), "config.json");
    const ResolvedPlan plan = resolve(
        parse_plan(R"({"version": 1, "mixed_precision": {"param_dtype": "bf16"}})", "plan.json"),
        module_tree(model), 8);
    StepSettings step{.batch = document_.at("batch").get<int64_t>(),
                      .seq = document_.at("seq").get<int64_t>(),
                      .program = Program::kTransformers};
    step.software.compile = compile;
    return step_workload(model, plan, step);
  }

 private:
  static std::string path() { return std::string(SHARDLENS_TEST_DATA) + "/inductor_moe.json"; }
  nlohmann::json document_;
};

bool is_of_last_layer(const Operator& op, bool whole) {
  const std::string layer = "model.layers.1";
  return whole ? (op.module + ".").starts_with(layer + ".")
               : op.module == layer || op.module.starts_with(layer + ".mlp") ||
                     op.module == layer + ".post_attention_layernorm";
}

MovedBytes moved_by_kernels(const Workload& workload, bool whole, Phase phase) {
  MovedBytes out;
  for (const Operator& op : workload.operators) {
    if (op.phase == phase && op.kind != OperatorKind::kGemm &&
        op.kind != OperatorKind::kAttention && op.read + op.written > 0 &&
        is_of_last_layer(op, whole)) {
      ++out.kernels;
      out.bytes += op.read + op.written;
    }
  }
  return out;
}

void expect_near(const MovedBytes& found, const MovedBytes& expected, double kernels) {
  EXPECT_NEAR(static_cast<double>(found.kernels), static_cast<double>(expected.kernels),
              kernels * static_cast<double>(expected.kernels));
  EXPECT_NEAR(static_cast<double>(found.bytes), static_cast<double>(expected.bytes),
              0.05 * static_cast<double>(expected.bytes));
}

constexpr std::pair<const char*, Phase> kDirections[] = {{"forward", Phase::kForward},
                                                         {"backward", Phase::kBackward}};

TEST(CompiledExpertsTest, ALayerHasTheKernelsOfInductor) {
  const InductorExperts inductor;
  for (const char* family : {"qwen3_moe", "mixtral"}) {
    const Workload workload = inductor.workload(family, Compile::kBlock);
    for (const auto& [key, phase] : kDirections) {
      SCOPED_TRACE(std::string(family) + " " + key);
      expect_near(moved_by_kernels(workload, true, phase), inductor.recorded(family, true, key),
                  0.1);
    }
  }
}

TEST(CompiledExpertsTest, ASparseMlpHasTheKernelsOfInductor) {
  const InductorExperts inductor;
  ASSERT_EQ(inductor.families().size(), 4U);
  for (const char* family : {"qwen3_moe", "mixtral", "gpt_oss"}) {
    const Workload workload = inductor.workload(family, Compile::kBlock);
    for (const auto& [key, phase] : kDirections) {
      SCOPED_TRACE(std::string(family) + " " + key);
      expect_near(moved_by_kernels(workload, false, phase), inductor.recorded(family, false, key),
                  0.1);
    }
  }
}

// Its router works on a copy of the rows in fp32, and chooses groups of experts first. Here it is
// that of the others.
TEST(CompiledExpertsTest, DeepseeksLayerDiffersByItsRouter) {
  const InductorExperts inductor;
  const Workload workload = inductor.workload("deepseek_v3", Compile::kBlock);
  for (const auto& [key, phase] : kDirections) {
    SCOPED_TRACE(key);
    const auto expected = static_cast<double>(inductor.recorded("deepseek_v3", false, key).bytes);
    EXPECT_NEAR(static_cast<double>(moved_by_kernels(workload, false, phase).bytes), expected,
                0.15 * expected);
  }
}

// Without the layer's input, which the layer before it has made.
TEST(CompiledExpertsTest, ALayerSavesWhatTheMinCutPartitionerLeaves) {
  const InductorExperts inductor;
  for (const char* family : {"qwen3_moe", "mixtral"}) {
    Bytes saved = -inductor.bytes_of_rows(family);
    for (const Operator& op : inductor.workload(family, Compile::kBlock).operators) {
      saved += op.phase == Phase::kForward && is_of_last_layer(op, true) ? op.saved : 0;
    }
    const auto expected = inductor.families().at(family).at("saved").get<double>();
    EXPECT_NEAR(static_cast<double>(saved), expected, 0.01 * expected) << family;
  }
}

TEST(CompiledExpertsTest, CompiledLayersHaveTheSameProductsAndMoveLess) {
  const InductorExperts inductor;
  for (const auto& [family, unused] : inductor.families().items()) {
    const Workload eager = inductor.workload(family, Compile::kNone);
    const Workload compiled = inductor.workload(family, Compile::kBlock);
    for (const Phase phase : {Phase::kForward, Phase::kBackward}) {
      EXPECT_LT(moved_by_kernels(compiled, false, phase).bytes,
                0.8 * static_cast<double>(moved_by_kernels(eager, false, phase).bytes))
          << family;
    }
    int64_t eager_flops = 0, compiled_flops = 0;
    for (const Operator& op : eager.operators) {
      eager_flops += op.name == kGroupedProduct ? op.flops : 0;
    }
    for (const Operator& op : compiled.operators) {
      compiled_flops += op.name == kGroupedProduct ? op.flops : 0;
    }
    EXPECT_GT(eager_flops, 0) << family;
    EXPECT_EQ(compiled_flops, eager_flops) << family;
  }
}

}  // namespace
}  // namespace shardlens::plan
