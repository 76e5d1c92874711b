#include "core/model/families/heads.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/model/families/config_values.h"

namespace shardlens::plan {
namespace {

constexpr int64_t kSpanOutputs = 2;  // where an answer begins and ends

struct HeadClass {
  std::string_view ending;  // of the class
  ModelHead head;
};
constexpr std::array<HeadClass, 6> kHeadClasses{
    {{"ForCausalLM", ModelHead::kCausal},
     {"LMHeadModel", ModelHead::kCausal},
     {"ForSequenceClassification", ModelHead::kSequence},
     {"ForTokenClassification", ModelHead::kTokens},
     {"ForQuestionAnswering", ModelHead::kSpans},
     {"Model", ModelHead::kNone}}};

// A family's own names. Source: transformers 5.24, models/<family>/modeling_<family>.py.
struct FamilyHeads {
  std::string_view family;
  std::string_view classes;           // prefix of its classes, without kCausal's
  bool tokens = true;                 // has ForTokenClassification
  std::string_view spans_base{};      // the base's name in ForQuestionAnswering; "": has none
  std::string_view labels = "score";  // of tokens
  bool sequence = true;               // has ForSequenceClassification
};
constexpr auto kFamilyHeads = std::to_array<FamilyHeads>({
    {"llama", "Llama", true, "transformer"},
    {"mistral", "Mistral", true, "model"},
    {"qwen2", "Qwen2", true, "transformer"},
    {"qwen3", "Qwen3", true, "transformer"},
    {"gemma2", "Gemma2", true},
    {"gemma3_text", "Gemma3Text", false},
    {"phi3", "Phi3", true},
    {"opt", "OPT", false, "model"},
    {"mpt", "Mpt", true, "transformer", "classifier"},
    {"mixtral", "Mixtral", true, "model"},
    {"qwen3_moe", "Qwen3Moe", true, "transformer"},
    {"gpt_oss", "GptOss", true},
    {"deepseek_v3", "DeepseekV3", true},
    {"gemma", "Gemma", true},
    {"olmo2", "Olmo2", false},
    {"olmo3", "Olmo3", false},
    {"granite", "Granite", false, "", "", false},
    {"cohere", "Cohere", false, "", "", false},
    {"glm", "Glm", true},
    {"glm4", "Glm4", true},
    {"smollm3", "SmolLM3", true, "transformer"},
    {"ernie4_5", "Ernie4_5", false, "", "", false},
    {"hunyuan_v1_dense", "HunYuanDenseV1", false},
    {"seed_oss", "SeedOss", true, "transformer"},
    {"qwen2_5_vl_text", "Qwen2_5_VLText", false, "", "", false},
    {"qwen3_vl_text", "Qwen3VLText", false, "", "", false},
    {"gpt2", "GPT2", true, "transformer", "classifier"},
});

const FamilyHeads& heads_of(const ModelConfig& config) {
  static constexpr FamilyHeads kOther{"", "", false};
  const auto found = std::ranges::find(kFamilyHeads, config.family, &FamilyHeads::family);
  return found == kFamilyHeads.end() ? kOther : *found;
}

// The classes of the family; the first is the causal one.
std::vector<std::pair<std::string, ModelHead>> classes_of(const ModelConfig& config) {
  const FamilyHeads& family = heads_of(config);
  std::vector<std::pair<std::string, ModelHead>> out{{config.torch_type, ModelHead::kCausal}};
  for (const auto& [ending, head] : kHeadClasses) {
    const bool has = head == ModelHead::kTokens     ? family.tokens
                     : head == ModelHead::kSpans    ? !family.spans_base.empty()
                     : head == ModelHead::kSequence ? family.sequence
                                                    : head != ModelHead::kCausal;
    if (has) {
      out.emplace_back(fmt::format("{}{}", family.classes, ending), head);
    }
  }
  return out;
}

std::string_view labels_name(const ModelConfig& config) {
  return config.head == ModelHead::kTokens ? heads_of(config).labels : "score";
}

}  // namespace

int64_t labels_of(const JsonNode& root) {
  const auto names = root.find("id2label");
  return names && names->json().is_object() && !names->json().empty()
             ? static_cast<int64_t>(names->json().size())
             : optional_integer(root.find("num_labels"), 2, 1, kLargestVocabulary);
}

// A class that ends like a causal one is: the names of older checkpoints are spelt otherwise
// ("LLaMAForCausalLM", "MPTForCausalLM").
void read_head(const JsonNode& root, ModelConfig& config) {
  const auto classes = root.find("architectures");
  if (!classes || classes->is_null()) {
    return;
  }
  const std::vector<JsonNode> listed = classes->items("names of classes");
  if (listed.empty()) {
    return;
  }
  const JsonNode& chosen = listed.front();  // as transformers takes it
  const std::string name = chosen.string();
  if (name.ends_with(kHeadClasses[0].ending) || name.ends_with(kHeadClasses[1].ending)) {
    return;
  }
  std::vector<std::string> known;
  for (const auto& [type, head] : classes_of(config)) {
    known.push_back(type);
    if (type == name) {
      config.head = head;
    }
  }
  if (config.head == ModelHead::kCausal) {
    chosen.fail(unsupported(
        chosen,
        fmt::format("{} is not a supported class of a model of type '{}'; expected one of "
                    "{}{}",
                    chosen.shown(), config.family, quoted_list(known), suggestion(name, known))));
  }
  config.torch_type = name;
  if (config.head == ModelHead::kSpans) {
    config.base_name = heads_of(config).spans_base;
  }
  config.labels = labels_of(root);
}

std::string base_name(const ModelConfig& config, std::string_view name) {
  return config.head == ModelHead::kNone ? ""
         : config.base_name.empty()      ? std::string(name)
                                         : config.base_name;
}

void add_head(TreeBuilder& build, const ModelConfig& config, int64_t features, uint32_t embedding) {
  switch (config.head) {
    case ModelHead::kCausal:
      if (config.tie_word_embeddings) {
        build.tie(build.module(0, "lm_head", "Linear"), "weight", embedding);
      } else {
        build.linear(0, "lm_head", features, config.vocab_size, false);
      }
      return;
    case ModelHead::kNone:
      return;
    case ModelHead::kTokens:
      build.module(0, "dropout", "Dropout");
      [[fallthrough]];
    case ModelHead::kSequence:
      build.linear(0, std::string(labels_name(config)), features, config.labels,
                   config.head == ModelHead::kTokens);
      return;
    case ModelHead::kSpans:
      build.linear(0, "qa_outputs", features, kSpanOutputs, true);
  }
}

void head_forward(WorkloadBuilder& build, const ModelConfig& config, int64_t features) {
  const int64_t outputs = outputs_of_head(config);
  switch (config.head) {
    case ModelHead::kCausal:
      return build.head("lm_head", {.in = features, .out = outputs});
    case ModelHead::kNone:
      return;
    case ModelHead::kTokens:
      build.enter("dropout");  // an identity: training with dropout is not supported
      build.leave();
      [[fallthrough]];
    case ModelHead::kSequence:
      return build.linear(
          std::string(labels_name(config)),
          {.in = features, .out = outputs, .bias = config.head == ModelHead::kTokens});
    case ModelHead::kSpans:
      build.linear("qa_outputs", {.in = features, .out = outputs, .bias = true});
  }
}

int64_t outputs_of_head(const ModelConfig& config) {
  switch (config.head) {
    case ModelHead::kCausal:
      return config.vocab_size;
    case ModelHead::kNone:
      return 0;
    case ModelHead::kSequence:
    case ModelHead::kTokens:
      return config.labels;
    case ModelHead::kSpans:
      return kSpanOutputs;
  }
  return 0;
}

}  // namespace shardlens::plan
