#include "core/layout/box.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace shardlens {
namespace {

// Adds the boxes of [begin, end) of the part of the tensor at `box`, whose first `dim` dimensions
// are set.
void add_boxes(std::span<const int64_t> shape,
               size_t dim,
               int64_t begin,
               int64_t end,
               Box box,
               std::vector<Box>& out) {
  if (begin >= end) {
    return;
  }
  const int64_t row = dim >= shape.size() ? 1 : numel_of(shape.subspan(dim + 1));
  if (dim >= shape.size()) {
    out.push_back(std::move(box));
    return;
  }
  const auto inside = [&](int64_t index, int64_t from, int64_t to) {
    Box one = box;
    one.offset[dim] = index;
    one.shape[dim] = 1;
    add_boxes(shape, dim + 1, from, to, std::move(one), out);
  };
  const int64_t first = begin / row;
  const int64_t last = end / row;
  if (first == last) {
    return inside(first, begin % row, end % row);
  }
  if (begin % row != 0) {
    inside(first, begin % row, row);
  }
  const int64_t whole = first + (begin % row != 0 ? 1 : 0);
  if (whole < last) {
    box.offset[dim] = whole;
    box.shape[dim] = last - whole;
    out.push_back(box);
    box.offset[dim] = 0;
    box.shape[dim] = shape[dim];
  }
  if (end % row != 0) {
    inside(last, 0, end % row);
  }
}

}  // namespace

std::pair<int64_t, int64_t> chunk_of(int64_t size, int64_t parts, int64_t index) {
  const int64_t chunk = (size + parts - 1) / parts;
  const int64_t begin = std::min(size, index * chunk);
  return {begin, std::min(size, begin + chunk)};
}

int64_t Box::numel() const {
  return numel_of(shape);
}

int64_t numel_of(std::span<const int64_t> shape) {
  int64_t numel = 1;
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(numel, size, &numel)) {
      numel = std::numeric_limits<int64_t>::max();
    }
  }
  return numel;
}

std::vector<Box> boxes_of(std::span<const int64_t> shape, int64_t begin, int64_t end) {
  std::vector<Box> out;
  Box whole{std::vector<int64_t>(shape.size(), 0), {shape.begin(), shape.end()}};
  add_boxes(shape, 0, begin, end, std::move(whole), out);
  return out;
}

std::pair<int64_t, int64_t> range_of(const Box& box, std::span<const int64_t> shape) {
  if (box.numel() == 0) {
    return {0, 0};
  }
  int64_t first = 0;
  int64_t last = 0;
  int64_t stride = 1;
  for (size_t dim = shape.size(); dim-- > 0;) {
    first += box.offset[dim] * stride;
    last += (box.offset[dim] + box.shape[dim] - 1) * stride;
    stride *= shape[dim];
  }
  return {first, last + 1};
}

void for_each_run(const Box& box,
                  std::span<const int64_t> shape,
                  int64_t begin,
                  int64_t end,
                  const std::function<void(int64_t, int64_t, int64_t)>& run) {
  const size_t dims = shape.size();
  // The dimensions from `inner` on are one run: all but the first of them are whole.
  size_t inner = dims;
  int64_t length = 1;
  while (inner > 0 && (inner == dims || box.shape[inner] == shape[inner])) {
    --inner;
    length *= box.shape[inner];
  }
  std::vector<int64_t> strides(dims, 1);
  for (size_t dim = dims; dim-- > 1;) {
    strides[dim - 1] = strides[dim] * shape[dim];
  }
  std::vector<int64_t> index(inner, 0);
  const int64_t runs = length == 0 ? 0 : box.numel() / length;
  for (int64_t each = 0; each < runs; ++each) {
    int64_t start = 0;
    for (size_t dim = 0; dim < dims; ++dim) {
      start += (box.offset[dim] + (dim < inner ? index[dim] : 0)) * strides[dim];
    }
    const int64_t low = std::max(start, begin);
    const int64_t high = std::min(start + length, end);
    if (low < high) {
      run(low, each * length + (low - start), high - low);
    }
    for (size_t dim = inner; dim-- > 0;) {
      if (++index[dim] < box.shape[dim]) {
        break;
      }
      index[dim] = 0;
    }
  }
}

}  // namespace shardlens
