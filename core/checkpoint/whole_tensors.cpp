#include "core/checkpoint/whole_tensors.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "core/base/atomic_file.h"
#include "core/base/error.h"
#include "core/base/input_file.h"
#include "core/checkpoint/checkpoint_reader.h"
#include "core/checkpoint/durable_file.h"
#include "core/checkpoint/rank_part.h"
#include "core/checkpoint/save_directory.h"
#include "core/models/checkpoint_layout.h"
#include "core/models/safetensors.h"
#include "core/models/safetensors_writer.h"
#include "core/plan/json_reader.h"
#include "core/plan/shard_layout.h"

namespace shardlens::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "config.json";

size_t bytes_of(const WholeTensor& tensor) {
  return static_cast<size_t>(numel_of(tensor.shape) * size_of(tensor.dtype));
}

// The model that a directory's config.json describes, if it is one that Shardlens has.
std::optional<plan::ModelConfig> config_in(const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder / kConfig, error)) {
    return std::nullopt;
  }
  try {
    return plan::load_model_config(folder);
  } catch (const InputError&) {
    return std::nullopt;  // tensors then keep the names that they have
  }
}

SavedRunState open_checkpoint(const fs::path& path) {
  const auto reader = std::make_shared<Reader>(Reader::open(path));
  SavedRunState out{reader->index().position, reader->index().origin, {}};
  for (const SavedTensor& tensor : reader->index().tensors) {
    out.tensors.push_back({tensor.name, tensor.dtype, tensor.shape,
                           [reader, &tensor](int64_t first, std::span<std::byte> bytes) {
                             reader->read_bytes(tensor, first, bytes);
                           }});
  }
  return out;
}

SavedRunState open_safetensors(const fs::path& path) {
  const auto stored = std::make_shared<models::Checkpoint>(models::Checkpoint::open(path));
  SavedRunState out;
  if (const auto config = config_in(path)) {
    for (const plan::Parameter& parameter : plan::module_tree(*config).parameters) {
      const auto found = std::make_shared<models::CheckpointParameter>(*stored, *config, parameter);
      out.tensors.push_back({parameter.fqn, DType::kF32, parameter.shape,
                             [stored, found](int64_t first, std::span<std::byte> bytes) {
                               found->read(first, {reinterpret_cast<float*>(bytes.data()),
                                                   bytes.size() / sizeof(float)});
                             }});
    }
    return out;
  }
  for (const models::TensorEntry& entry : stored->tensors()) {
    const auto dtype = parse_dtype(entry.stored_dtype);
    if (!dtype) {
      throw InputError(stored->file_of(entry).string(),
                       fmt::format("tensor '{}' is {}, which checkpoints do not have", entry.name,
                                   entry.stored_dtype));
    }
    out.tensors.push_back(
        {entry.name, *dtype, entry.shape,
         [stored, &entry, width = size_of(*dtype)](int64_t first, std::span<std::byte> bytes) {
           std::ranges::copy(
               stored->bytes(entry).subspan(static_cast<size_t>(first * width), bytes.size()),
               bytes.begin());
         }});
  }
  return out;
}

bool is_on_rank(const std::string& name) {
  return name != parameter_of(name) && !name.starts_with("state.");
}

void create_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    throw RuntimeFault(fmt::format("cannot create {}: {}", folder.string(), error.message()));
  }
}

// Writes the tensors, each as the parts that `parts_of` says, which follow one another in it.
template <typename PartsOf>
void write_safetensors(const fs::path& path,
                       const std::vector<const WholeTensor*>& tensors,
                       PartsOf parts_of) {
  std::vector<models::SafetensorsWriter::Tensor> headers;
  for (const WholeTensor* tensor : tensors) {
    for (models::StoredTensor& part : parts_of(*tensor)) {
      headers.push_back({std::move(part.name), tensor->dtype, std::move(part.shape)});
    }
  }
  models::SafetensorsWriter writer(path, std::move(headers));
  std::vector<std::byte> bytes;
  for (const WholeTensor* tensor : tensors) {
    bytes.resize(bytes_of(*tensor));
    tensor->read(0, bytes);
    size_t done = 0;
    for (const models::StoredTensor& part : parts_of(*tensor)) {
      const auto count = static_cast<size_t>(part.numel * size_of(tensor->dtype));
      writer.append(std::span(bytes).subspan(done, count));
      done += count;
    }
  }
  writer.finish();
}

