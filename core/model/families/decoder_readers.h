#pragma once

#include "core/json/json_reader.h"
#include "core/model/model_config.h"

// The keys of config.json that only one family of decoders has, or a few. They are read after those
// that all have, with transformers' defaults. Errors: InputError naming the key.
namespace shardlens::plan {

void read_mistral(const JsonNode& root, ModelConfig& config);
void read_qwen(const JsonNode& root, ModelConfig& config);
void read_gemma(const JsonNode& root, ModelConfig& config);
void read_normed(const JsonNode& root, ModelConfig& config);  // norms of queries and keys
void read_olmo3(const JsonNode& root, ModelConfig& config);
void read_cohere(const JsonNode& root, ModelConfig& config);
void read_glm(const JsonNode& root, ModelConfig& config);
void read_smollm3(const JsonNode& root, ModelConfig& config);
void read_ernie(const JsonNode& root, ModelConfig& config);
void read_seed_oss(const JsonNode& root, ModelConfig& config);
void read_phi3(const JsonNode& root, ModelConfig& config);
void read_opt(const JsonNode& root, ModelConfig& config);
void read_mpt(const JsonNode& root, ModelConfig& config);
void read_mixtral(const JsonNode& root, ModelConfig& config);
void read_qwen3_moe(const JsonNode& root, ModelConfig& config);
void read_gpt_oss(const JsonNode& root, ModelConfig& config);
void read_deepseek_v3(const JsonNode& root, ModelConfig& config);

}  // namespace shardlens::plan
