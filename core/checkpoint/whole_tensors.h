#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "core/checkpoint/checkpoint_index.h"

namespace shardlens::checkpoint {

// A tensor of a checkpoint or of a Hugging Face directory, as a whole.
struct WholeTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  // read(first, out): the bytes of elements [first, first + out.size() / size_of(dtype)).
  std::function<void(int64_t, std::span<std::byte>)> read;
};

// What was saved, independent of how it was sharded.
struct SavedRunState {
  Position position;
  Origin origin;
  std::vector<WholeTensor> tensors;
};

// Opens a checkpoint, or a directory or file of safetensors. With a config.json in the directory,
// tensors of the latter have the names of the model's parameters.
//
// Ownership  the functions keep the files open.
// Errors     InputError, now or from read().
[[nodiscard]] SavedRunState open_whole(const std::filesystem::path& path);

// Writes `out`/model.safetensors and a copy of config.json, as transformers reads them: the
// parameters, without what differs between the ranks. `with_state`: also the optimizer's state, to
// optimizer.safetensors. One tensor is in memory at a time. `out` appears when it is complete;
// until then it has a temporary name and a lock, `out`.lock. Errors: InputError for the source,
// also for a config.json that is a link out of its directory; RuntimeFault naming the path;
// UsageError if `out` exists or another process writes it.
void merge(const std::filesystem::path& path, const std::filesystem::path& out, bool with_state);

// Writes `out` as a checkpoint of `world_size` ranks, each of which has a chunk of every tensor
// along its first dimension. What one rank had for itself is kept if the number of ranks is the
// same. One rank's tensors are in memory at a time. `out` appears as with merge().
// Errors: as merge().
void reshard(const std::filesystem::path& path,
             const std::filesystem::path& out,
             int64_t world_size);

}  // namespace shardlens::checkpoint