std::vector<models::StoredTensor> as_it_is(const WholeTensor& tensor) {
  return {{tensor.name, tensor.shape, numel_of(tensor.shape)}};
}

// The elements of a tensor that a rank has: a chunk of its rows, or all of what was its own.
plan::ShardLayout::Slice chunk_of(const WholeTensor& tensor,
                                  const SavedRunState& saved,
                                  int64_t rank,
                                  int64_t world_size) {
  if (is_on_rank(tensor.name)) {
    const std::string name = tensor.name.substr(tensor.name.find('.') + 1);
    const bool own =
        saved.origin.world_size == world_size && tensor.name == name_on_rank(rank, name);
    return {0, own ? numel_of(tensor.shape) : 0, 0, 0};
  }
  const std::vector<std::vector<int64_t>> shapes{tensor.shape};
  return plan::ShardLayout(plan::Layout::kPerParameter, shapes, world_size, tensor.dtype)
      .slice(rank, 0);
}

void write_chunks(const SavedRunState& saved,
                  const fs::path& folder,
                  int64_t rank,
                  int64_t world_size) {
  std::vector<std::vector<std::byte>> memory;
  std::vector<TensorPart> parts;
  for (const WholeTensor& tensor : saved.tensors) {
    const plan::ShardLayout::Slice slice = chunk_of(tensor, saved, rank, world_size);
    if (slice.numel > 0) {
      memory.emplace_back(static_cast<size_t>(slice.numel * size_of(tensor.dtype)));
      tensor.read(slice.param_offset, memory.back());
      parts.push_back({tensor.name, tensor.dtype, tensor.shape, slice.param_offset, memory.back()});
    }
  }
  write_rank_part(folder, rank, parts);
}

}  // namespace

SavedRunState open_whole(const fs::path& path) {
  return is_checkpoint(path) ? open_checkpoint(path) : open_safetensors(path);
}

void merge(const fs::path& path, const fs::path& out, bool with_state) {
  const SavedRunState saved = open_whole(path);
  const auto config = config_in(path);
  std::vector<const WholeTensor*> parameters, states;
  for (const WholeTensor& tensor : saved.tensors) {
    if (is_parameter(tensor.name)) {
      parameters.push_back(&tensor);
    } else if (!is_on_rank(tensor.name)) {
      states.push_back(&tensor);
    }
  }
  create_folder(out);
  write_safetensors(out / "model.safetensors", parameters, [&](const WholeTensor& tensor) {
    plan::Parameter parameter;
    parameter.fqn = tensor.name;
    parameter.shape = tensor.shape;
    return config ? models::stored_tensors(*config, parameter) : as_it_is(tensor);
  });
  if (with_state) {
    write_safetensors(out / "optimizer.safetensors", states, as_it_is);
  }
  for (const char* name : {kConfig, "generation_config.json"}) {
    if (has_file(path / name)) {
      write_file_atomically(out / name, plan::read_text_file(path / name));
    }
  }
}

void reshard(const fs::path& path, const fs::path& out, int64_t world_size) {
  std::error_code error;
  if (fs::exists(out, error)) {
    throw UsageError(fmt::format("--out {}: exists already", out.string()));
  }
  const SavedRunState saved = open_whole(path);
  const fs::path folder = out.string() + ".tmp";
  fs::remove_all(folder, error);
  create_folder(folder);
  for (int64_t rank = 0; rank < world_size; ++rank) {
    write_chunks(saved, folder, rank, world_size);
  }
  Origin origin = saved.origin;
  origin.world_size = origin.shard = world_size;
  origin.replicate = 1;
  origin.layout = "per_parameter";
  write_index(folder, saved.position, origin);
  for (const char* name : {kConfig, "generation_config.json"}) {
    if (has_file(path / name)) {
      write_durably(folder / name, plan::read_text_file(path / name));
    }
  }
  sync_directory(folder);
  rename_durably(folder, out);
}

}  // namespace shardlens::checkpoint
