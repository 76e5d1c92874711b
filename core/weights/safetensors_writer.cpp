#include "core/weights/safetensors_writer.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "core/base/error.h"

namespace shardlens::models {

namespace {

Bytes bytes_of(const SafetensorsWriter::Tensor& tensor) {
  Bytes size = size_of(tensor.dtype);
  for (const int64_t extent : tensor.shape) {
    size *= extent;
  }
  return size;
}

}  // namespace

std::string SafetensorsWriter::file_beginning(std::span<const Tensor> tensors,
                                              const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header;
  if (!metadata.empty()) {
    header["__metadata__"] = metadata;
  }
  Bytes offset = 0;
  for (const Tensor& tensor : tensors) {
    const Bytes size = bytes_of(tensor);
    header[tensor.name] = {{"dtype", safetensors_name(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + size}}};
    offset += size;
  }
  SHARDLENS_CHECK(header.size() == tensors.size() + (metadata.empty() ? 0 : 1),
                  "a tensor name is given twice");
  std::string text = header.is_null() ? "{}" : header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // aligns the data
  const uint64_t length = text.size();
  std::string beginning(reinterpret_cast<const char*>(&length), sizeof(length));
  return beginning + text;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     std::vector<Tensor> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : file_(path), tensors_(std::move(tensors)) {
  for (const Tensor& tensor : tensors_) {
    sizes_.push_back(bytes_of(tensor));
  }
  file_.write(file_beginning(tensors_, metadata));
}

void SafetensorsWriter::append(std::span<const std::byte> bytes) {
  SHARDLENS_CHECK(next_ < tensors_.size() && static_cast<Bytes>(bytes.size()) == sizes_[next_],
                  "appended bytes are not those of the next tensor");
  ++next_;
  file_.write({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

void SafetensorsWriter::finish() {
  SHARDLENS_CHECK(next_ == tensors_.size(), "finish() before the last tensor");
  file_.commit();
}

}  // namespace shardlens::models
