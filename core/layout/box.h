#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

namespace shardlens {

// A part of a tensor that is a block in every dimension.
//
// Shapes  `offset` and `shape` have one entry for each dimension of the tensor; none for a scalar.
struct Box {
  std::vector<int64_t> offset, shape;
  [[nodiscard]] int64_t numel() const;
  friend bool operator==(const Box&, const Box&) = default;
};

// [begin, end) of part `index` of `size` rows that torch.chunk divides into `parts`: parts of equal
// size, of which the last ones may be smaller or empty.
[[nodiscard]] std::pair<int64_t, int64_t> chunk_of(int64_t size, int64_t parts, int64_t index);

// The number of elements of a shape; 1 for a scalar; INT64_MAX if it is larger than that.
[[nodiscard]] int64_t numel_of(std::span<const int64_t> shape);

// Elements [begin, end) of a flattened tensor as boxes, in the order of the elements: at most
// 2·dims - 1. Each box is contiguous in the flattened tensor.
[[nodiscard]] std::vector<Box> boxes_of(std::span<const int64_t> shape, int64_t begin, int64_t end);

// The smallest range [begin, end) of the flattened tensor that contains the box; empty if it is.
[[nodiscard]] std::pair<int64_t, int64_t> range_of(const Box& box, std::span<const int64_t> shape);

// Calls `run(tensor_begin, box_begin, count)` for every run of elements that is contiguous in the
// flattened tensor and in the flattened box, and inside [begin, end) of the flattened tensor.
void for_each_run(const Box& box,
                  std::span<const int64_t> shape,
                  int64_t begin,
                  int64_t end,
                  const std::function<void(int64_t, int64_t, int64_t)>& run);

}  // namespace shardlens
