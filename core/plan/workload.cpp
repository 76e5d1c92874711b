#include "core/plan/workload.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/plan/workload_builder.h"

namespace shardlens::plan {
namespace {

using Family = ModelConfig::Family;
using Linear = WorkloadBuilder::Linear;

// `residual`: its input is also used by a residual connection, so that two gradients are added.
void rms_norm(WorkloadBuilder& build,
              const std::string& module,
              int64_t features,
              bool residual = true) {
  build.enter(module);
  build.norm("shardlens::rms_norm", "shardlens::rms_norm_backward",
             {.features = features, .statistics = 1, .weights = 1, .sums_input_grad = residual});
  build.leave();
}

void layer_norm(WorkloadBuilder& build,
                const std::string& module,
                int64_t features,
                bool residual = true) {
  build.enter(module);
  build.norm("aten::layer_norm", "aten::native_layer_norm_backward",
             {.features = features, .statistics = 2, .weights = 2, .sums_input_grad = residual});
  build.leave();
}

void llama_attention(WorkloadBuilder& build, const ModelConfig& config, const std::string& name) {
  const int64_t q = config.heads * config.head_dim;
  const int64_t kv = config.kv_heads * config.head_dim;
  const bool bias = config.attention_bias;
  build.enter(name);
  // The three projections share their input, which is saved once. Its gradient is the sum of three:
  // backward runs v first, then k and q each add theirs.
  build.linear(name + ".q_proj",
               {.in = config.hidden_size, .out = q, .bias = bias, .sums_input_grad = true});
  build.rotary(q);
  build.linear(name + ".k_proj", {.in = config.hidden_size,
                                  .out = kv,
                                  .bias = bias,
                                  .keeps_input = false,
                                  .sums_input_grad = true});
  build.rotary(kv);
  build.linear(name + ".v_proj",
               {.in = config.hidden_size, .out = kv, .bias = bias, .keeps_input = false});
  build.attention(
      {.heads = config.heads, .kv_heads = config.kv_heads, .head_dim = config.head_dim});
  build.linear(name + ".o_proj",
               {.in = q, .out = config.hidden_size, .bias = bias, .keeps_input = false});
  build.leave();
}

void llama_mlp(WorkloadBuilder& build, const ModelConfig& config, const std::string& name) {
  const int64_t hidden = config.hidden_size;
  const int64_t inner = config.intermediate_size;
  const bool bias = config.mlp_bias;
  build.enter(name);
  build.linear(name + ".gate_proj",
               {.in = hidden, .out = inner, .bias = bias, .sums_input_grad = true});
  build.linear(name + ".up_proj", {.in = hidden, .out = inner, .bias = bias, .keeps_input = false});
  if (config.activation == "silu") {
    build.silu_multiply(inner);
  } else {
    build.enter(name + ".act_fn");
    build.activation(config.activation, inner);
    build.leave();
    build.elementwise("aten::mul", "aten::mul",
                      {.read = 2 * inner,
                       .written = inner,
                       .saved = config.activation == "relu" ? inner : 2 * inner,
                       .flops = inner,
                       .backward_read = 4 * inner,
                       .backward_written = 2 * inner,
                       .backward_flops = 2 * inner});
  }
  build.linear(name + ".down_proj", {.in = inner, .out = hidden, .bias = bias});
  build.leave();
}

void head(WorkloadBuilder& build, const ModelConfig& config) {
  build.linear("lm_head", {.in = config.hidden_size, .out = config.vocab_size});
}

void llama_forward(WorkloadBuilder& build, const ModelConfig& config) {
  const int64_t hidden = config.hidden_size;
  build.enter("model");
  build.enter("model.embed_tokens");
  build.embedding(hidden);
  build.leave();
  build.enter("model.rotary_emb");
  build.leave();
  for (int64_t i = 0; i < config.layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}", i);
    build.enter(layer);
    rms_norm(build, layer + ".input_layernorm", hidden);
    llama_attention(build, config, layer + ".self_attn");
    build.add(hidden);
    rms_norm(build, layer + ".post_attention_layernorm", hidden);
    llama_mlp(build, config, layer + ".mlp");
    build.add(hidden);
    build.leave();
  }
  rms_norm(build, "model.norm", hidden, false);
  build.leave();
  head(build, config);
}

void gpt2_block(WorkloadBuilder& build, const ModelConfig& config, const std::string& layer) {
  const int64_t hidden = config.hidden_size;
  const int64_t inner = config.intermediate_size;
  const auto dropout = [&build](const std::string& module) {
    build.enter(module);  // an identity: training with dropout is not supported
    build.leave();
  };
  build.enter(layer);
  layer_norm(build, layer + ".ln_1", hidden);
  build.enter(layer + ".attn");
  build.linear(layer + ".attn.c_attn",
               {.in = hidden, .out = 3 * hidden, .bias = true, .transposed = false});
  // Queries, keys and values are views of one tensor; backward concatenates their gradients.
  build.elementwise("aten::split", "aten::cat",
                    {.backward_read = 3 * hidden, .backward_written = 3 * hidden});
  build.attention({.heads = config.heads, .kv_heads = config.heads, .head_dim = config.head_dim});
  build.linear(
      layer + ".attn.c_proj",
      {.in = hidden, .out = hidden, .bias = true, .transposed = false, .keeps_input = false});
  dropout(layer + ".attn.resid_dropout");
  build.leave();
  build.add(hidden);
  layer_norm(build, layer + ".ln_2", hidden);
  build.enter(layer + ".mlp");
  build.linear(layer + ".mlp.c_fc",
               {.in = hidden, .out = inner, .bias = true, .transposed = false});
  build.enter(layer + ".mlp.act");
  build.activation(config.activation, inner);
  build.leave();
  build.linear(layer + ".mlp.c_proj", {.in = inner,
                                       .out = hidden,
                                       .bias = true,
                                       .transposed = false,
                                       .keeps_input = config.activation != "relu"});
  dropout(layer + ".mlp.dropout");
  build.leave();
  build.add(hidden);
  build.leave();
}

void gpt2_forward(WorkloadBuilder& build, const ModelConfig& config) {
  build.enter("transformer");
  for (const std::string table : {"transformer.wte", "transformer.wpe"}) {
    build.enter(table);
    build.embedding(config.hidden_size);
    build.leave();
  }
  build.add(config.hidden_size);
  build.enter("transformer.drop");
  build.leave();
  for (int64_t i = 0; i < config.layers; ++i) {
    gpt2_block(build, config, fmt::format("transformer.h.{}", i));
  }
  layer_norm(build, "transformer.ln_f", config.hidden_size, false);
  build.leave();
  head(build, config);
}

void mlp_forward(WorkloadBuilder& build, const ModelConfig& config) {
  build.enter("embed_tokens");
  build.embedding(config.hidden_size);
  build.leave();
  for (int64_t i = 0; i < config.layers; ++i) {
    const std::string layer = fmt::format("layers.{}", i);
    build.enter(layer);
    build.linear(layer + ".fc1", {.in = config.hidden_size,
                                  .out = config.intermediate_size,
                                  .bias = true,
                                  .sums_input_grad = true});
    build.activation("relu", config.intermediate_size);
    build.linear(layer + ".fc2", {.in = config.intermediate_size,
                                  .out = config.hidden_size,
                                  .bias = true,
                                  .keeps_input = false});
    build.add(config.hidden_size);
    build.leave();
  }
  head(build, config);
}

}  // namespace

Workload step_workload(const ModelConfig& config,
                       const ResolvedPlan& plan,
                       const StepSettings& settings) {
  const int64_t seq = tokens_of(settings);
  if (seq > config.max_positions) {
    throw InputError(config.source, fmt::format("seq {} is longer than the model's {} positions",
                                                seq, config.max_positions));
  }
  if (std::ranges::none_of(plan.tree.parameters, &Parameter::requires_grad)) {
    throw InputError(plan.plan.source + "#/frozen_parameters",
                     "every parameter is frozen; expected at least one that is not frozen");
  }
  WorkloadBuilder build(plan, settings.batch, seq);
  build.enter("");
  switch (config.family) {
    case Family::kLlama:
      llama_forward(build, config);
      break;
    case Family::kGpt2:
      gpt2_forward(build, config);
      break;
    case Family::kMlp:
      mlp_forward(build, config);
      break;
  }
  build.leave();
  build.loss(config.vocab_size);
  build.finish_backward();
  build.optimizer(settings);
  return build.take();
}

}  // namespace shardlens::plan
