#pragma once

#include <cstdint>
#include <optional>

#include "core/workload/compiled_builder.h"
#include "core/workload/routing.h"

namespace shardlens::plan {

// Operators and communication of ranks that divide operators between them: the axes `tensor`
// (layers, rows and losses) and `context` (attention) of a plan's mesh, and the axis `expert` of
// the experts' mesh (rows of tokens). Without these axes nothing.
class DividedBuilder : public CompiledBuilder {
 public:
  using CompiledBuilder::CompiledBuilder;

  // Adds up the ranks' terms of the result of a layer whose weight the axis `tensor` divides by
  // rows, or whose table it divides. Linear layers call it themselves; embeddings may scale their
  // result before.
  void sum_terms(int64_t features);

  // The same of recorded layers, whose tensors have these bytes on all ranks together, inside the
  // module that issues it: after a layer that is divided by rows, before and after one by columns,
  // and of the gradient of its input before operator `at` of those that differentiate the last one.
  void sum_terms_of(Bytes whole);
  void gather_rows_of(Bytes whole);
  void gather_features_of(Bytes whole);
  void sum_gradient_of(Bytes whole, size_t at);
  void scatter_gradient_of(Bytes whole, size_t at);  // leaves the rank's rows of the sum
  // The gradients of the innermost module's parameters are sums over the ranks of the axis, each of
  // which has a term.
  void sum_over_tensor() { CompiledBuilder::sum_over_tensor(); }
  [[nodiscard]] int64_t tensor_ranks() const { return plan_.mesh.size(mesh::kTensor); }

  struct HeadSizes {  // of the rank's part
    int64_t heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
  };

  // A layer of experts that are divided over the axis `expert`, in the order of the calls. Ranks of
  // `tensor` have all rows from gather_tokens() to sum_tokens(), and each sends a part of them to
  // the experts.
  [[nodiscard]] bool divides_experts() const { return expert_ranks() > 1; }
  [[nodiscard]] int64_t expert_ranks() const { return plan_.expert_mesh.size(mesh::kExpert); }
  [[nodiscard]] int64_t rows() const { return rows_; }
  void gather_tokens(int64_t features);
  [[nodiscard]] DividedRouting divided_routing(int64_t experts, int64_t per_token) const;
  void exchange_counts(int64_t experts);  // of rows for each expert
  void send_tokens(const DividedRouting& rows, int64_t features);
  // Compute waits for the rows where await_tokens() is called.
  void return_tokens(const DividedRouting& rows, int64_t features);
  void await_tokens();
  // Instead, with ExpertDispatch::kAllGather: a rank gets the tokens of all ranks, and which
  // experts these have with which weights, and adds up its experts' results of each token.
  [[nodiscard]] bool gathers_tokens() const {
    return plan_.plan.expert_dispatch == ExpertDispatch::kAllGather;
  }
  // Instead, with ExpertDispatch::kDeepEp: see [Note: Tokens sent once].
  [[nodiscard]] bool sends_tokens_once() const {
    return plan_.plan.expert_dispatch == ExpertDispatch::kDeepEp;
  }
  [[nodiscard]] std::optional<int64_t> ranks_per_token() const {
    return plan_.plan.ranks_per_token;
  }
  void gather_routing(int64_t experts);
  void gather_all_tokens(int64_t features);
  // Compute waits for the sums where await_tokens() is called.
  void reduce_tokens(int64_t features);
  void sum_tokens(int64_t features);

 protected:
  // What ranks of the axis `tensor` divide of the activations between operators: nothing; rows
  // (sequence parallelism), so that rows_ are those of this rank; or features, as between a layer
  // divided by columns and one by rows.
  enum class Divided : uint8_t { kNothing, kRows, kFeatures };
  // The dimension along which `tensor` divides the innermost module's weight; -1: none.
  [[nodiscard]] int64_t divided_dimension() const;
  [[nodiscard]] Communication activations(CollectiveKind kind, Bytes bytes, Bytes written) const;
  [[nodiscard]] Operator copy_of(Bytes rows) const;
  // Gathers the rows that the ranks have before a layer that is divided by columns. Its gradient is
  // the sum over the ranks, of which each keeps its rows. Returns whether there was anything to do.
  bool gather_rows(int64_t features);
  // Whether the gradients of gathered rows are scattered one by one.
  [[nodiscard]] bool scatters_apart() const { return gathered_ && !plan_.plan.shared_gathers; }
  // Copies the rank's rows of a gradient that every rank has as a whole.
  [[nodiscard]] Operator slice_of_rows(int64_t features) const;
  void gather_features(int64_t features);  // of all ranks
  // Takes the rank's part of whole features. Their gradient is gathered.
  void split_features(int64_t features);
  void reduce_loss();  // one number for each row, over `tensor`
  // Causal attention over the parts of the sequence that the ranks of `context` have.
  void context_attention(const HeadSizes& shape);

  Divided divided_ = Divided::kNothing;
  bool gathered_ = false;      // the last rows, and their results are not added up yet
  bool whole_tokens_ = false;  // between gather_tokens() and sum_tokens(), on a divided sequence

 private:
  void add_terms(int64_t features);
  [[nodiscard]] Communication tokens(const DividedRouting& rows, int64_t features, bool back) const;
  // Of the tokens of all ranks, `whole` bytes.
  [[nodiscard]] Communication all_tokens(CollectiveKind kind, Bytes whole, Bytes written) const;

  std::optional<uint32_t> returning_;  // communication of return_tokens() that is not awaited yet
};

}  // namespace shardlens::plan
