#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/checkpoint/checkpoint_index.h"

namespace shardlens::models {
class Checkpoint;
struct TensorEntry;
}  // namespace shardlens::models

namespace shardlens::checkpoint {

// A checkpoint that is read: a folder with an index, or one that torch.distributed.checkpoint's
// HuggingFaceStorageWriter has written with save_distributed=True, which has no index, no checksums
// and no position. Files are mapped when they are first needed.
//
// Threads  one.
// Errors   InputError naming file and tensor: what is missing, truncated, or differs from the
// index;
//          a piece whose bytes do not have the checksum of the index.
class Reader {
 public:
  [[nodiscard]] static Reader open(const std::filesystem::path& folder);
  Reader(Reader&&) noexcept;
  Reader& operator=(Reader&&) noexcept;
  ~Reader();

  [[nodiscard]] const std::filesystem::path& path() const { return folder_; }
  [[nodiscard]] const Index& index() const { return index_; }
  [[nodiscard]] const SavedTensor* find(std::string_view name) const;
  // Errors: InputError naming the tensor with the nearest name.
  [[nodiscard]] const SavedTensor& at(std::string_view name) const;

  // Elements [first, first + out.size()) of the flattened tensor as fp32, from F32, BF16, F16 or
  // F64. Every piece that is read is checked against its checksum as a whole, once; after an error
  // `out` has any values.
  void read(const SavedTensor& tensor, int64_t first, std::span<float> out);
  // The same as they are stored; `out` has a whole number of elements.
  void read_bytes(const SavedTensor& tensor, int64_t first, std::span<std::byte> out);
  // Checks a piece again, also if it was checked before.
  void check(const SavedTensor& tensor, const Piece& piece);

 private:
  Reader() = default;
  models::Checkpoint& file(const SavedTensor& tensor, const Piece& piece);
  const models::TensorEntry& entry(const SavedTensor& tensor, const Piece& piece);
  // Throws if a piece's checksum is not that of the index.
  void compare(const SavedTensor& tensor,
               const Piece& piece,
               const models::TensorEntry& stored,
               uint32_t sum) const;
  template <typename Copy>
  void for_pieces(const SavedTensor& tensor, int64_t first, int64_t count, Copy copy);

  std::filesystem::path folder_;
  Index index_;
  std::unordered_map<std::string, size_t> places_;          // in index_.tensors, by name
  std::vector<std::unique_ptr<models::Checkpoint>> files_;  // null: not opened yet
  std::unordered_set<const Piece*> checked_;
};

// Whether Reader::open() would read the folder.
[[nodiscard]] bool is_checkpoint(const std::filesystem::path& folder);

}  // namespace shardlens::checkpoint
