#pragma once

#include <cstdint>
#include <vector>

#include "core/fsdp/unit/all_gather_extension.h"

namespace shardlens::fsdp {

// Sends matrices as float8_e4m3fn with one fp32 scale for each rank's part of a parameter, and
// vectors (norms, biases) in param_dtype: half the bytes of bf16. The optimizer keeps the master
// values; only what forwards and backwards compute with is rounded.
//
// Layout  a message: for each parameter this rank's part, then the scales; each part begins at a
//         multiple of 16 bytes, and all ranks' messages have the length of the longest.
// Source  scale = amax / 448, the largest number of the format (OCP 8-bit floating point
//         specification 1.0); torchao float8 with tensorwise scales.
class Float8AllGather final : public AllGatherExtension {
 public:
  explicit Float8AllGather(ExtendedUnit unit);
  at::Tensor pre_all_gather(const at::Tensor& shard) override;
  void post_all_gather(const at::Tensor& gathered, const at::Tensor& shards) override;
  // Bytes that each rank sends.
  [[nodiscard]] int64_t message_bytes() const { return bytes_; }

 private:
  [[nodiscard]] static bool is_matrix(const ExtendedUnit::Parameter& parameter) {
    return parameter.shape.size() > 1;
  }
  ExtendedUnit unit_;
  std::vector<std::vector<int64_t>> starts_;  // by rank and parameter: first byte in the message
  std::vector<int64_t> scales_;               // by rank: first byte of the scales
  int64_t bytes_ = 0;
};

}  // namespace shardlens::fsdp
