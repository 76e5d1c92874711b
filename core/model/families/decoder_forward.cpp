#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/model/families/compiled_experts.h"
#include "core/model/families/decoder_family.h"
#include "core/model/families/divided_experts.h"
#include "core/model/families/heads.h"
#include "core/model/families/joined_projections.h"
#include "core/model/families/torchtitan_experts.h"
#include "core/model/families/transformer_parts.h"
#include "core/model/families/weighted_experts.h"

namespace shardlens::plan {
namespace {

// Shapes  rows = batch · seq; sizes are per row: D hidden, I intermediate, K experts per token.
class DecoderForward {
 public:
  DecoderForward(WorkloadBuilder& build, const ModelConfig& config)
      : family_(decoder_family_of(config)), config_(config), build_(build) {}

  void run() {
    std::string model = base_name(config_, family_.containers.front().name);
    size_t entered = 0;
    const auto enter = [&] {
      build_.enter(model);
      ++entered;
    };
    if (!model.empty()) {
      enter();
    }
    for (const Slot& slot : family_.containers.subspan(1)) {
      model = joined(model, slot.name);
      enter();
    }
    embeddings(model);
    for (int64_t i = 0; i < config_.layers; ++i) {
      layer(fmt::format("{}.{}", path(model, family_.model, Part::kLayers), i), i);
    }
    if (has_part(config_, Part::kFinalNorm)) {
      norm(path(model, family_.model, Part::kFinalNorm), config_.hidden_size, false);
    }
    if (const Slot* out = find_slot(family_.model, Part::kProjectOut);
        out != nullptr && has_part(config_, Part::kProjectOut)) {
      build_.linear(path(model, family_.model, Part::kProjectOut),
                    {.in = config_.hidden_size, .out = config_.embedding_size});
    }
    for (; entered > 0; --entered) {
      build_.leave();
    }
    head_forward(build_, config_, config_.embedding_size);
    if (config_.head != ModelHead::kCausal) {
      return;
    }
    if (family_.scales_logits) {
      scale(config_.vocab_size);
    }
    if (config_.logit_cap > 0 && !build_.is_engine()) {
      build_.unfused(unfused_cap(), OperatorKind::kElementwise, config_.vocab_size);
    } else if (config_.logit_cap > 0) {
      const int64_t logits = config_.vocab_size;
      build_.elementwise("shardlens::softcap", "shardlens::softcap_backward",
                         {.read = logits,
                          .written = logits,
                          .saved = logits,
                          .flops = 3 * logits,
                          .backward_read = 2 * logits,
                          .backward_written = logits,
                          .backward_flops = 3 * logits});
    }
  }

 private:
  using Slots = std::span<const Slot>;

  static const Slot& slot(Slots slots, Part part) {
    const Slot* found = find_slot(slots, part);
    SHARDLENS_CHECK(found != nullptr, "the family has no such part");
    return *found;
  }
  static std::string path(const std::string& parent, Slots slots, Part part) {
    return joined(parent, slot(slots, part).name);
  }
  static std::string joined(const std::string& parent, std::string_view name) {
    return parent.empty() ? std::string(name) : fmt::format("{}.{}", parent, name);
  }
  void visit(const std::string& module) {  // a module that runs nothing
    build_.enter(module);
    build_.leave();
  }
  void scale(int64_t features) {  // by a constant
    build_.elementwise("aten::mul", "aten::mul",
                       {.read = features,
                        .written = features,
                        .flops = features,
                        .backward_read = features,
                        .backward_written = features,
                        .backward_flops = features});
  }
  void norm(const std::string& module, int64_t features, bool residual, int64_t groups = 1) {
    build_.enter(module);
    const int64_t weights = !config_.affine_norms ? 0 : family_.norm_bias ? 2 : 1;
    const bool layer_norm = family_.layer_norms;
    build_.norm(layer_norm ? "aten::layer_norm" : "shardlens::rms_norm",
                layer_norm ? "aten::native_layer_norm_backward" : "shardlens::rms_norm_backward",
                {.features = features,
                 .statistics = layer_norm ? 2 : 1,
                 .weights = weights,
                 .sums_input_grad = residual,
                 .groups = groups,
                 .offset = family_.offset_norms,
                 .wide = family_.wide_norms});
    build_.leave();
  }
  // The norm of `part` where the family has one.
  void norm_if(const std::string& layer, Part part, bool residual) {
    if (find_slot(family_.layer, part) != nullptr) {
      norm(path(layer, family_.layer, part), config_.hidden_size, residual);
    }
  }

