#include "core/checkpoint/whole_tensors.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/checkpoint/checkpoint_reader.h"
#include "core/checkpoint/companion_files.h"
#include "core/checkpoint/rank_part.h"
#include "core/checkpoint/save_directory.h"
#include "core/checkpoint/unfinished_folder.h"
#include "core/files/directory_lock.h"
#include "core/files/input_file.h"
#include "core/files/output_folder.h"
#include "core/json/json_reader.h"
#include "core/layout/shard_layout.h"
#include "core/weights/checkpoint_layout.h"
#include "core/weights/safetensors.h"
#include "core/weights/safetensors_writer.h"

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

// The new directory of --out. What is written to it gets its name only when it is complete, and
// until then no other process can write one of this name.
class NewDirectory {
 public:
  explicit NewDirectory(const fs::path& out)
      : out_(out.has_filename() ? out : out.parent_path()),
        parent_(parent_of(out_)),
        lock_({out_.string() + ".lock", fmt::format("--out {}", out.string()), "is writing there"}),
        unfinished_(start()) {}
  ~NewDirectory() {
    if (!finished_) {
      (void)unfinished_.remove();
    }
  }
  NewDirectory(const NewDirectory&) = delete;
  NewDirectory& operator=(const NewDirectory&) = delete;

  [[nodiscard]] const OutputFolder& folder() const { return unfinished_.folder(); }
  void finish() {
    unfinished_.finish(UnfinishedFolder::Existing::kRefuse);
    finished_ = true;
  }

 private:
  static void refuse_existing(const fs::path& out) {
    std::error_code error;
    if (fs::exists(fs::symlink_status(out, error))) {
      throw UsageError(fmt::format("--out {}: exists already", out.string()));
    }
  }
  static OutputFolder parent_of(const fs::path& out) {
    refuse_existing(out);
    return OutputFolder::make(out.has_parent_path() ? out.parent_path() : ".");
  }
  UnfinishedFolder start() const {
    refuse_existing(out_);  // another process may have written it before this one had the lock
    const std::string name = out_.filename().string();
    if (lock_.held()) {
      // Folders that stay have other names, so they are not in the way.
      (void)remove_interrupted(parent_, [&](std::string_view each) { return each == name; });
    }
    return {parent_, name, random_identifier()};
  }

  fs::path out_;
  OutputFolder parent_;
  DirectoryLock lock_;
  UnfinishedFolder unfinished_;
  bool finished_ = false;
};

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
                  const OutputFolder& folder,
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
  const std::vector<CompanionFile> companions = read_companions(path);
  std::vector<const WholeTensor*> parameters, states;
  for (const WholeTensor& tensor : saved.tensors) {
    if (is_parameter(tensor.name)) {
      parameters.push_back(&tensor);
    } else if (!is_on_rank(tensor.name)) {
      states.push_back(&tensor);
    }
  }
  NewDirectory made(out);
  const fs::path folder = made.folder().path();
  write_safetensors(folder / "model.safetensors", parameters, [&](const WholeTensor& tensor) {
    plan::Parameter parameter;
    parameter.fqn = tensor.name;
    parameter.shape = tensor.shape;
    return config ? models::stored_tensors(*config, parameter) : as_it_is(tensor);
  });
  if (with_state) {
    write_safetensors(folder / "optimizer.safetensors", states, as_it_is);
  }
  for (const CompanionFile& file : companions) {
    write_durably(made.folder(), file.name, file.text);
  }
  made.finish();
}

void reshard(const fs::path& path, const fs::path& out, int64_t world_size) {
  const SavedRunState saved = open_whole(path);
  const std::vector<CompanionFile> companions = read_companions(path);
  NewDirectory made(out);
  for (int64_t rank = 0; rank < world_size; ++rank) {
    write_chunks(saved, made.folder(), rank, world_size);
  }
  Origin origin = saved.origin;
  origin.world_size = origin.shard = world_size;
  origin.replicate = 1;
  origin.layout = "per_parameter";
  write_index(made.folder(), saved.position, origin);
  for (const CompanionFile& file : companions) {
    write_durably(made.folder(), file.name, file.text);
  }
  made.finish();
}

}  // namespace shardlens::checkpoint
