#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/workload/divided_builder.h"

namespace shardlens::plan {

// The operators that models are made of. Each function appends those of the innermost entered
// module.
class WorkloadBuilder : public DividedBuilder {
 public:
  using DividedBuilder::DividedBuilder;

  void linear(const Linear& given);
  // Same, for the linear layer `module`: enters and leaves it.
  void linear(const std::string& module, const Linear& shape);
  // A linear layer with outputs for several uses, and one that takes what is computed from them, by
  // their whole shapes. Where the axis `tensor` divides the first by columns, its result is
  // gathered; where it divides the second by rows, each rank takes its features of the whole input.
  void gathered_linear(const std::string& module, const Linear& shape);
  void split_linear(const std::string& module, const Linear& shape);
  // The products of a layer's experts with the parameter `weight` [experts, in, out] of the
  // innermost entered module, in one operator. x has `per_token` rows for each row of the step,
  // sorted by expert; the experts are chosen as the settings say.
  struct Grouped {
    int64_t experts = 0, per_token = 0, in = 0, out = 0;
    std::string_view weight;
    bool bias = false;  // [experts, out], added by an operator of its own
    bool keeps_input = true, sums_input_grad = false;  // as for Linear
    // Rows of each expert of this rank, where the plan divides experts: x is sorted already, and
    // has the step's rows.
    std::span<const int64_t> rows = {};
  };
  void grouped_linear(const Grouped& shape);
  void embedding(int64_t features);
  void norm(std::string_view name, std::string_view backward, const Norm& shape);
  // `value_dim`: head size of the values, 0: head_dim. `window`: keys that a token attends to, 0:
  // all.
  struct Attention {
    int64_t heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0, window = 0;
    bool causal = true;
    Scores eager = Scores::kFused;  // how transformers runs it
    bool sdpa = false;              // the config asks for scaled_dot_product_attention
    bool flash = false;             // FlashAttention, whose kernel knows sinks and windows
    bool one_product = false;  // queries, keys and values are parts of the result of one product
    // Other numbers of each head in the tensor that values are a view of; PyTorch keeps it all.
    int64_t beside_values = 0;
  };
  void attention(const Attention& given);
  // An element-wise operator. Fields: elements per row that are read, written and saved.
  // `backward`: "" for an operator whose backward only passes the gradient on.
  struct Elementwise {
    int64_t read = 0, written = 0, saved = 0, flops = 0;
    int64_t backward_read = 0, backward_written = 0, backward_flops = 0;
  };
  void elementwise(std::string_view name, std::string_view backward, const Elementwise& shape);
  void add(int64_t features);  // a residual connection
  // "relu", "silu", any kind of "gelu".
  void activation(std::string_view name, int64_t features);
  void silu_multiply(int64_t features);  // SiLU of one input times another, in one operator
  // `complex`: torchtitan multiplies fp32 pairs as complex numbers.
  void rotary(int64_t features, bool complex = false);
  // Mean cross entropy of [rows, vocabulary], in fp32; with loss_chunks of head()'s product in
  // parts. Of all ranks' logits.
  void loss(int64_t vocabulary);
  // A linear layer that makes the logits, and which loss() may compute in parts. `shape` has all
  // logits, or with the plan's loss_parallel those of this rank; in linear() it is the rank's part.
  void head(const std::string& module, const Linear& shape);
  // The same of logits of which each rank has a part; `vocabulary`: of all ranks.
  void parallel_loss(int64_t vocabulary);
  // Copies the rank's rows of the gradient of a whole table, of `whole` bytes, which the operator
  // before it makes.
  [[nodiscard]] Operator rows_of_table(Bytes whole) const;

 private:
  struct Head {  // a product that loss() computes
    std::string module;
    UnitId unit = 0;
    Linear shape;
    bool divided = false;  // by columns, over the axis `tensor`
  };
  void masked_attention(Attention& shape);
  void scale_by_sinks(const Attention& shape, int64_t value_dim);
  void eager_attention(const Attention& shape);
  void capped_scratch(const Attention& shape, Operator& op, Operator& backward) const;
  // batch times [m,k]·[k,n] of two tensors that backward differentiates. `kept`: bytes to save.
  void batched_product(int64_t batch, int64_t m, int64_t n, int64_t k, Bytes kept);
  void adapt(const Linear& shape, int64_t rank);
  // [m,k]·[k,n]
  [[nodiscard]] Operator matrix_product(
      std::string_view name, DType dtype, int64_t m, int64_t n, int64_t k) const;
  // The sum of the result's gradient over its rows, numbers of `element` bytes.
  [[nodiscard]] Operator bias_gradient(int64_t features, Bytes element) const;
  void cast_products(const Linear& shape, Operator& op, std::vector<Operator>& backward);
  void cast_to_fp32(const Linear& shape);
  void loss_of(const Unfused& part, int64_t vocabulary);
  void whole_loss(int64_t vocabulary);
  void loss_in_parts(const Head& head, int64_t vocabulary, int64_t rows);
  static void begin_sum(std::vector<Step>& part, size_t sum);
  // Of one part: the head's product, the loss, and what differentiates them. Returns the index of
  // the product.
  size_t add_part(const Head& head, int64_t vocabulary);
  [[nodiscard]] Operator make_backward(std::string_view name, size_t forward) const;
  void begin_parts(const Head& head, int64_t vocabulary);
  void copy_input_gradient(size_t product, int64_t features);
  [[nodiscard]] bool calls_head_alone(const Head& head) const;
  [[nodiscard]] const Parameter& weight() const;

  bool unkept_input_ = false;  // the last GEMM did not save x (frozen weight); the next one may
  std::optional<Head> head_;
};

// Number of tokens per sample. Errors: InputError if the settings are not valid or have no seq.
[[nodiscard]] int64_t tokens_of(const StepSettings& settings);

}  // namespace shardlens::plan
