#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/TensorBody.h>

// The parts of a layer with experts. Each row goes to `K` experts; its copies are sorted by expert,
// so that each expert has a contiguous slice and one matrix product. All sums are in a fixed order:
// results depend on neither the number of threads nor the device's scheduling.
//
// Shapes  R rows, K experts per row, E experts, S = R · K copies, D features in, F features out.
namespace shardlens::models {

// Where the copies of the rows are in the order of the experts.
struct Routing {
  at::Tensor place;           // int64 [S]: of the copy k of row r, at r · K + k
  at::Tensor copy;            // int64 [S]: the inverse, the copy at a place
  at::Tensor row;             // int64 [S]: the row of the copy at a place
  std::vector<int64_t> ends;  // by expert: the end of its places
  int64_t per_row = 0;        // K
};

// chosen int64 [R, K]: the experts of each row. The copies of an expert are in the order of the
// rows. Waits for the device, because the products' shapes depend on the numbers of copies.
[[nodiscard]] Routing route(const at::Tensor& chosen, int64_t experts);

// x [R, D] → [S, D]: the row of each place.
[[nodiscard]] at::Tensor gather_rows(const at::Tensor& x, const Routing& routing);

// rows [S, D] · weight[e]ᵀ → [S, F], one product for each expert that has rows; weight [E, F, D].
// The weight's gradient is whole: zero for experts without rows.
[[nodiscard]] at::Tensor grouped_mm(const at::Tensor& rows,
                                    const at::Tensor& weight,
                                    const Routing& routing);

// x [S, 2 · F] → silu(x[:, :F]) · x[:, F:].
[[nodiscard]] at::Tensor silu_gate(const at::Tensor& x);

// rows [S, D], weights [R, K] → [R, D]: the sum of each row's copies times their weights. Computes
// in the wider dtype of the two and returns that of `rows`.
[[nodiscard]] at::Tensor weighted_sum(const at::Tensor& rows,
                                      const at::Tensor& weights,
                                      const Routing& routing);

}  // namespace shardlens::models
