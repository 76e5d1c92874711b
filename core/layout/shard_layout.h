#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/units.h"

namespace shardlens::plan {

enum class Layout : uint8_t { kFlat, kPerParameter };

// How one unit's parameters are split over `ranks` ranks. The only place with shard arithmetic:
// engine, memory model and ownership view all use this class.
//
// Layout  kFlat: a 1-D flat parameter [p0 | pad | p1 | … | end padding]; each parameter starts on a
//         16-byte boundary (in elements of the dtype that is all-gathered), and the end is padded
//         to a multiple of `ranks`; rank r stores [r·shard_numel, (r+1)·shard_numel).
//         kPerParameter: each parameter is split along dimension 0 as torch.chunk does, and every
//         chunk is padded to the size of the first; shard_numel is the sum of the padded chunks.
// Units   elements, not bytes.
// Source  torch/distributed/fsdp/_flat_param.py (use_orig_params=True),
//         _fully_shard/_fsdp_param.py, torch 2.11.
class ShardLayout {
 public:
  // A piece of the flat parameter; parameter == kPadding for alignment and end padding.
  struct Piece {
    uint32_t parameter;
    int64_t offset, numel;
  };
  static constexpr uint32_t kPadding = 0xffffffffU;

  // The part of one parameter that one rank stores.
  struct Slice {
    int64_t shard_offset = 0;  // index of its first element in the rank's shard
    int64_t numel = 0;         // 0: the rank stores no element of the parameter
    int64_t param_offset = 0;  // index of its first element in the parameter
    int64_t padding = 0;       // elements of padding that follow it (kPerParameter)
  };

  static constexpr int64_t kAlignmentBytes = 16;

  // `shapes`: one per parameter; `alignment_dtype`: the dtype that is all-gathered;
  // `alignment_bytes`: parameters start at multiples of it; 1: no gaps (use_orig_params=False);
  // `end_multiple`: the padded size is a multiple of this too (kFlat).
  ShardLayout(Layout layout,
              std::span<const std::vector<int64_t>> shapes,
              int64_t ranks,
              DType alignment_dtype,
              int64_t alignment_bytes = kAlignmentBytes,
              int64_t end_multiple = 1);

  [[nodiscard]] Layout layout() const { return layout_; }
  [[nodiscard]] int64_t ranks() const { return ranks_; }
  [[nodiscard]] size_t parameter_count() const { return numels_.size(); }
  [[nodiscard]] int64_t numel() const { return numel_; }  // without padding
  [[nodiscard]] int64_t padded_numel() const { return shard_numel_ * ranks_; }
  [[nodiscard]] int64_t padding_numel() const { return padded_numel() - numel_; }
  [[nodiscard]] int64_t shard_numel() const {
    return shard_numel_;
  }  // the same on every rank; includes padding
  [[nodiscard]] std::span<const Piece> pieces() const { return pieces_; }  // kFlat
  [[nodiscard]] Slice slice(int64_t rank, size_t parameter) const;
  // The part of one parameter in elements [begin, end) of the flat parameter; shard_offset counts
  // from `begin`. kFlat.
  [[nodiscard]] Slice overlap(int64_t begin, int64_t end, size_t parameter) const;
  // Number of elements that a rank stores, without padding.
  [[nodiscard]] int64_t owned_numel(int64_t rank) const;

 private:
  Layout layout_;
  int64_t ranks_;
  int64_t numel_ = 0, shard_numel_ = 0;
  std::vector<int64_t> numels_;
  std::vector<int64_t> rows_, row_numels_, chunk_rows_, shard_offsets_;  // kPerParameter
  std::vector<Piece> pieces_;
};

}  // namespace shardlens::plan
