#include "core/model/model_config.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/files/input_file.h"
#include "core/json/json_reader.h"
#include "core/model/families/config_values.h"
#include "core/model/families/model_family.h"
#include "core/model/model_file.h"

namespace shardlens::plan {
namespace {

using Names = std::vector<std::string>;

DType weights_dtype(const JsonNode& root) {
  static const Names kDtypes{"float32", "bfloat16", "float16"};
  for (const std::string_view key : {"dtype", "torch_dtype"}) {
    const auto node = root.find(key);
    if (node && !node->is_null()) {
      return *parse_dtype(kDtypes[node->one_of(kDtypes)]);
    }
  }
  return DType::kF32;
}

// How the published weights are stored; a program that trains them all has the modules without it.
void read_quantization(const JsonNode& root, ModelConfig& config) {
  const auto settings = root.find("quantization_config");
  if (!settings || settings->is_null()) {
    return;
  }
  settings->expect_object("an object with quantisation settings");
  const auto method = settings->find("quant_method");
  config.quantization = method && !method->is_null() ? method->string() : "unnamed";
  config.notes.push_back(
      fmt::format("quantization_config ({}) is of the published weights: modules and sizes are "
                  "those of the model without it",
                  config.quantization));
}

void note_rope(ModelConfig& config) {
  static const Names kComputed{"default", "linear", "llama3"};  // by the engine
  if (std::ranges::find(kComputed, config.rope_type) == kComputed.end()) {
    config.notes.push_back(fmt::format(
        "rope scaling ({}) changes angles, not modules or their sizes", config.rope_type));
  }
}

// Python writes numbers that JSON does not have. No key of a family that is read here has one, so
// they become null.
std::string with_null_numbers(std::string_view text) {
  constexpr std::string_view kNumbers[] = {"-Infinity", "Infinity", "NaN"};
  std::string out;
  if (text.find(kNumbers[1]) == std::string_view::npos &&
      text.find(kNumbers[2]) == std::string_view::npos) {
    return out.append(text);
  }
  bool in_string = false;
  for (size_t i = 0; i < text.size();) {
    const auto number = std::ranges::find_if(kNumbers, [&](std::string_view each) {
      return !in_string && text.substr(i).starts_with(each);
    });
    if (number != std::end(kNumbers)) {
      out += "null";
      i += number->size();
      continue;
    }
    const bool escapes = in_string && text[i] == '\\' && i + 1 < text.size();
    in_string = in_string != (text[i] == '"');
    out.append(text.substr(i, escapes ? 2 : 1));
    i += escapes ? 2 : 1;
  }
  return out;
}

void read_family(const JsonNode& root, ModelConfig& config) {
  config.initializer_range = number_or(root, "initializer_range", 0.02, 0.0, 1.0);
  family_of(config).read(root, config);
  note_rope(config);
}

bool is_one_of(const JsonNode& type, const Names& types) {
  return std::ranges::find(types, type.string()) != types.end();
}

// The settings of the language model of a model with other parts too, such as one for images; none
// if Shardlens has no such family, or if the class has another head.
std::optional<JsonNode> language_model(const JsonNode& root, const Names& types) {
  const auto text = root.find("text_config");
  if (!text || !text->json().is_object()) {
    return std::nullopt;
  }
  const auto type = text->find("model_type");
  if (!type || !type->json().is_string() || !is_one_of(*type, types)) {
    return std::nullopt;
  }
  const auto classes = root.find("architectures");
  if (classes && classes->json().is_array() && !classes->json().empty() &&
      !classes->items("names of classes").front().string().ends_with("ForConditionalGeneration")) {
    return std::nullopt;
  }
  return text;
}

// The class and the tie of the head are those of the whole model.
nlohmann::json with_shared_keys(const JsonNode& text, const JsonNode& root) {
  nlohmann::json out = text.json();
  out.erase("architectures");
  if (const auto tied = root.find("tie_word_embeddings"); tied && !tied->is_null()) {
    out["tie_word_embeddings"] = tied->boolean();
  }
  return out;
}

}  // namespace

ModelConfig load_model_config(const std::filesystem::path& path) {
  std::error_code ignored;
  std::filesystem::path file = path;
  if (std::filesystem::is_directory(path, ignored)) {
    file = path / "config.json";
    if (!has_file(file)) {
      throw InputError(path.string(),
                       "the directory has no config.json; expected a Hugging Face model directory");
    }
  } else if (!std::filesystem::exists(path, ignored)) {
    throw InputError(path.string(),
                     "does not exist; expected a directory with config.json, or a config.json");
  }
  return parse_model_config(read_text_file(file), file.string());
}

ModelConfig parse_model_config(std::string_view json, const std::string& source) {
  Names types;
  for (const ModelFamily& family : model_families()) {
    types.emplace_back(family.model_type);
  }
  ModelConfig config;
  config.source = source;
  const nlohmann::json document = parse_json(with_null_numbers(json), source);
  const JsonNode root(document, source);
  root.expect_object("an object with a model's settings");
  if (root.find("shardlens_model")) {
    config.file = read_model_file(root);
    config.torch_type = config.file->name;
    config.family = config.file->tree.modules.front().type;
    config.dtype = config.file->dtype;
    return config;
  }
  const JsonNode type = root.require("model_type");
  read_quantization(root, config);
  config.dtype = weights_dtype(root);
  if (is_one_of(type, types)) {
    config.family = type.string();
    read_family(root, config);
  } else if (const auto text = language_model(root, types)) {
    const nlohmann::json whole = with_shared_keys(*text, root);
    config.family = text->require("model_type").string();
    config.notes.push_back(fmt::format(
        "text_config ({}) of {} is planned, with the names that it has by itself; its other parts "
        "are not",
        config.family, type.string()));
    read_family(text->with(whole), config);
  } else {
    type.fail(unsupported(
        type, fmt::format("model type {} is not supported; expected one of {}{}", type.shown(),
                          quoted_list(types), suggestion(type.string(), types))));
  }
  return config;
}

int64_t active_parameters(const ModelConfig& config, const ModuleTree& tree) {
  int64_t out = 0;
  for (const Parameter& parameter : tree.parameters) {
    const bool routed =
        config.experts.count > 0 && parameter.fqn.find(".experts.") != std::string::npos;
    out += routed ? parameter.numel / config.experts.count * config.experts.per_token
                  : parameter.numel;
  }
  return out;
}

ModuleTree module_tree(const ModelConfig& config) {
  return config.file != nullptr ? config.file->tree : family_of(config).tree(config);
}

}  // namespace shardlens::plan
