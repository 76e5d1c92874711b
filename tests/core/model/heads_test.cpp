#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/model/step_workload.h"
#include "core/plan/plan.h"
#include "core/plan/resolve.h"
#include "core/workload/workload.h"

namespace shardlens::plan {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Configs of one layer, without "architectures".
const std::string kSizes =
    R"("hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 1000)";
const std::string kGated = kSizes + R"(, "intermediate_size": 128, "num_key_value_heads": 4)";
const std::string kLlama = R"("model_type": "llama", "num_labels": 1, )" + kGated;
const std::string kMistral = R"("model_type": "mistral", "num_labels": 3, )" + kGated;
const std::string kQwen = R"("model_type": "qwen2", "num_labels": 3, )" + kGated;
const std::string kGpt2 = R"("model_type": "gpt2", "n_embd": 64, "n_layer": 1, "n_head": 4,
  "n_positions": 32, "vocab_size": 1000, "id2label": {"0": "a", "1": "b", "2": "c"})";
const std::string kOpt = R"("model_type": "opt", "ffn_dim": 128, "num_labels": 3,
  "max_position_embeddings": 64, )" +
                         kSizes;
const std::string kMpt = R"("model_type": "mpt", "d_model": 64, "n_layers": 1, "n_heads": 4,
  "vocab_size": 1000, "num_labels": 3)";

ModelConfig config_of(const std::string& keys, const std::string& architectures) {
  return parse_model_config("{" + keys + R"(, "architectures": )" + architectures + "}", "c");
}

struct HeadCase {
  const std::string& keys;
  const char* type;
  int64_t parameters;
  const char* first;  // parameter
  const char* last;
};

