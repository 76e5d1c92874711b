#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/units.h"

namespace shardlens::plan {

enum class Layout : uint8_t { kFlat, kPerParameter };

// How one unit's parameters are split over `ranks` ranks. The only shard arithmetic: engine, memory
// model and ownership view all ask here.
//
// Layout  kFlat: a 1-D flat parameter [p0 | pad | p1 | … | end padding]; each parameter starts on a
//         16-byte boundary (in elements of the dtype that is gathered), the whole is padded to a
//         multiple of `ranks`; rank r holds [r·shard_numel, (r+1)·shard_numel). kPerParameter: each
//         parameter is cut along dimension 0 as torch.chunk does, every chunk padded to the first
//         one's size; shard_numel is the sum of the padded chunks.
// Units   elements, not bytes.
// Source  torch/distributed/fsdp/_flat_param.py (use_orig_params=True),
//         _fully_shard/_fsdp_param.py, torch 2.11.
class ShardLayout {
 public:
  // Piece of the flat parameter in order; parameter == kPadding for alignment and end padding.
  struct Piece {
    uint32_t parameter;
    int64_t offset, numel;
  };
  static constexpr uint32_t kPadding = 0xffffffffU;

  // What one rank holds of one parameter.
  struct Slice {
    int64_t shard_offset = 0;  // where it starts in the rank's shard
    int64_t numel = 0;         // 0: nothing of it
    int64_t param_offset = 0;  // first element of the parameter that is held
    int64_t padding = 0;       // elements of padding that follow it (kPerParameter)
  };

  static constexpr int64_t kAlignmentBytes = 16;

  // `shapes`: one per parameter; `alignment_dtype`: the dtype that is all-gathered;
  // `alignment_bytes`: where parameters start, 1 for side by side (use_orig_params=False);
  // `end_multiple`: what else the padded size is a multiple of (kFlat).
  ShardLayout(Layout layout,
              std::span<const std::vector<int64_t>> shapes,
              int64_t ranks,
              DType alignment_dtype,
              int64_t alignment_bytes = kAlignmentBytes,
              int64_t end_multiple = 1);

  [[nodiscard]] Layout layout() const { return layout_; }
  [[nodiscard]] int64_t ranks() const { return ranks_; }
  [[nodiscard]] size_t parameter_count() const { return numels_.size(); }
  [[nodiscard]] int64_t numel() const { return numel_; }  // parameters alone
  [[nodiscard]] int64_t padded_numel() const { return shard_numel_ * ranks_; }
  [[nodiscard]] int64_t padding_numel() const { return padded_numel() - numel_; }
  [[nodiscard]] int64_t shard_numel() const {
    return shard_numel_;
  }  // equal on every rank, padding included
  [[nodiscard]] std::span<const Piece> pieces() const { return pieces_; }  // kFlat
  [[nodiscard]] Slice slice(int64_t rank, size_t parameter) const;
  // What elements [begin, end) of the flat parameter hold of one parameter; shard_offset counts
  // from `begin`. kFlat.
  [[nodiscard]] Slice overlap(int64_t begin, int64_t end, size_t parameter) const;
  // Elements of real parameters that a rank holds.
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
