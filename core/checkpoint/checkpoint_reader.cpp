#include "core/checkpoint/checkpoint_reader.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/error.h"
#include "core/base/nearest.h"
#include "core/checkpoint/checksum.h"
#include "core/json/json_reader.h"
#include "core/weights/safetensors.h"

namespace shardlens::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kShardingInfo = "DCP_SHARDING_INFO";
constexpr int64_t kMostElements = int64_t{1} << 53;

std::vector<fs::path> safetensors_in(const fs::path& folder) {
  std::vector<fs::path> out;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".safetensors") {
      out.push_back(it->path());
    }
  }
  std::ranges::sort(out);
  return out;
}

// Offsets of the tensors of one file that PyTorch has written.
using Offsets = std::unordered_map<std::string, std::vector<int64_t>>;

Offsets offsets_of(const fs::path& file) {
  const auto text = models::metadata_value(file, kShardingInfo);
  if (!text) {
    throw InputError(
        file.string(),
        fmt::format("has no {}, although other files of the folder have", kShardingInfo));
  }
  const std::string source = file.string() + ": " + std::string(kShardingInfo);
  const nlohmann::json document = plan::parse_json(*text, source);
  const plan::JsonNode root(document, source);
  root.expect_object("offsets of tensors");
  Offsets out;
  for (const std::string& name : root.keys()) {
    std::vector<int64_t>& offset = out[name];
    for (const auto& each :
         root.require(name).require("saved_offsets").items("a list of offsets")) {
      offset.push_back(each.integer(0, kMostElements));
    }
  }
  return out;
}

Piece piece_of(const models::TensorEntry& entry, uint32_t file, const Offsets& offsets) {
  Piece piece{file, {std::vector<int64_t>(entry.shape.size(), 0), entry.shape}, {}};
  if (const auto found = offsets.find(entry.name); found != offsets.end()) {
    piece.box.offset = found->second;
  }
  return piece;
}

// Adds a piece; the tensor is as large as its pieces need.
void add_piece(const fs::path& file,
               const models::TensorEntry& entry,
               Piece piece,
               SavedTensor& tensor) {
  const std::optional<DType> dtype = parse_dtype(entry.stored_dtype);
  if (tensor.pieces.empty() && dtype) {
    tensor = {entry.name, *dtype, std::vector<int64_t>(entry.shape.size(), 0), {}};
  }
  if (!dtype || *dtype != tensor.dtype || tensor.shape.size() != piece.box.offset.size() ||
      tensor.shape.size() != piece.box.shape.size()) {
    throw InputError(file.string(),
                     fmt::format("tensor '{}' is {} [{}], which does not fit its other pieces",
                                 entry.name, entry.stored_dtype, fmt::join(entry.shape, ", ")));
  }
  for (size_t dim = 0; dim < tensor.shape.size(); ++dim) {
    // Both are at most 2^53: the reader of offsets and that of safetensors have checked them.
    tensor.shape[dim] = std::max(tensor.shape[dim], piece.box.offset[dim] + piece.box.shape[dim]);
  }
  tensor.pieces.push_back(std::move(piece));
}

Index index_of_pytorch(const fs::path& folder) {
  Index index;
  std::unordered_map<std::string, size_t> places;
  for (const fs::path& file : safetensors_in(folder)) {
    const auto number = static_cast<uint32_t>(index.files.size());
    index.files.push_back({file.filename().string(), static_cast<Bytes>(fs::file_size(file))});
    const Offsets offsets = offsets_of(file);
    const models::Checkpoint stored = models::Checkpoint::open(file);
    for (const models::TensorEntry& entry : stored.tensors()) {
      const auto [place, is_new] = places.emplace(entry.name, index.tensors.size());
      if (is_new) {
        index.tensors.emplace_back();
      }
      add_piece(file, entry, piece_of(entry, number, offsets), index.tensors[place->second]);
    }
  }
  for (const SavedTensor& tensor : index.tensors) {
    int64_t stored = 0;
    for (const Piece& piece : tensor.pieces) {
      stored += piece.box.numel();
    }
    if (stored != numel_of(tensor.shape)) {
      throw InputError(
          folder.string(),
          fmt::format("tensor '{}' [{}] has {} elements, the files have {}", tensor.name,
                      fmt::join(tensor.shape, ", "), numel_of(tensor.shape), stored));
    }
  }
  return index;
}

