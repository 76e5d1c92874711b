#include "core/weights/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <simdjson.h>

#include "core/base/error.h"
#include "core/base/nearest.h"
#include "core/files/input_file.h"
#include "core/weights/mapped_file.h"

namespace shardlens::models {
namespace {

namespace fs = std::filesystem;
namespace dom = simdjson::dom;

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeader = 100'000'000;  // the limit of the safetensors library
constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

// Bits per element of every dtype of the format; nullopt for an unknown name.
std::optional<uint64_t> bits_of(std::string_view dtype) {
  static constexpr std::pair<std::string_view, uint64_t> kBits[] = {
      {"F64", 64},    {"F32", 32},       {"F16", 16},        {"BF16", 16}, {"I64", 64},
      {"U64", 64},    {"I32", 32},       {"U32", 32},        {"I16", 16},  {"U16", 16},
      {"I8", 8},      {"U8", 8},         {"BOOL", 8},        {"C64", 64},  {"F8_E5M2", 8},
      {"F8_E4M3", 8}, {"F8_E8M0", 8},    {"F8_E4M3FNUZ", 8}, {"F4", 4},    {"F6_E2M3", 6},
      {"F6_E3M2", 6}, {"F8_E5M2FNUZ", 8}};
  for (const auto& [name, bits] : kBits) {
    if (name == dtype) {
      return bits;
    }
  }
  return std::nullopt;
}

// The file and header of an entry, for messages.
struct HeaderContext {
  const fs::path& path;
  std::string_view header;  // its text starts at kLengthBytes

  [[noreturn]] void fail(std::string_view name, const std::string& message) const {
    const size_t found = header.find(fmt::format("\"{}\"", name));
    const uint64_t offset = kLengthBytes + (found == std::string_view::npos ? 0 : found);
    throw InputError(path.string(), fmt::format("byte {}: tensor '{}': {}", offset, name, message));
  }
};

uint64_t unsigned_value(const HeaderContext& context, std::string_view name, dom::element value) {
  uint64_t out = 0;
  if (value.get(out) != simdjson::SUCCESS || out > static_cast<uint64_t>(INT64_MAX)) {
    context.fail(name,
                 "expected a non-negative integer, found " + std::string(simdjson::minify(value)));
  }
  return out;
}

// Number of elements of a shape; fails if it overflows 63 bits.
int64_t numel_of(const HeaderContext& context,
                 std::string_view name,
                 std::span<const int64_t> shape) {
  int64_t numel = 1;
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(numel, size, &numel)) {
      context.fail(name, fmt::format("shape [{}] has too many elements", fmt::join(shape, ", ")));
    }
  }
  return numel;
}

TensorEntry parse_entry(const HeaderContext& context, std::string_view name, dom::element value) {
  TensorEntry entry;
  entry.name = name;
  dom::object object;
  std::string_view dtype;
  dom::array shape;
  dom::array offsets;
  if (value.get(object) != simdjson::SUCCESS || object["dtype"].get(dtype) != simdjson::SUCCESS ||
      object["shape"].get(shape) != simdjson::SUCCESS ||
      object["data_offsets"].get(offsets) != simdjson::SUCCESS || offsets.size() != 2) {
    context.fail(
        name, "expected {\"dtype\": string, \"shape\": [sizes], \"data_offsets\": [begin, end]}");
  }
  const auto bits = bits_of(dtype);
  if (!bits) {
    context.fail(name, fmt::format("unknown dtype '{}'", dtype));
  }
  entry.stored_dtype = dtype;
  for (const dom::element size : shape) {
    entry.shape.push_back(static_cast<int64_t>(unsigned_value(context, name, size)));
  }
  entry.numel = numel_of(context, name, entry.shape);
  const uint64_t begin = unsigned_value(context, name, offsets.at(0));
  const uint64_t end = unsigned_value(context, name, offsets.at(1));
  uint64_t total_bits = 0;
  if (end < begin ||
      __builtin_mul_overflow(static_cast<uint64_t>(entry.numel), *bits, &total_bits) ||
      total_bits % 8 != 0 || end - begin != total_bits / 8) {
    context.fail(name, fmt::format("data_offsets [{}, {}] do not have the size of {} [{}]", begin,
                                   end, dtype, fmt::join(entry.shape, ", ")));
  }
  entry.begin = static_cast<Bytes>(begin);
  entry.end = static_cast<Bytes>(end);
  return entry;
}

