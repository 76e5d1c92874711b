#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/input_file.h"
#include "core/plan/families/config_values.h"
#include "core/plan/families/model_family.h"
#include "core/plan/json_reader.h"
#include "core/plan/model_file.h"
#include "core/plan/module_tree.h"

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
  const nlohmann::json document = parse_json(json, source);
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
  if (std::find(types.begin(), types.end(), type.string()) == types.end()) {
    type.fail(fmt::format("model type {} is not supported; expected one of {}{}", type.shown(),
                          quoted_list(types), suggestion(type.string(), types)));
  }
  config.family = type.string();
  if (const auto quantized = root.find("quantization_config"); quantized && !quantized->is_null()) {
    quantized->fail(
        "quantised weights are not supported; expected a checkpoint in fp32, bf16 or fp16");
  }
  config.dtype = weights_dtype(root);
  config.initializer_range = number_or(root, "initializer_range", 0.02, 0.0, 1.0);
  family_of(config).read(root, config);
  return config;
}

}  // namespace shardlens::plan
