#include <algorithm>
#include <cctype>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/model/model_config.h"
#include "core/tree/module_tree.h"

namespace shardlens::plan {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::IsSupersetOf;

json published(const std::string& name) {
  json out;
  std::ifstream(std::string(SHARDLENS_TEST_DATA) + "/published/" + name) >> out;
  return out;
}

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

// A parameter's layer, or its module of the second level.
std::string module_of(const std::string& parameter) {
  std::vector<std::string> parts{""};
  for (const char c : parameter) {
    if (c == '.') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  size_t length = std::min<size_t>(parts.size(), 2);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (is_number(parts[i])) {
      length = i + 1;
      break;
    }
  }
  std::string out = parts.front();
  for (size_t i = 1; i < length; ++i) {
    out += "." + parts[i];
  }
  return out;
}

// "layers.0-3" is four modules with equal numbers of parameters.
std::map<std::string, int64_t> each_module(const json& counts) {
  std::map<std::string, int64_t> out;
  for (const auto& [name, count] : counts.items()) {
    const size_t dash = name.rfind('-');
    const size_t dot = name.rfind('.');
    if (dash == std::string::npos || dot == std::string::npos || dash < dot) {
      out[name] = count;
      continue;
    }
    for (int i = std::stoi(name.substr(dot + 1)); i <= std::stoi(name.substr(dash + 1)); ++i) {
      out[name.substr(0, dot + 1) + std::to_string(i)] = count;
    }
  }
  return out;
}

// Published config.json with the numbers of transformers (tests/tools/published_models.py).
class PublishedTest : public testing::TestWithParam<std::string> {};

TEST_P(PublishedTest, HasTheParametersOfTransformersOrIsExported) {
  const json config = published("configs.json").at(GetParam()).at("config");
  const json expected = published("expected.json").at(GetParam());
  ModuleTree tree;
  try {
    tree = module_tree(parse_model_config(config.dump(), "models/it/config.json"));
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("'python -m shardlens.export --hf models/it --out model.json'"));
    return;
  }
  ASSERT_TRUE(expected.contains("parameters")) << "transformers: " << expected;
  std::map<std::string, int64_t> modules;
  int64_t total = 0;
  for (const Parameter& parameter : tree.parameters) {
    total += parameter.numel;
    modules[module_of(parameter.fqn)] += parameter.numel;
  }
  EXPECT_EQ(total, expected.contains("text") ? expected["text"] : expected["parameters"]);
  if (expected.contains("modules")) {
    EXPECT_EQ(modules, each_module(expected["modules"]));
  }
}

std::vector<std::string> names_of_published() {
  const json models = published("configs.json");
  std::vector<std::string> out;
  for (const auto& each : models.items()) {
    out.push_back(each.key());
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(Models,
                         PublishedTest,
                         testing::ValuesIn(names_of_published()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace_if(
                               name, [](char c) { return std::isalnum(c) == 0; }, '_');
                           return name;
                         });

TEST(PublishedModelsTest, TheseFamiliesArePlanned) {
  const json models = published("configs.json");
  std::set<std::string> planned;
  for (const auto& [name, entry] : models.items()) {
    try {
      (void)parse_model_config(entry.at("config").dump(), "config.json");
      planned.insert(entry.at("config").at("model_type").get<std::string>());
    } catch (const InputError&) {
      continue;
    }
  }
  EXPECT_THAT(planned, IsSupersetOf({"olmo2", "granite", "cohere", "glm4", "smollm3", "ernie4_5",
                                     "hunyuan_v1_dense", "gemma3", "llava", "qwen3_vl"}));
}

TEST(PublishedModelsTest, TheLanguageModelOfAModelOfImagesIsPlannedWithANote) {
  const std::string text = R"("text_config": {"model_type": "llama", "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 1000,
    "tie_word_embeddings": false})";
  const ModelConfig config = parse_model_config(
      R"({"model_type": "llava", "tie_word_embeddings": true, "torch_dtype": "bfloat16",
          "vision_config": {"model_type": "clip_vision_model"}, )" +
          text + "}",
      "config.json");
  EXPECT_EQ(config.torch_type, "LlamaForCausalLM");
  EXPECT_EQ(config.dtype, DType::kBF16);
  EXPECT_TRUE(config.tie_word_embeddings);  // as the whole model's key says
  ASSERT_EQ(config.notes.size(), 1U);
  EXPECT_THAT(config.notes.front(), HasSubstr("text_config (llama) of llava is planned"));
  // Another head, or a language model that is no row, is not planned.
  for (const std::string& other :
       {R"("architectures": ["LlavaForSequenceClassification"], )" + text,
        std::string(R"("text_config": {"model_type": "mllama_text_model"})")}) {
    EXPECT_THROW(
        (void)parse_model_config(R"({"model_type": "llava", )" + other + "}", "config.json"),
        InputError);
  }
  // A wrong value is found at its place in the file.
  try {
    (void)parse_model_config(
        R"({"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": "x"}})",
        "config.json");
    FAIL() << "accepted";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("config.json#/text_config/vocab_size"));
  }
}

TEST(PublishedModelsTest, ALineForAShellNamesTheModel) {
  const auto line_of = [](const std::string& source) {
    try {
      (void)parse_model_config(R"({"model_type": "bert"})", source);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(line_of("config.json"), HasSubstr("--hf . --out model.json"));
  EXPECT_THAT(line_of("/m/bert.json"), HasSubstr("--hf /m/bert.json --out model.json"));
  EXPECT_THAT(line_of("my models/config.json"), HasSubstr(R"(--hf "my models" --out model.json)"));
}

// json.dump() of Python writes them, as in the published config.json of Nemotron-H.
TEST(PublishedModelsTest, NumbersThatJsonDoesNotHaveAreRead) {
  const ModelConfig config = parse_model_config(
      R"({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4,
          "_name_or_path": "\"NaN\\", "top_p": NaN, "max_length": Infinity, "min_length": -Infinity})",
      "config.json");
  EXPECT_EQ(config.hidden_size, 64);
}

}  // namespace
}  // namespace shardlens::plan
