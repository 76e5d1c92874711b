#include "core/layout/shard_layout.h"

#include <algorithm>
#include <numeric>

#include "core/base/error.h"
#include "core/layout/box.h"

namespace shardlens::plan {
namespace {

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

ShardLayout::ShardLayout(Layout layout,
                         std::span<const std::vector<int64_t>> shapes,
                         int64_t ranks,
                         DType alignment_dtype,
                         int64_t alignment_bytes,
                         int64_t end_multiple)
    : layout_(layout), ranks_(ranks) {
  SHARDLENS_CHECK(ranks >= 1, "a shard layout needs at least one rank");
  for (const auto& shape : shapes) {
    numels_.push_back(numel_of(shape));
    numel_ += numels_.back();
  }
  if (layout_ == Layout::kFlat) {
    // Each parameter but the first may be preceded by alignment padding. Then the end is padded to
    // a multiple of the ranks.
    const int64_t aligned = std::max<int64_t>(1, alignment_bytes / size_of(alignment_dtype));
    int64_t offset = 0;
    for (size_t i = 0; i < numels_.size(); ++i) {
      const int64_t start = round_up(offset, aligned);
      if (start > offset) {
        pieces_.push_back({kPadding, offset, start - offset});
      }
      pieces_.push_back({static_cast<uint32_t>(i), start, numels_[i]});
      shard_offsets_.push_back(start);
      offset = start + numels_[i];
    }
    const int64_t end = round_up(offset, std::lcm(ranks_, end_multiple));
    if (end > offset) {
      pieces_.push_back({kPadding, offset, end - offset});
    }
    shard_numel_ = end / ranks_;
    return;
  }
  for (size_t i = 0; i < shapes.size(); ++i) {
    // A parameter without dimensions cannot be split along dimension 0. FSDP2 refuses it; here it
    // has one row.
    const int64_t rows = shapes[i].empty() ? 1 : shapes[i].front();
    const int64_t row_numel = rows == 0 ? 0 : numels_[i] / rows;
    const int64_t chunk = (rows + ranks_ - 1) / ranks_;
    rows_.push_back(rows);
    row_numels_.push_back(row_numel);
    chunk_rows_.push_back(chunk);
    shard_offsets_.push_back(shard_numel_);
    shard_numel_ += chunk * row_numel;
  }
}

ShardLayout::Slice ShardLayout::slice(int64_t rank, size_t parameter) const {
  SHARDLENS_CHECK(rank >= 0 && rank < ranks_, "rank outside the shard axis");
  SHARDLENS_CHECK(parameter < numels_.size(), "parameter outside the unit");
  if (layout_ == Layout::kFlat) {
    return overlap(rank * shard_numel_, (rank + 1) * shard_numel_, parameter);
  }
  const int64_t chunk = chunk_rows_[parameter];
  const auto [first, last] = chunk_of(rows_[parameter], ranks_, rank);
  Slice out;
  out.shard_offset = shard_offsets_[parameter];
  out.numel = (last - first) * row_numels_[parameter];
  out.param_offset = first * row_numels_[parameter];
  out.padding = chunk * row_numels_[parameter] - out.numel;
  return out;
}

ShardLayout::Slice ShardLayout::overlap(int64_t begin, int64_t end, size_t parameter) const {
  SHARDLENS_CHECK(layout_ == Layout::kFlat, "only a flat parameter has ranges of elements");
  SHARDLENS_CHECK(parameter < numels_.size(), "parameter outside the unit");
  const int64_t start = shard_offsets_[parameter];
  const int64_t low = std::max(start, begin);
  const int64_t high = std::min(start + numels_[parameter], end);
  Slice out;
  if (low < high) {
    out.shard_offset = low - begin;
    out.numel = high - low;
    out.param_offset = low - start;
  }
  return out;
}

int64_t ShardLayout::owned_numel(int64_t rank) const {
  int64_t owned = 0;
  for (size_t i = 0; i < numels_.size(); ++i) {
    owned += slice(rank, i).numel;
  }
  return owned;
}

}  // namespace shardlens::plan