  void embeddings(const std::string& model) {
    build_.enter(path(model, family_.model, Part::kEmbedding));
    build_.embedding(config_.embedding_size);
    if (family_.scales_embedding) {
      scale(config_.embedding_size);
    }
    build_.sum_terms(config_.embedding_size);
    build_.leave();
    if (find_slot(family_.model, Part::kPositions) != nullptr) {
      build_.enter(path(model, family_.model, Part::kPositions));
      build_.embedding(config_.hidden_size);
      build_.leave();
      if (has_part(config_, Part::kProjectIn)) {
        build_.linear(path(model, family_.model, Part::kProjectIn),
                      {.in = config_.embedding_size, .out = config_.hidden_size});
      }
      build_.add(config_.hidden_size);
    }
    if (find_slot(family_.model, Part::kRotary) != nullptr) {
      visit(path(model, family_.model, Part::kRotary));
    }
  }

  void layer(const std::string& name, int64_t index) {
    const bool before = config_.norm_before;
    rotates_ = family_.rotary && !flag_of(config_.unrotated, index);
    build_.enter(name);
    if (before) {
      norm_if(name, Part::kInputNorm, true);
    }
    attention(path(name, family_.layer, Part::kAttention), flag_of(config_.windowed, index));
    norm_if(name, Part::kAttentionOutputNorm, false);
    dropout(name, 0);
    if (!family_.parallel) {
      add_to_residual();
    }
    norm_if(name, before ? Part::kMlpNorm : Part::kInputNorm, before);
    if (find_slot(family_.layer, Part::kMlp) == nullptr) {
      mlp(name, config_.intermediate_size);
    } else {
      const std::string inner = path(name, family_.layer, Part::kMlp);
      build_.enter(inner);
      if (flag_of(config_.sparse, index)) {
        sparse(inner);
      } else {
        mlp(inner, config_.intermediate_size);
      }
      build_.leave();
    }
    norm_if(name, Part::kMlpOutputNorm, false);
    dropout(name, 1);
    if (family_.parallel) {
      add_to_residual();
    }
    add_to_residual();
    if (!before) {
      norm_if(name, Part::kMlpNorm, false);
    }
    build_.leave();
  }

  void add_to_residual() {
    if (family_.scales_residual) {
      scale(config_.hidden_size);
    }
    build_.add(config_.hidden_size);
  }
  // Whether the MLP or attention reads the residual itself, whose gradient is computed before.
  [[nodiscard]] bool reads_residual(Part norm) const {
    return !config_.norm_before || find_slot(family_.layer, norm) == nullptr;
  }

  // The layer's dropout module number `index`; an identity, as training with dropout is not
  // described.
  void dropout(const std::string& layer, int64_t index) {
    for (const Slot& slot : family_.layer) {
      if (slot.part == Part::kDropout && index-- == 0) {
        visit(fmt::format("{}.{}", layer, slot.name));
      }
    }
  }

  void attention(const std::string& name, bool windowed) {
    build_.enter(name);
    if (config_.latent.key_value_rank > 0) {
      latent(name);
    } else if (find_slot(family_.attention, Part::kQueryKeyValue) != nullptr) {
      fused(name);
    } else if (build_.program() == Program::kTorchtitan03 && config_.lora.rank == 0) {
      copied_parts(name);
    } else {
      separate(name);
    }
    const int64_t value_dim =
        config_.latent.value_dim > 0 ? config_.latent.value_dim : config_.head_dim;
    const bool one_product = find_slot(family_.attention, Part::kQueryKeyValue) != nullptr;
    const bool flash = config_.flash && !is_torchtitan(build_.program());
    build_.attention({.heads = config_.heads,
                      .kv_heads = config_.kv_heads,
                      .head_dim = config_.head_dim,
                      .value_dim = value_dim,
                      .window = windowed ? config_.sliding_window : 0,
                      .eager = family_.eager == Scores::kCapped && config_.score_cap <= 0
                                   ? Scores::kScaled
                                   : family_.eager,
                      .sdpa = config_.latent.sdpa,
                      .flash = flash,
                      .one_product = one_product,
                      .beside_values = config_.latent.plain_dim});
    // The result of queries that were put together has the heads outside of the rows.
    const bool eager = !build_.is_engine() && family_.eager != Scores::kFused && !flash;
    const bool moved = !build_.is_engine() && family_.rotary && one_product;
    if (moved) {
      const int64_t features = config_.heads * value_dim;
      build_.elementwise("aten::clone", "", {.read = features, .written = features});
    }
    const std::string output = path(name, family_.attention, Part::kOutput);
    const WorkloadBuilder::Linear product{
        .in = config_.heads * value_dim,
        .out = config_.hidden_size,
        .bias = has_bias(family_.output_bias, config_.attention_bias),
        .keeps_input = moved || eager};
    if (one_product) {
      build_.split_linear(output, product);
    } else {
      build_.linear(output, product);
    }
    build_.leave();
  }

