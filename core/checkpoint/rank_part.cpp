#include "core/checkpoint/rank_part.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/checkpoint/checkpoint_index.h"
#include "core/checkpoint/checksum.h"
#include "core/checkpoint/unfinished_folder.h"
#include "core/files/output_file.h"
#include "core/weights/safetensors_writer.h"

namespace shardlens::checkpoint {
namespace {

// So many bytes are in the processor's cache when they are written after their checksum was made.
constexpr size_t kChunk = size_t{1} << 18;

// A block of a tensor in one of the rank's files.
struct Block {
  size_t part = 0;  // index into the parts
  Box box;
  std::span<const std::byte> bytes;
};

// The blocks of each file.
std::vector<std::vector<Block>> files_of(std::span<const TensorPart> parts) {
  std::vector<std::vector<Block>> files(1);
  for (size_t i = 0; i < parts.size(); ++i) {
    const TensorPart& part = parts[i];
    const auto element = static_cast<size_t>(size_of(part.dtype));
    const int64_t end = part.begin + static_cast<int64_t>(part.bytes.size() / element);
    size_t done = 0;
    size_t file = 0;
    for (Box& box : boxes_of(part.shape, part.begin, end)) {
      const size_t count = static_cast<size_t>(box.numel()) * element;
      if (file == files.size()) {
        files.emplace_back();
      }
      files[file++].push_back({i, std::move(box), part.bytes.subspan(done, count)});
      done += count;
    }
    SHARDLENS_CHECK(done == part.bytes.size(), "elements beyond the end of tensor " + part.name);
  }
  return files;
}

std::string beginning_of(std::span<const TensorPart> parts, std::span<const Block> blocks) {
  std::vector<models::SafetensorsWriter::Tensor> tensors;
  nlohmann::ordered_json offsets = nlohmann::ordered_json::object();
  for (const Block& block : blocks) {
    const TensorPart& part = parts[block.part];
    tensors.push_back({part.name, part.dtype, block.box.shape});
    offsets[part.name] = {{"saved_offsets", block.box.offset}};
  }
  return models::SafetensorsWriter::file_beginning(
      tensors, {{"format", "pt"}, {"DCP_VERSION", "1.0"}, {"DCP_SHARDING_INFO", offsets.dump()}});
}

}  // namespace

std::string part_file(int64_t rank) {
  return fmt::format("rank{:05}.part.json", rank);
}

void write_rank_part(const OutputFolder& folder, int64_t rank, std::span<const TensorPart> parts) {
  const std::vector<std::vector<Block>> files = files_of(parts);
  Index index;
  std::vector<SavedTensor> tensors(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    tensors[i] = {parts[i].name, parts[i].dtype, parts[i].shape, {}};
  }
  for (size_t number = 0; number < files.size(); ++number) {
    const std::string name = number == 0
                                 ? fmt::format("rank{:05}.safetensors", rank)
                                 : fmt::format("rank{:05}-{}.safetensors", rank, number + 1);
    OutputFile file(folder, name);
    const std::string beginning = beginning_of(parts, files[number]);
    file.write(std::as_bytes(std::span(beginning)));
    size_t total = beginning.size();
    for (const Block& block : files[number]) {
      uint32_t sum = 0;
      for (size_t done = 0; done < block.bytes.size(); done += kChunk) {
        const auto chunk = block.bytes.subspan(done, std::min(kChunk, block.bytes.size() - done));
        sum = crc32(chunk, sum);
        file.write(chunk);
      }
      total += block.bytes.size();
      tensors[block.part].pieces.push_back({static_cast<uint32_t>(number), block.box, sum});
    }
    file.sync();
    file.keep();
    index.files.push_back({name, static_cast<Bytes>(total)});
  }
  index.tensors = std::move(tensors);
  write_durably(folder, part_file(rank), to_json(index));
}

}  // namespace shardlens::checkpoint