// Checks that the entries cover the data exactly: no gap, no overlap, no bytes after the last.
void check_tiling(const HeaderContext& context,
                  std::vector<TensorEntry>& entries,
                  uint64_t data_size) {
  std::stable_sort(entries.begin(), entries.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  Bytes expected = 0;
  for (const TensorEntry& entry : entries) {
    if (static_cast<uint64_t>(entry.end) > data_size) {
      context.fail(entry.name,
                   fmt::format("ends at data byte {}, but the file has {} data bytes: truncated",
                               entry.end, data_size));
    }
    if (entry.begin != expected) {
      context.fail(
          entry.name,
          fmt::format("starts at data byte {} where {} was expected: {}", entry.begin, expected,
                      entry.begin < expected ? "tensors overlap" : "there is a gap before it"));
    }
    expected = entry.end;
  }
  if (static_cast<uint64_t>(expected) != data_size) {
    throw InputError(
        context.path.string(),
        fmt::format("byte {}: {} bytes follow the last tensor",
                    kLengthBytes + context.header.size() + static_cast<uint64_t>(expected),
                    data_size - static_cast<uint64_t>(expected)));
  }
}

std::string_view header_of(const MappedFile& file) {
  const std::span<const std::byte> bytes = file.bytes();
  if (bytes.size() < kLengthBytes) {
    throw InputError(file.path().string(),
                     fmt::format("{} bytes are too few for a safetensors file", bytes.size()));
  }
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  static_assert(std::endian::native == std::endian::little, "safetensors is little-endian");
  if (length > kMaxHeader) {
    throw InputError(
        file.path().string(),
        fmt::format("byte 0: header of {} bytes exceeds the format's limit of {}; not a "
                    "safetensors file?",
                    length, kMaxHeader));
  }
  if (length > bytes.size() - kLengthBytes) {
    throw InputError(
        file.path().string(),
        fmt::format("byte 0: header of {} bytes, but only {} follow: truncated, or not a "
                    "safetensors file",
                    length, bytes.size() - kLengthBytes));
  }
  return {reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, length};
}

std::vector<TensorEntry> parse_header(const MappedFile& file) {
  const std::string_view header = header_of(file);
  const HeaderContext context{file.path(), header};
  dom::parser parser(kMaxHeader + 64);
  dom::object object;
  const simdjson::padded_string padded(header);
  if (const auto error = parser.parse(padded).get(object); error != simdjson::SUCCESS) {
    throw InputError(file.path().string(),
                     fmt::format("byte {}: header is not a JSON object: {}", kLengthBytes,
                                 simdjson::error_message(error)));
  }
  std::vector<TensorEntry> entries;
  for (const dom::key_value_pair& field : object) {
    if (field.key == "__metadata__") {
      if (!field.value.is_object()) {
        context.fail(field.key, "expected an object of strings");
      }
      continue;
    }
    entries.push_back(parse_entry(context, field.key, field.value));
  }
  check_tiling(context, entries, file.bytes().size() - kLengthBytes - header.size());
  for (TensorEntry& entry : entries) {
    entry.begin += static_cast<Bytes>(kLengthBytes + header.size());
    entry.end += static_cast<Bytes>(kLengthBytes + header.size());
  }
  return entries;
}

// The tensor names and, according to the index, the file of each; in the index's order.
std::vector<std::pair<std::string, std::string>> parse_index(const fs::path& path) {
  dom::parser parser;
  dom::object weight_map;
  const simdjson::padded_string padded(
      read_input(path, {.most_bytes = kMaxHeader, .expected = "an index of weights"}));
  dom::element document;
  if (const auto error = parser.parse(padded).get(document); error != simdjson::SUCCESS) {
    throw InputError(path.string(), std::string("not JSON: ") + simdjson::error_message(error));
  }
  if (document["weight_map"].get(weight_map) != simdjson::SUCCESS) {
    throw InputError(path.string() + "#/weight_map", "expected an object of tensor name to file");
  }
  std::vector<std::pair<std::string, std::string>> out;
  for (const dom::key_value_pair& field : weight_map) {
    std::string_view shard;
    const auto pointer = fmt::format("{}#/weight_map/{}", path.string(), field.key);
    if (field.value.get(shard) != simdjson::SUCCESS) {
      throw InputError(pointer, "expected a file name");
    }
    if (shard.empty() || shard.find('/') != std::string_view::npos || shard == "..") {
      throw InputError(pointer,
                       fmt::format("'{}' is not the name of a file next to the index", shard));
    }
    out.emplace_back(field.key, shard);
  }
  return out;
}

float from_half(uint16_t half) {
  const uint32_t sign = (half & 0x8000U) << 16U;
  const uint32_t exponent = (half >> 10U) & 0x1fU;
  const uint32_t mantissa = half & 0x3ffU;
  if (exponent == 0) {  // zero or subnormal: mantissa · 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1.0p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  const uint32_t rebased = exponent == 31 ? 255U : exponent + 112U;
  return std::bit_cast<float>(sign | (rebased << 23U) | (mantissa << 13U));
}

// Uses memcpy because the data may be unaligned, depending on the header's length.
template <typename Stored, typename Convert>
void convert(const std::byte* data, std::span<float> out, Convert&& to_float) {
  for (size_t i = 0; i < out.size(); ++i) {
    Stored value;
    std::memcpy(&value, data + i * sizeof(Stored), sizeof(Stored));
    out[i] = to_float(value);
  }
}

// Without exceptions: a name that is too long, for example, does not exist.
bool path_exists(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool path_is_directory(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

}  // namespace

Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

void Checkpoint::add_file(const fs::path& path) {
  files_.push_back(std::make_unique<MappedFile>(path));
  for (TensorEntry& entry : parse_header(*files_.back())) {
    entry.file = static_cast<uint32_t>(files_.size() - 1);
    const auto index = static_cast<uint32_t>(tensors_.size());
    const auto [existing, inserted] = by_name_.emplace(entry.name, index);
    if (!inserted) {
      throw InputError(path.string(),
                       fmt::format("tensor '{}' occurs twice (first in {})", entry.name,
                                   file_of(tensors_[existing->second]).string()));
    }
    tensors_.push_back(std::move(entry));
  }
}

Checkpoint Checkpoint::open(const fs::path& path) {
  Checkpoint checkpoint;
  checkpoint.source_ = path;
  if (!path_is_directory(path)) {
    checkpoint.add_file(path);
    return checkpoint;
  }
  if (path_exists(path / kSingle)) {
    checkpoint.add_file(path / kSingle);
    return checkpoint;
  }
  const fs::path index = path / kIndex;
  if (!path_exists(index)) {
    throw InputError(path.string(), fmt::format("contains neither {} nor {}", kSingle, kIndex));
  }
  const auto weight_map = parse_index(index);
  std::vector<std::string> shards;
  for (const auto& [name, shard] : weight_map) {
    if (std::find(shards.begin(), shards.end(), shard) == shards.end()) {
      if (!path_exists(path / shard)) {
        throw InputError(index.string() + "#/weight_map/" + name,
                         fmt::format("shard '{}' is missing from {}", shard, path.string()));
      }
      shards.push_back(shard);
      checkpoint.add_file(path / shard);
    }
  }
  for (const auto& [name, shard] : weight_map) {
    const TensorEntry* entry = checkpoint.find(name);
    if (entry == nullptr || checkpoint.file_of(*entry).filename() != shard) {
      throw InputError(index.string() + "#/weight_map/" + name,
                       fmt::format("tensor is not in '{}'", shard));
    }
  }
  return checkpoint;
}

const TensorEntry* Checkpoint::find(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

const TensorEntry& Checkpoint::at(std::string_view name) const {
  if (const TensorEntry* entry = find(name)) {
    return *entry;
  }
  std::vector<std::string> names;
  for (const TensorEntry& entry : tensors_) {
    names.push_back(entry.name);
  }
  const std::string nearest = nearest_name(name, names);
  throw InputError(source_.string(),
                   fmt::format("no tensor '{}' among the {} tensors{}", name, names.size(),
                               nearest.empty() ? "" : "; the nearest is '" + nearest + "'"));
}

std::span<const std::byte> Checkpoint::bytes(const TensorEntry& entry) const {
  return files_[entry.file]->bytes().subspan(static_cast<size_t>(entry.begin),
                                             static_cast<size_t>(entry.end - entry.begin));
}

void Checkpoint::release(const TensorEntry& entry, Bytes begin, Bytes end) const {
  files_[entry.file]->release(
      bytes(entry).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
}

const fs::path& Checkpoint::file_of(const TensorEntry& entry) const {
  return files_[entry.file]->path();
}

void Checkpoint::read(const TensorEntry& entry, int64_t first, std::span<float> out) const {
  SHARDLENS_CHECK(first >= 0 && first + static_cast<int64_t>(out.size()) <= entry.numel,
                  "slice outside tensor '" + entry.name + "'");
  if (out.empty()) {
    return;  // memcpy takes no null pointer, not even for nothing
  }
  const std::byte* data = bytes(entry).data();
  if (entry.stored_dtype == "F32") {
    std::memcpy(out.data(), data + first * 4, out.size() * 4);
  } else if (entry.stored_dtype == "BF16") {
    convert<uint16_t>(data + first * 2, out, [](uint16_t value) {
      return std::bit_cast<float>(static_cast<uint32_t>(value) << 16U);
    });
  } else if (entry.stored_dtype == "F16") {
    convert<uint16_t>(data + first * 2, out, from_half);
  } else if (entry.stored_dtype == "F64") {
    convert<double>(data + first * 8, out, [](double value) { return static_cast<float>(value); });
  } else {
    throw InputError(
        file_of(entry).string(),
        fmt::format("tensor '{}' is {}; parameters are read from F32, BF16, F16 or F64", entry.name,
                    entry.stored_dtype));
  }
}

bool has_checkpoint(const fs::path& path) {
  return path_is_directory(path) ? path_exists(path / kSingle) || path_exists(path / kIndex)
                                 : path.extension() == ".safetensors";
}

std::optional<std::string> metadata_value(const fs::path& file, std::string_view key) {
  const MappedFile mapped(file);
  dom::parser parser(kMaxHeader + 64);
  const simdjson::padded_string padded(header_of(mapped));
  std::string_view value;
  if (parser.parse(padded)["__metadata__"][key].get(value) != simdjson::SUCCESS) {
    return std::nullopt;
  }
  return std::string(value);
}

}  // namespace shardlens::models
