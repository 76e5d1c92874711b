#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "core/files/output_folder.h"

namespace shardlens::checkpoint {

// The part of a tensor that one rank has: elements [begin, begin + bytes.size() / size_of(dtype))
// of the flattened tensor.
//
// Ownership  `bytes` refers to the caller's memory.
struct TensorPart {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // of the whole tensor
  int64_t begin = 0;
  std::span<const std::byte> bytes;
};

// Writes what one rank has to `folder`: rank<r>.safetensors, and rank<r>.part.json, the index of
// it that write_index() merges. All is on the disk when this returns. Nothing is copied.
//
// Layout  A safetensors file has blocks of tensors, and each name once. A range of elements that is
//         no block is up to 2·dims - 1 blocks; the n-th goes to the rank's n-th file,
//         rank<r>-<n>.safetensors. Every file lists the offsets of its blocks as PyTorch's
//         HuggingFaceStorageReader expects them (DCP_SHARDING_INFO).
// Errors  RuntimeFault naming the file and the system's reason.
// Source  torch/distributed/checkpoint/hf_storage.py, torch 2.11.
void write_rank_part(const OutputFolder& folder, int64_t rank, std::span<const TensorPart> parts);

// Name of rank<r>.part.json.
[[nodiscard]] std::string part_file(int64_t rank);

}  // namespace shardlens::checkpoint