  void rotary(int64_t features) {
    if (rotates_) {
      const bool complex = is_torchtitan(build_.program()) && family_.torchtitan == Titan::kComplex;
      build_.rotary(static_cast<int64_t>(static_cast<double>(features) * config_.rotary_share),
                    complex);
    }
  }

  // torchtitan 0.3: one product, of whose result queries, keys and values are copies.
  void copied_parts(const std::string& name) {
    visit(path(name, family_.attention, Part::kKey));
    visit(path(name, family_.attention, Part::kValue));
    copied_projections(build_, config_, path(name, family_.attention, Part::kQuery),
                       has_bias(family_.query_bias, config_.attention_bias));
    if (config_.query_key_norms) {
      norm(path(name, family_.attention, Part::kQueryNorm), config_.head_dim, false, config_.heads);
      norm(path(name, family_.attention, Part::kKeyNorm), config_.head_dim, false,
           config_.kv_heads);
    }
    rotary(config_.heads * config_.head_dim);
    rotary(config_.kv_heads * config_.head_dim);
  }

  // The three projections share their input, which is saved once. Its gradient is the sum of three
  // (and the residual's, if no norm is between): backward runs v first, then k and q each add
  // theirs.
  void separate(const std::string& name) {
    const int64_t q = config_.heads * config_.head_dim;
    const int64_t kv = config_.kv_heads * config_.head_dim;
    const bool bias = has_bias(family_.query_bias, config_.attention_bias);
    const auto finish = [&](Part norm_part, int64_t heads, int64_t features) {
      if (family_.norms_rotated) {
        rotary(features);
      }
      if (config_.query_key_norms) {
        const int64_t groups = family_.whole_norms ? 1 : heads;
        norm(path(name, family_.attention, norm_part), features / groups, false, groups);
      }
      if (!family_.norms_rotated) {
        rotary(features);
      }
    };
    build_.linear(path(name, family_.attention, Part::kQuery),
                  {.in = config_.hidden_size, .out = q, .bias = bias, .sums_input_grad = true});
    if (family_.scales_queries) {
      scale(q);
    }
    finish(Part::kQueryNorm, config_.heads, q);
    build_.linear(path(name, family_.attention, Part::kKey), {.in = config_.hidden_size,
                                                              .out = kv,
                                                              .bias = bias,
                                                              .keeps_input = false,
                                                              .sums_input_grad = true});
    finish(Part::kKeyNorm, config_.kv_heads, kv);
    build_.linear(path(name, family_.attention, Part::kValue),
                  {.in = config_.hidden_size,
                   .out = kv,
                   .bias = bias,
                   .keeps_input = false,
                   .sums_input_grad = family_.parallel || reads_residual(Part::kInputNorm)});
  }

  void fused(const std::string& name) {
    const int64_t q = config_.heads * config_.head_dim;
    const int64_t kv = config_.kv_heads * config_.head_dim;
    const int64_t all = q + 2 * kv;
    build_.gathered_linear(path(name, family_.attention, Part::kQueryKeyValue),
                           {.in = config_.hidden_size, .out = all});
    if (config_.clips_queries) {
      build_.elementwise("aten::clamp", "aten::clamp_backward",
                         {.read = all,
                          .written = all,
                          .saved = all,
                          .flops = all,
                          .backward_read = 2 * all,
                          .backward_written = all,
                          .backward_flops = all});
    }
    if (!build_.is_engine() && family_.rotary && !build_.compiles()) {
      rotated_parts(q, kv);
      return;
    }
    rotary(q + kv);
    // Queries, keys and values are views of one tensor; backward concatenates their gradients.
    build_.elementwise("aten::split", "aten::cat", {.backward_read = all, .backward_written = all});
  }

  // Queries and keys that are slices of one product are put together from a rotated and a plain
  // part. The product is kept for its values. Each slice's gradient has the size of the product.
  void rotated_parts(int64_t q, int64_t kv) {
    rotary(q);
    rotary(kv);
    put_rotated_together(build_, q, kv);
  }