constexpr Bytes kBlock = Bytes{256} << 10;  // fits the cache of a core
constexpr Bytes kKept = Bytes{8} << 20;     // that stays in memory

// The bytes of a piece, which are used in their order: their checksum is made as they are used,
// block by block while a block is in the cache, and of what was used only the last blocks stay in
// memory.
class PieceBytes {
 public:
  PieceBytes(const models::Checkpoint& file, const models::TensorEntry& entry, bool sums)
      : file_(file), entry_(entry), sums_(sums) {}
  PieceBytes(const PieceBytes&) = delete;
  PieceBytes& operator=(const PieceBytes&) = delete;
  ~PieceBytes() { file_.release(entry_, released_, used_); }

  // Bytes up to `end` are used next.
  void use_to(Bytes end) {
    const std::span<const std::byte> bytes = file_.bytes(entry_);
    while (used_ < end) {
      const Bytes part = std::min(end - used_, kBlock);
      if (sums_) {
        sum_ = crc32(bytes.subspan(static_cast<size_t>(used_), static_cast<size_t>(part)), sum_);
      }
      if (used_ - released_ >= kKept) {
        file_.release(entry_, released_, used_);
        released_ = used_;
      }
      used_ += part;
    }
  }
  // Of all bytes that were used.
  [[nodiscard]] uint32_t sum() const { return sum_; }

 private:
  const models::Checkpoint& file_;
  const models::TensorEntry& entry_;
  bool sums_;
  uint32_t sum_ = 0;
  Bytes used_ = 0;
  Bytes released_ = 0;
};

}  // namespace

Reader::Reader(Reader&&) noexcept = default;
Reader& Reader::operator=(Reader&&) noexcept = default;
Reader::~Reader() = default;

bool is_checkpoint(const fs::path& folder) {
  std::error_code error;
  if (fs::exists(folder / kIndexFile, error)) {
    return true;
  }
  const std::vector<fs::path> files = safetensors_in(folder);
  return !files.empty() && models::metadata_value(files.front(), kShardingInfo).has_value();
}

Reader Reader::open(const fs::path& folder) {
  Reader reader;
  reader.folder_ = folder;
  std::error_code error;
  reader.index_ =
      fs::exists(folder / kIndexFile, error) ? load_index(folder) : index_of_pytorch(folder);
  for (size_t i = 0; i < reader.index_.tensors.size(); ++i) {
    const std::string& name = reader.index_.tensors[i].name;
    if (!reader.places_.emplace(name, i).second) {
      throw InputError((folder / kIndexFile).string(), "tensor '" + name + "' occurs twice");
    }
  }
  reader.files_.resize(reader.index_.files.size());
  return reader;
}

const SavedTensor* Reader::find(std::string_view name) const {
  const auto found = places_.find(std::string(name));
  return found == places_.end() ? nullptr : &index_.tensors[found->second];
}

const SavedTensor& Reader::at(std::string_view name) const {
  if (const SavedTensor* tensor = find(name)) {
    return *tensor;
  }
  std::vector<std::string> names;
  for (const SavedTensor& tensor : index_.tensors) {
    names.push_back(tensor.name);
  }
  const std::string nearest = nearest_name(name, names);
  throw InputError(folder_.string(),
                   fmt::format("no tensor '{}' among the {} tensors{}", name, names.size(),
                               nearest.empty() ? "" : "; the nearest is '" + nearest + "'"));
}

models::Checkpoint& Reader::file(const SavedTensor& tensor, const Piece& piece) {
  std::unique_ptr<models::Checkpoint>& file = files_[piece.file];
  if (file == nullptr) {
    const SavedFile& saved = index_.files[piece.file];
    const fs::path path = folder_ / saved.name;
    std::error_code error;
    const auto size = fs::file_size(path, error);
    if (error) {
      throw InputError(path.string(), fmt::format("cannot be read: {}; it has a piece of '{}'",
                                                  error.message(), parameter_of(tensor.name)));
    }
    if (static_cast<Bytes>(size) != saved.bytes) {
      throw InputError(path.string(),
                       fmt::format("has {} bytes, the index says {}; it has a piece of '{}'", size,
                                   saved.bytes, parameter_of(tensor.name)));
    }
    file = std::make_unique<models::Checkpoint>(models::Checkpoint::open(path));
  }
  return *file;
}

