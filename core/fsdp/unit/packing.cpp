#include "core/fsdp/unit/packing.h"

#include <algorithm>

namespace shardlens::fsdp {

Packing::Packing(std::span<const at::ScalarType> dtypes,
                 std::span<const int64_t> numels,
                 bool aligned)
    : dtypes_(dtypes.begin(), dtypes.end()) {
  if (dtypes_.empty()) {
    return;
  }
  const bool alike =
      std::ranges::all_of(dtypes_, [this](at::ScalarType each) { return each == dtypes_.front(); });
  dtype_ = alike ? dtypes_.front() : at::kByte;
  for (size_t i = 0; i < dtypes_.size(); ++i) {
    const auto item = static_cast<int64_t>(alike ? 1 : c10::elementSize(dtypes_[i]));
    starts_.push_back(aligned ? (numel_ + item - 1) / item * item : numel_);
    sizes_.push_back(numels[i] * item);
    numel_ = starts_.back() + sizes_.back();
  }
}

at::Tensor Packing::range(const at::Tensor& packed, size_t part) const {
  return packed.narrow(0, starts_[part], sizes_[part]);
}

at::Tensor Packing::view(const at::Tensor& packed, size_t part) const {
  return in_bytes() ? range(packed, part).view(dtypes_[part]) : range(packed, part);
}

Chunks::Chunks(const plan::ShardLayout& layout,
               std::span<const at::ScalarType> dtypes,
               std::optional<at::ScalarType> param_dtype,
               const std::vector<bool>& frozen) {
  const bool flat = layout.layout() == plan::Layout::kFlat;
  std::vector<at::ScalarType> unsharded;
  std::vector<int64_t> of_all_ranks;
  for (size_t i = 0; i < (flat ? 1 : dtypes.size()); ++i) {
    const plan::ShardLayout::Slice slice = flat ? plan::ShardLayout::Slice() : layout.slice(0, i);
    numels.push_back(flat ? layout.shard_numel() : slice.numel + slice.padding);
    of_all_ranks.push_back(numels.back() * layout.ranks());
    unsharded.push_back(param_dtype.value_or(dtypes[i]));
    grad_starts.push_back(grad_numel);
    grad_numel += flat || !frozen[i] ? numels.back() : 0;
  }
  const auto trained = std::ranges::find(frozen, false);
  grad_dtype = trained == frozen.end() ? dtypes.front() : dtypes[trained - frozen.begin()];
  stored = Packing(dtypes.first(numels.size()), numels, /*aligned=*/true);
  gathered = Packing(unsharded, numels, /*aligned=*/false);
  full = Packing(unsharded, of_all_ranks, /*aligned=*/true);
}

}  // namespace shardlens::fsdp