  void latent(const std::string& name) {
    const ModelConfig::Latent& sizes = config_.latent;
    const int64_t hidden = config_.hidden_size;
    const int64_t q = config_.heads * config_.head_dim;
    const bool bias = has_bias(family_.query_bias, config_.attention_bias);
    if (sizes.query_rank > 0) {
      build_.linear(path(name, family_.attention, Part::kQueryDown),
                    {.in = hidden, .out = sizes.query_rank, .bias = bias, .sums_input_grad = true});
      norm(path(name, family_.attention, Part::kQueryDownNorm), sizes.query_rank, false);
      build_.linear(path(name, family_.attention, Part::kQueryUp),
                    {.in = sizes.query_rank, .out = q});
    } else {
      build_.linear(path(name, family_.attention, Part::kQuery),
                    {.in = hidden, .out = q, .sums_input_grad = true});
    }
    build_.linear(path(name, family_.attention, Part::kKeyValueDown),
                  {.in = hidden,
                   .out = sizes.key_value_rank + sizes.rope_dim,
                   .bias = bias,
                   .keeps_input = false});
    norm(path(name, family_.attention, Part::kKeyValueDownNorm), sizes.key_value_rank, false);
    build_.linear(
        path(name, family_.attention, Part::kKeyValueUp),
        {.in = sizes.key_value_rank, .out = config_.heads * (sizes.plain_dim + sizes.value_dim)});
    rotary((config_.heads + 1) * sizes.rope_dim);
    // Queries and keys are put together from their rotated and plain parts.
    build_.elementwise(
        "aten::cat", "aten::split",
        {.read = 2 * q, .written = 2 * q, .backward_read = 2 * q, .backward_written = 2 * q});
  }

  // silu(gate) · up, or another activation; `features` of each.
  void gate(const std::string& activation_module, int64_t features) {
    if (config_.activation == "silu") {
      build_.silu_multiply(features);
      return;
    }
    build_.enter(activation_module);
    build_.activation(config_.activation, features);
    build_.leave();
    build_.elementwise("aten::mul", "aten::mul",
                       {.read = 2 * features,
                        .written = features,
                        .saved = config_.activation == "relu" ? features : 2 * features,
                        .flops = features,
                        .backward_read = 4 * features,
                        .backward_written = 2 * features,
                        .backward_flops = 2 * features});
  }

  void mlp(const std::string& name, int64_t inner) {
    const int64_t hidden = config_.hidden_size;
    const bool bias = has_bias(family_.mlp_bias, config_.mlp_bias);
    const std::string activation_module = path(name, family_.mlp, Part::kActivation);
    const bool fused = find_slot(family_.mlp, Part::kGateUp) != nullptr;
    bool keeps_input = true;
    if (fused) {
      build_.gathered_linear(path(name, family_.mlp, Part::kGateUp),
                             {.in = hidden, .out = 2 * inner, .bias = bias});
      if (!build_.is_engine()) {
        build_.elementwise("aten::split", "aten::cat",
                           {.backward_read = 2 * inner, .backward_written = 2 * inner});
      }
      gate(activation_module, inner);
    } else if (family_.gated_activation) {
      build_.linear(path(name, family_.mlp, Part::kGate), {.in = hidden,
                                                           .out = inner,
                                                           .bias = bias,
                                                           .keeps_input = !family_.parallel,
                                                           .sums_input_grad = true});
      build_.linear(path(name, family_.mlp, Part::kUp),
                    {.in = hidden,
                     .out = inner,
                     .bias = bias,
                     .keeps_input = false,
                     .sums_input_grad = !family_.parallel && reads_residual(Part::kMlpNorm)});
      gate(activation_module, inner);
    } else {
      build_.linear(
          path(name, family_.mlp, Part::kUp),
          {.in = hidden, .out = inner, .bias = bias, .sums_input_grad = !config_.norm_before});
      build_.enter(activation_module);
      build_.activation(config_.activation, inner);
      build_.leave();
      keeps_input = config_.activation != "relu";
    }
    const WorkloadBuilder::Linear down{
        .in = inner, .out = hidden, .bias = bias, .keeps_input = keeps_input};
    if (fused) {
      build_.split_linear(path(name, family_.mlp, Part::kDown), down);
    } else {
      build_.linear(path(name, family_.mlp, Part::kDown), down);
    }
  }

  void sparse(const std::string& name) {
    build_.gather_tokens(config_.hidden_size);
    router(path(name, family_.sparse, Part::kRouter));
    const std::string experts = path(name, family_.sparse, Part::kExperts);
    if (build_.divides_experts()) {
      divided(name, experts);
    } else if (is_torchtitan(build_.program())) {
      build_.enter(experts);
      torchtitan_experts(build_, config_.experts, config_.hidden_size, family_.expert_bias);
      build_.leave();
      shared(name);
      if (build_.program() != Program::kTorchtitan03) {
        torchtitan_expert_sum(build_, config_.experts, config_.hidden_size, 1);
      }
    } else {
      routed(experts);
      shared(name);
    }
    if (config_.experts.shared > 0) {
      build_.add(config_.hidden_size);
    }
    build_.sum_tokens(config_.hidden_size);
  }