const models::TensorEntry& Reader::entry(const SavedTensor& tensor, const Piece& piece) {
  models::Checkpoint& stored = file(tensor, piece);
  const models::TensorEntry& entry = stored.at(tensor.name);
  if (entry.shape != piece.box.shape || parse_dtype(entry.stored_dtype) != tensor.dtype) {
    throw InputError(stored.file_of(entry).string(),
                     fmt::format("tensor '{}' is {} [{}], the index says {} [{}]", tensor.name,
                                 entry.stored_dtype, fmt::join(entry.shape, ", "),
                                 safetensors_name(tensor.dtype), fmt::join(piece.box.shape, ", ")));
  }
  return entry;
}

void Reader::check(const SavedTensor& tensor, const Piece& piece) {
  const models::TensorEntry& stored = entry(tensor, piece);
  PieceBytes bytes(file(tensor, piece), stored, piece.crc32.has_value());
  bytes.use_to(stored.end - stored.begin);
  compare(tensor, piece, stored, bytes.sum());
}

void Reader::compare(const SavedTensor& tensor,
                     const Piece& piece,
                     const models::TensorEntry& stored,
                     uint32_t sum) const {
  if (piece.crc32 && sum != *piece.crc32) {
    throw InputError(
        (folder_ / index_.files[piece.file].name).string(),
        fmt::format("bytes {} to {} are damaged: parameter '{}', tensor '{}' at [{}], has checksum "
                    "{:08x}, the index says {:08x}",
                    stored.begin, stored.end, parameter_of(tensor.name), tensor.name,
                    fmt::join(piece.box.offset, ", "), sum, *piece.crc32));
  }
}

template <typename Copy>
void Reader::for_pieces(const SavedTensor& tensor, int64_t first, int64_t count, Copy copy) {
  const auto element = static_cast<int64_t>(size_of(tensor.dtype));
  int64_t done = 0;
  for (const Piece& piece : tensor.pieces) {
    const auto [begin, end] = range_of(piece.box, tensor.shape);
    if (end <= first || first + count <= begin) {
      continue;  // its file need not be opened
    }
    const models::TensorEntry& stored = entry(tensor, piece);
    const bool checks = piece.crc32 && !checked_.contains(&piece);
    PieceBytes bytes(*files_[piece.file], stored, checks);
    const int64_t before = done;
    for_each_run(piece.box, tensor.shape, first, first + count,
                 [&](int64_t in_tensor, int64_t in_piece, int64_t numel) {
                   done += numel;
                   for (int64_t at = 0, part = 0; at < numel; at += part) {
                     part = std::min(numel - at, kBlock / element);
                     bytes.use_to((in_piece + at + part) * element);
                     copy(*files_[piece.file], stored, in_piece + at, in_tensor - first + at, part);
                   }
                 });
    if (checks && done > before) {
      bytes.use_to(stored.end - stored.begin);
      compare(tensor, piece, stored, bytes.sum());
      checked_.insert(&piece);
    }
  }
  if (done != count) {
    throw InputError(
        folder_.string(),
        fmt::format("tensor '{}': its pieces overlap or leave elements out", tensor.name));
  }
}

void Reader::read(const SavedTensor& tensor, int64_t first, std::span<float> out) {
  for_pieces(tensor, first, static_cast<int64_t>(out.size()),
             [&](const models::Checkpoint& stored, const models::TensorEntry& entry,
                 int64_t in_piece, int64_t to, int64_t numel) {
               stored.read(entry, in_piece,
                           out.subspan(static_cast<size_t>(to), static_cast<size_t>(numel)));
             });
}

void Reader::read_bytes(const SavedTensor& tensor, int64_t first, std::span<std::byte> out) {
  const auto element = static_cast<size_t>(size_of(tensor.dtype));
  for_pieces(tensor, first, static_cast<int64_t>(out.size() / element),
             [&](const models::Checkpoint& stored, const models::TensorEntry& entry,
                 int64_t in_piece, int64_t to, int64_t numel) {
               std::memcpy(out.data() + static_cast<size_t>(to) * element,
                           stored.bytes(entry).data() + static_cast<size_t>(in_piece) * element,
                           static_cast<size_t>(numel) * element);
             });
}

}  // namespace shardlens::checkpoint
