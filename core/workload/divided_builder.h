#pragma once

#include <cstdint>

#include "core/workload/compiled_builder.h"

namespace shardlens::plan {

// What ranks that divide operators between them do around their parts: the axes `tensor` (layers,
// rows and losses) and `context` (attention) of a plan's mesh. Without these axes nothing.
class DividedBuilder : public CompiledBuilder {
 public:
  using CompiledBuilder::CompiledBuilder;

  // Of the layer whose weight the axis `tensor` divides by rows, or whose table it divides: adds up
  // the ranks' terms of its result. Linear layers call it themselves; embeddings may scale their
  // result before.
  void sum_terms(int64_t features);

  struct HeadSizes {  // of the rank's part
    int64_t heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
  };

 protected:
  // What ranks of the axis `tensor` divide of the activations between operators: nothing; rows
  // (sequence parallelism), so that rows_ are those of this rank; or features, as between a layer
  // divided by columns and one by rows.
  enum class Divided : uint8_t { kNothing, kRows, kFeatures };
  // The dimension along which `tensor` divides the innermost module's weight; -1: none.
  [[nodiscard]] int64_t divided_dimension() const;
  [[nodiscard]] int64_t tensor_ranks() const { return plan_.mesh.size(mesh::kTensor); }
  [[nodiscard]] Communication activations(CollectiveKind kind, Bytes bytes, Bytes written) const;
  [[nodiscard]] Operator copy_of_rows(int64_t features) const;
  // Gathers the rows that the ranks have before a layer that is divided by columns. Its gradient is
  // the sum over the ranks, of which each keeps its rows. Returns whether there was anything to do.
  bool gather_rows(int64_t features);
  void gather_logits(int64_t vocabulary);
  void reduce_loss();  // one number for each row, over `tensor`
  // Causal attention over the parts of the sequence that the ranks of `context` have.
  void context_attention(const HeadSizes& shape);

  Divided divided_ = Divided::kNothing;
};

}  // namespace shardlens::plan
