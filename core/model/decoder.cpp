#include "core/model/decoder.h"

#include <string>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/tree/tree_builder.h"
#include "core/workload/workload_builder.h"

namespace shardlens::plan {
namespace {

int64_t qkv_width(const DecoderShape& shape) {
  return shape.hidden + 2 * shape.hidden / shape.heads * shape.kv_heads;
}

void norm(WorkloadBuilder& build,
          const DecoderShape& shape,
          const std::string& module,
          bool residual = true) {
  build.enter(module);
  build.norm(shape.gated ? "shardlens::rms_norm" : "aten::layer_norm",
             shape.gated ? "shardlens::rms_norm_backward" : "aten::native_layer_norm_backward",
             {.features = shape.hidden,
              .statistics = shape.gated ? 1 : 2,
              .weights = shape.bias ? 2 : 1,
              .sums_input_grad = residual});
  build.leave();
}

void attention(WorkloadBuilder& build, const DecoderShape& shape, const std::string& name) {
  const int64_t qkv = qkv_width(shape);
  const int64_t rotated = qkv - (qkv - shape.hidden) / 2;  // queries and keys
  build.enter(name);
  build.linear(name + ".qkv", {.in = shape.hidden, .out = qkv, .bias = shape.bias});
  if (shape.positions == 0) {
    build.rotary(rotated);
  }
  // Queries, keys and values are views of one tensor; backward concatenates their gradients.
  build.elementwise("aten::split", "aten::cat", {.backward_read = qkv, .backward_written = qkv});
  build.attention(
      {.heads = shape.heads, .kv_heads = shape.kv_heads, .head_dim = shape.hidden / shape.heads});
  build.linear(name + ".out",
               {.in = shape.hidden, .out = shape.hidden, .bias = shape.bias, .keeps_input = false});
  build.leave();
}

void feed_forward(WorkloadBuilder& build, const DecoderShape& shape, const std::string& name) {
  const int64_t inner = shape.ffn;
  build.enter(name);
  if (shape.gated) {
    build.linear(name + ".gate",
                 {.in = shape.hidden, .out = inner, .bias = shape.bias, .sums_input_grad = true});
    build.linear(name + ".up",
                 {.in = shape.hidden, .out = inner, .bias = shape.bias, .keeps_input = false});
    build.silu_multiply(inner);
  } else {
    build.linear(name + ".up", {.in = shape.hidden, .out = inner, .bias = shape.bias});
    build.activation("gelu", inner);
  }
  build.linear(name + ".down", {.in = inner, .out = shape.hidden, .bias = shape.bias});
  build.leave();
}

void layer(WorkloadBuilder& build, const DecoderShape& shape, const std::string& name) {
  build.enter(name);
  norm(build, shape, name + ".norm_1");
  attention(build, shape, name + ".attn");
  build.add(shape.hidden);
  norm(build, shape, name + ".norm_2");
  feed_forward(build, shape, name + ".ffn");
  build.add(shape.hidden);
  build.leave();
}

}  // namespace

ModuleTree decoder_tree(const DecoderShape& shape) {
  TreeBuilder build("Decoder");
  const uint32_t embedding = build.embedding(0, "embed_tokens", shape.vocab, shape.hidden);
  if (shape.positions > 0) {
    build.embedding(0, "embed_positions", shape.positions, shape.hidden);
  }
  const auto norm = [&build, &shape](uint32_t parent, const std::string& name) {
    const uint32_t module = build.module(parent, name, shape.gated ? "RMSNorm" : "LayerNorm");
    build.parameter(module, "weight", {shape.hidden});
    if (shape.bias) {
      build.parameter(module, "bias", {shape.hidden});
    }
  };
  const uint32_t layers = build.module(0, "layers", "ModuleList");
  for (int64_t i = 0; i < shape.layers; ++i) {
    const uint32_t layer = build.module(layers, std::to_string(i), "DecoderLayer");
    build.block(layer);
    norm(layer, "norm_1");
    const uint32_t attention = build.module(layer, "attn", "Attention");
    build.linear(attention, "qkv", shape.hidden, qkv_width(shape), shape.bias);
    build.linear(attention, "out", shape.hidden, shape.hidden, shape.bias);
    norm(layer, "norm_2");
    const uint32_t ffn = build.module(layer, "ffn", "FeedForward");
    if (shape.gated) {
      build.linear(ffn, "gate", shape.hidden, shape.ffn, shape.bias);
    }
    build.linear(ffn, "up", shape.hidden, shape.ffn, shape.bias);
    build.linear(ffn, "down", shape.ffn, shape.hidden, shape.bias);
  }
  norm(0, "norm");
  if (shape.tied) {
    build.tie(build.module(0, "head", "Linear"), "weight", embedding);
  } else {
    build.linear(0, "head", shape.hidden, shape.vocab, false);
  }
  return build.take();
}

int64_t parameter_count(const DecoderShape& shape) {
  const int64_t qkv = qkv_width(shape);
  const int64_t inputs = (shape.gated ? 2 : 1) * shape.ffn;  // width before the MLP's activation
  const int64_t weights = shape.hidden * (qkv + shape.hidden + inputs + shape.ffn);
  const int64_t biases = shape.bias ? qkv + shape.hidden + inputs + shape.hidden : 0;
  const int64_t norm = (shape.bias ? 2 : 1) * shape.hidden;
  const int64_t tables = shape.vocab * (shape.tied ? 1 : 2) + shape.positions;
  return shape.layers * (weights + biases + 2 * norm) + norm + tables * shape.hidden;
}

Workload decoder_workload(const DecoderShape& shape,
                          const ResolvedPlan& plan,
                          const StepSettings& settings) {
  const int64_t seq = tokens_of(settings);
  if (shape.positions > 0 && seq > shape.positions) {
    throw InputError(
        "", fmt::format("seq {} is longer than the decoder's {} positions", seq, shape.positions));
  }
  WorkloadBuilder build(plan, settings.batch, seq);
  build.enter("");
  build.enter("embed_tokens");
  build.embedding(shape.hidden);
  build.leave();
  if (shape.positions > 0) {
    build.enter("embed_positions");
    build.embedding(shape.hidden);
    build.leave();
    build.add(shape.hidden);
  }
  for (int64_t i = 0; i < shape.layers; ++i) {
    layer(build, shape, fmt::format("layers.{}", i));
  }
  norm(build, shape, "norm", false);
  build.linear("head", {.in = shape.hidden, .out = shape.vocab});
  build.leave();
  build.loss(shape.vocab);
  build.finish_backward();
  build.optimizer(settings);
  return build.take();
}

}  // namespace shardlens::plan
