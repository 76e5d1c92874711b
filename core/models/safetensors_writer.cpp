#include "core/models/safetensors_writer.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "core/base/error.h"

namespace shardlens::models {

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path,
                                     std::vector<Tensor> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : path_(std::move(path)),
      temporary_(path_.string() + ".tmp" + std::to_string(::getpid())),
      tensors_(std::move(tensors)) {
  nlohmann::ordered_json header;
  if (!metadata.empty()) {
    header["__metadata__"] = metadata;
  }
  Bytes offset = 0;
  for (const Tensor& tensor : tensors_) {
    Bytes size = size_of(tensor.dtype);
    for (const int64_t extent : tensor.shape) {
      size *= extent;
    }
    header[tensor.name] = {{"dtype", safetensors_name(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + size}}};
    offset += size;
    sizes_.push_back(size);
  }
  SHARDLENS_CHECK(header.size() == tensors_.size() + (metadata.empty() ? 0 : 1),
                  "a tensor name is given twice");
  std::string text = header.is_null() ? "{}" : header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // so that the data is aligned
  const uint64_t length = text.size();
  errno = 0;
  out_.open(temporary_, std::ios::binary | std::ios::trunc);
  out_.write(reinterpret_cast<const char*>(&length), sizeof(length));
  out_.write(text.data(), static_cast<std::streamsize>(text.size()));
  require_good();
}

SafetensorsWriter::~SafetensorsWriter() {
  if (!finished_) {
    out_.close();
    std::error_code ignored;
    std::filesystem::remove(temporary_, ignored);
  }
}

void SafetensorsWriter::require_good() {
  if (!out_) {
    throw RuntimeFault(fmt::format("cannot write {}: {}", path_.string(),
                                   errno != 0 ? std::strerror(errno) : "write failed"));
  }
}

void SafetensorsWriter::append(std::span<const std::byte> bytes) {
  SHARDLENS_CHECK(next_ < tensors_.size() && static_cast<Bytes>(bytes.size()) == sizes_[next_],
                  "appended bytes are not those of the next tensor");
  ++next_;
  out_.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  require_good();
}

void SafetensorsWriter::finish() {
  SHARDLENS_CHECK(next_ == tensors_.size(), "finish() before the last tensor");
  out_.close();
  require_good();
  std::error_code failure;
  std::filesystem::rename(temporary_, path_, failure);
  if (failure) {
    throw RuntimeFault(fmt::format("cannot write {}: {}", path_.string(), failure.message()));
  }
  finished_ = true;
}

}  // namespace shardlens::models
