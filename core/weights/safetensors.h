#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/units.h"

namespace shardlens::models {

class MappedFile;

// One tensor of a checkpoint.
struct TensorEntry {
  std::string name;
  std::string stored_dtype;  // as in the header
  std::vector<int64_t> shape;
  int64_t numel = 0;
  uint32_t file = 0;         // index into Checkpoint's files
  Bytes begin = 0, end = 0;  // from the start of the file
};

// The tensors of a Hugging Face checkpoint: one .safetensors file, or a directory with
// model.safetensors or model.safetensors.index.json and its shards. Files are memory-mapped, so a
// rank reads only the pages that it uses.
//
// Layout  u64 little-endian header length | JSON header | data. The tensors must cover the data
//         without gap or overlap, as the safetensors library requires; headers above 100 MB are
//         refused.
// Threads any.
// Errors  InputError with file and, for the header, byte offset: missing file or shard, truncated
//         file, header longer than the file, bad JSON, unknown dtype, shape that does not fit its
//         bytes, overlapping or out-of-range offsets, the same name twice.
// Source  github.com/huggingface/safetensors, README "Format" and safetensors/src/tensor.rs.
class Checkpoint {
 public:
  [[nodiscard]] static Checkpoint open(const std::filesystem::path& path);
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  [[nodiscard]] std::span<const TensorEntry> tensors() const { return tensors_; }
  [[nodiscard]] const TensorEntry* find(std::string_view name) const;
  // Errors: InputError naming the tensor with the nearest name.
  [[nodiscard]] const TensorEntry& at(std::string_view name) const;
  // The stored bytes, which may be unaligned; valid while the Checkpoint exists.
  [[nodiscard]] std::span<const std::byte> bytes(const TensorEntry& entry) const;
  // Pages of bytes [begin, end) of the tensor that were read no longer count as memory of this
  // process; they are read again when they are used again.
  void release(const TensorEntry& entry, Bytes begin, Bytes end) const;
  // Elements [first, first + out.size()) as fp32, from F32, BF16, F16 or F64.
  // Errors: InputError naming tensor and dtype for any other.
  void read(const TensorEntry& entry, int64_t first, std::span<float> out) const;
  // For messages: "dir/model-00001-of-00002.safetensors".
  [[nodiscard]] const std::filesystem::path& file_of(const TensorEntry& entry) const;

 private:
  Checkpoint() = default;
  void add_file(const std::filesystem::path& path);

  std::filesystem::path source_;
  std::vector<std::unique_ptr<MappedFile>> files_;
  std::vector<TensorEntry> tensors_;
  std::unordered_map<std::string, uint32_t> by_name_;
};

// Whether `path` is a checkpoint file, or a directory with one, that Checkpoint::open would read.
[[nodiscard]] bool has_checkpoint(const std::filesystem::path& path);

// The value of a key of the file's __metadata__; nullopt if it has none.
// Errors: InputError as for Checkpoint, for the header only.
[[nodiscard]] std::optional<std::string> metadata_value(const std::filesystem::path& file,
                                                        std::string_view key);

}  // namespace shardlens::models