// Source: transformers 5.24, the classes on the meta device.
const std::vector<HeadCase> kHeads{
    {kLlama, "LlamaForCausalLM", 169'152, "model.embed_tokens.weight", "lm_head.weight"},
    {kLlama, "LlamaModel", 105'152, "embed_tokens.weight", "norm.weight"},
    {kLlama, "LlamaForSequenceClassification", 105'216, "model.embed_tokens.weight",
     "score.weight"},
    {kLlama, "LlamaForTokenClassification", 105'217, "model.embed_tokens.weight", "score.bias"},
    {kLlama, "LlamaForQuestionAnswering", 105'282, "transformer.embed_tokens.weight",
     "qa_outputs.bias"},
    {kMistral, "MistralModel", 105'152, "embed_tokens.weight", "norm.weight"},
    {kMistral, "MistralForSequenceClassification", 105'344, "model.embed_tokens.weight",
     "score.weight"},
    {kMistral, "MistralForTokenClassification", 105'347, "model.embed_tokens.weight", "score.bias"},
    {kMistral, "MistralForQuestionAnswering", 105'282, "model.embed_tokens.weight",
     "qa_outputs.bias"},
    {kQwen, "Qwen2ForSequenceClassification", 105'536, "model.embed_tokens.weight", "score.weight"},
    {kQwen, "Qwen2ForQuestionAnswering", 105'474, "transformer.embed_tokens.weight",
     "qa_outputs.bias"},
    {kGpt2, "GPT2LMHeadModel", 116'160, "transformer.wte.weight", "transformer.ln_f.bias"},
    {kGpt2, "GPT2Model", 116'160, "wte.weight", "ln_f.bias"},
    {kGpt2, "GPT2ForSequenceClassification", 116'352, "transformer.wte.weight", "score.weight"},
    {kGpt2, "GPT2ForTokenClassification", 116'355, "transformer.wte.weight", "classifier.bias"},
    {kGpt2, "GPT2ForQuestionAnswering", 116'290, "transformer.wte.weight", "qa_outputs.bias"},
    {kOpt, "OPTModel", 101'824, "decoder.embed_tokens.weight", ""},
    {kOpt, "OPTForSequenceClassification", 102'016, "model.decoder.embed_tokens.weight",
     "score.weight"},
    {kOpt, "OPTForQuestionAnswering", 101'954, "model.decoder.embed_tokens.weight",
     "qa_outputs.bias"},
    {kMpt, "MptModel", 113'344, "wte.weight", "norm_f.weight"},
    {kMpt, "MptForSequenceClassification", 113'536, "transformer.wte.weight", "score.weight"},
    {kMpt, "MptForTokenClassification", 113'539, "transformer.wte.weight", "classifier.bias"},
    {kMpt, "MptForQuestionAnswering", 113'474, "transformer.wte.weight", "qa_outputs.bias"},
};

TEST(HeadsTest, ParametersAreThoseOfTheClass) {
  for (const HeadCase& each : kHeads) {
    const ModelConfig config = config_of(each.keys, "[\"" + std::string(each.type) + "\"]");
    const ModuleTree tree = module_tree(config);
    EXPECT_EQ(config.torch_type, each.type);
    EXPECT_EQ(tree.modules.front().type, each.type);
    int64_t numel = 0;
    for (const Parameter& parameter : tree.parameters) {
      numel += parameter.numel;
    }
    EXPECT_EQ(numel, each.parameters) << each.type;
    EXPECT_EQ(tree.parameters.front().fqn, each.first) << each.type;
    if (std::string_view(each.last) != "") {
      EXPECT_EQ(tree.parameters.back().fqn, each.last) << each.type;
    }
  }
}

TEST(HeadsTest, TheForwardRunsTheModulesOfTheTree) {
  for (const HeadCase& each : kHeads) {
    const ModelConfig config = config_of(each.keys, "[\"" + std::string(each.type) + "\"]");
    const ModuleTree tree = module_tree(config);
    const ResolvedPlan plan = resolve(strategy_plan("full_shard", tree), tree, 2);
    for (const Program program : {Program::kEngine, Program::kTransformers}) {
      const Workload workload =
          step_workload(config, plan, {.batch = 2, .seq = 16, .program = program});
      std::set<std::string> run;
      bool loss = false;
      for (const Operator& op : workload.operators) {
        EXPECT_NE(tree.find(op.module), nullptr) << each.type << ": " << op.module;
        run.insert(op.module);
        loss = loss || op.phase == Phase::kLoss;
      }
      for (const Module& module : tree.modules) {
        if (!module.parameters.empty() && module.type == "Linear") {
          EXPECT_TRUE(run.contains(module.fqn)) << each.type << ": " << module.fqn;
        }
      }
      EXPECT_EQ(loss, config.head != ModelHead::kNone) << each.type;
    }
  }
}

TEST(HeadsTest, WithoutAClassTheModelIsCausal) {
  for (const char* architectures : {"null", "[]", R"(["LLaMAForCausalLM"])"}) {
    const ModelConfig config = config_of(kLlama, architectures);
    EXPECT_EQ(config.torch_type, "LlamaForCausalLM");
    EXPECT_EQ(config.head, ModelHead::kCausal);
  }
}

TEST(HeadsTest, UnknownClassesAreRefusedByName) {
  const auto error_of = [](const std::string& keys, const std::string& type) {
    try {
      (void)config_of(keys, "[\"" + type + "\"]");
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(error_of(kLlama, "LlamaForRewardModel"),
              AllOf(HasSubstr("c#/architectures/0"), HasSubstr("LlamaForRewardModel"),
                    HasSubstr("'LlamaForCausalLM', 'LlamaForSequenceClassification'")));
  EXPECT_THAT(error_of(kLlama, "MistralModel"), HasSubstr("'LlamaModel'"));
  EXPECT_THAT(error_of(kGpt2, "GPT2DoubleHeadsModel"), HasSubstr("'GPT2Model'"));
  EXPECT_THAT(error_of(kOpt, "OPTForTokenClassification"), HasSubstr("#/architectures/0"));
}

TEST(HeadsTest, SettingsThatChangeNoModuleAreNotes) {
  const auto plain = module_tree(config_of(kLlama, "null"));
  const ModelConfig quantised =
      config_of(kLlama + R"(, "quantization_config": {"quant_method": "mxfp4"})", "null");
  EXPECT_THAT(quantised.notes, ElementsAre(HasSubstr("quantization_config (mxfp4)")));
  EXPECT_EQ(module_tree(quantised).parameters.size(), plain.parameters.size());
  const ModelConfig scaled =
      config_of(kLlama + R"(, "rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                    "original_max_position_embeddings": 1024})",
                "null");
  EXPECT_EQ(scaled.rope_type, "yarn");
  EXPECT_THAT(scaled.notes, ElementsAre(HasSubstr("rope scaling (yarn)")));
  EXPECT_THAT(config_of(kLlama, "null").notes, IsEmpty());
}

}  // namespace
}  // namespace shardlens::plan