  // The router's input has another consumer, the experts, whose gradient comes first.
  void router(const std::string& name) {
    const int64_t experts = config_.experts.count;
    build_.enter(name);
    build_.linear({.in = config_.hidden_size,
                   .out = experts,
                   .bias = family_.expert_bias,
                   .sums_input_grad = true,
                   .routes = true,
                   .wide = build_.program() == Program::kTorchtitan03});
    if (compiles_experts(build_)) {
      compiled_scores(build_, config_.experts);
    } else {
      (is_torchtitan(build_.program()) ? torchtitan_scores : expert_scores)(build_, experts);
    }
    build_.leave();
  }

  void shared(const std::string& name) {
    if (config_.experts.shared > 0) {
      const std::string module = path(name, family_.sparse, Part::kSharedExperts);
      build_.enter(module);
      mlp(module, config_.experts.intermediate_size * config_.experts.shared);
      build_.leave();
    }
  }

  // Shared experts run while the results of the others come back.
  void divided(const std::string& name, const std::string& experts) {
    DividedExperts sent(build_, config_);
    sent.copy_rows();
    build_.enter(experts);
    sent.run([&](std::span<const int64_t> rows) {
      if (build_.sends_tokens_once()) {
        weighted_products(build_, config_.experts, config_.hidden_size, family_.expert_bias, rows);
      } else if (is_torchtitan(build_.program())) {
        torchtitan_products(build_, config_.experts, config_.hidden_size, family_.expert_bias,
                            rows);
      } else {
        products(experts, rows);
      }
    });
    if (build_.program() == Program::kTorchtitan03) {  // the tokens' sums before the shared experts
      sent.sum_rows();
      build_.leave();
      return shared(name);
    }
    build_.leave();
    shared(name);
    sent.sum_rows();
  }

  // Adds the products of the experts of module `name`. `rows`: as in WorkloadBuilder::Grouped.
  void products(const std::string& name, std::span<const int64_t> rows) {
    const ModelConfig::Experts& experts = config_.experts;
    const int64_t hidden = config_.hidden_size;
    const int64_t inner = (rows.empty() ? experts.per_token : 1) * experts.intermediate_size;
    const auto grouped = [&](std::string_view weight, int64_t in, int64_t out) {
      expert_product(build_, experts, weight, in, out, family_.expert_bias, rows);
    };
    grouped("gate_up_proj", hidden, 2 * experts.intermediate_size);
    if (family_.expert_bias && !build_.is_engine()) {
      build_.unfused(unfused_clamped_gate(), OperatorKind::kElementwise, inner);
    } else if (family_.expert_bias) {
      build_.elementwise("shardlens::clamped_glu", "shardlens::clamped_glu_backward",
                         {.read = 2 * inner,
                          .written = inner,
                          .saved = 2 * inner,
                          .flops = 12 * inner,
                          .backward_read = 3 * inner,
                          .backward_written = 2 * inner,
                          .backward_flops = 18 * inner});
    } else {
      if (!build_.is_engine()) {
        build_.elementwise("aten::split", "aten::cat",
                           {.backward_read = 2 * inner, .backward_written = 2 * inner});
      }
      gate(name + ".act_fn", inner);
    }
    grouped("down_proj", experts.intermediate_size, hidden);
  }

  // Each row is copied to the places of its experts; their weighted results are added up.
  void routed(const std::string& name) {
    const ModelConfig::Experts& experts = config_.experts;
    const int64_t hidden = config_.hidden_size;
    const int64_t copies = experts.per_token * hidden;
    const double token = 1 / static_cast<double>(experts.per_token);
    build_.enter(name);
    if (compiles_experts(build_)) {
      compiled_experts(build_, experts, hidden, family_.expert_bias, family_.fp32_routing);
    } else if (build_.is_engine()) {
      copy_rows_fused(build_, copies, hidden);
      products(name, {});
      weighted_sum_fused(build_, copies, hidden);
    } else {
      copy_expert_rows(build_, copies, token);
      products(name, {});
      weighted_expert_sum(build_, copies, token, family_.fp32_routing);
    }
    build_.leave();
  }

  const DecoderFamily& family_;
  const ModelConfig& config_;
  WorkloadBuilder& build_;
  bool rotates_ = true;  // the layer's queries and keys
};

}  // namespace

void decoder_forward(WorkloadBuilder& build, const ModelConfig& config) {
  DecoderForward(build, config).run();
}

}  // namespace shardlens::plan
