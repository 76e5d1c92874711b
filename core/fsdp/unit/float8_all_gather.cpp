#include "core/fsdp/unit/float8_all_gather.h"

#include <algorithm>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

namespace shardlens::fsdp {
namespace {

constexpr double kLargest = 448;    // of float8_e4m3fn
constexpr int64_t kAlignment = 16;  // bytes; of every dtype

int64_t aligned(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

at::Tensor part_of(const at::Tensor& bytes, int64_t start, int64_t numel, at::ScalarType dtype) {
  return bytes.narrow(0, start, numel * static_cast<int64_t>(c10::elementSize(dtype))).view(dtype);
}

}  // namespace

Float8AllGather::Float8AllGather(ExtendedUnit unit) : unit_(std::move(unit)) {
  const auto item = static_cast<int64_t>(c10::elementSize(unit_.param_dtype));
  for (int64_t rank = 0; rank < unit_.ranks; ++rank) {
    std::vector<int64_t>& starts = starts_.emplace_back();
    int64_t bytes = 0;
    for (const ExtendedUnit::Parameter& parameter : unit_.parameters) {
      starts.push_back(bytes);
      const int64_t numel = parameter.in_shard[static_cast<size_t>(rank)].numel;
      bytes += aligned(numel * (is_matrix(parameter) ? 1 : item));
    }
    scales_.push_back(bytes);
    bytes += aligned(static_cast<int64_t>(unit_.parameters.size() * sizeof(float)));
    bytes_ = std::max(bytes_, bytes);
  }
}

at::Tensor Float8AllGather::pre_all_gather(const at::Tensor& shard) {
  const at::NoGradGuard no_grad;
  const auto rank = static_cast<size_t>(unit_.rank);
  const at::Tensor message = at::zeros({bytes_}, shard.options().dtype(at::kByte));
  const at::Tensor scales =
      part_of(message, scales_[rank], static_cast<int64_t>(unit_.parameters.size()), at::kFloat);
  for (size_t i = 0; i < unit_.parameters.size(); ++i) {
    const ExtendedUnit::Parameter& parameter = unit_.parameters[i];
    const FlatParamRange range = parameter.in_shard[rank];
    if (range.numel == 0) {
      continue;
    }
    const at::Tensor values = shard.narrow(0, range.start, range.numel);
    if (!is_matrix(parameter)) {
      part_of(message, starts_[rank][i], range.numel, unit_.param_dtype).copy_(values);
      continue;
    }
    const at::Tensor wide = values.to(at::kFloat);
    const at::Tensor most = wide.abs().amax();
    const at::Tensor scale = at::where(most > 0, most / kLargest, at::ones_like(most));
    part_of(message, starts_[rank][i], range.numel, at::kFloat8_e4m3fn)
        .copy_((wide / scale).clamp(-kLargest, kLargest));  // rounding must not overflow
    scales.narrow(0, static_cast<int64_t>(i), 1).copy_(scale);
  }
  return message;
}

void Float8AllGather::post_all_gather(const at::Tensor& gathered, const at::Tensor& shards) {
  const at::NoGradGuard no_grad;
  for (size_t rank = 0; rank < starts_.size(); ++rank) {
    const at::Tensor message = gathered.select(0, static_cast<int64_t>(rank));
    const at::Tensor shard = shards.select(0, static_cast<int64_t>(rank));
    const at::Tensor scales =
        part_of(message, scales_[rank], static_cast<int64_t>(unit_.parameters.size()), at::kFloat);
    for (size_t i = 0; i < unit_.parameters.size(); ++i) {
      const FlatParamRange range = unit_.parameters[i].in_shard[rank];
      if (range.numel == 0) {
        continue;
      }
      const at::Tensor target = shard.narrow(0, range.start, range.numel);
      if (is_matrix(unit_.parameters[i])) {
        target.copy_(part_of(message, starts_[rank][i], range.numel, at::kFloat8_e4m3fn)
                         .to(at::kFloat)
                         .mul_(scales.select(0, static_cast<int64_t>(i))));
      } else {
        target.copy_(part_of(message, starts_[rank][i], range.numel, unit_.param_dtype));
      }
    }
  }
}

}  // namespace shardlens::fsdp
