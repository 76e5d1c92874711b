#include "core/train/training_checkpoint.h"

#include <array>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include "core/base/atomic_file.h"
#include "core/base/error.h"
#include "core/fsdp/fully_shard.h"
#include "core/models/initial_values.h"
#include "core/models/safetensors.h"
#include "core/models/safetensors_writer.h"

namespace shardlens::train {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 2> kBasePrefixes{"transformer.", "model."};

// Calls `fill` with `values`; if they are on a device, with a copy on the host that is copied back.
template <typename Fill>
void fill_floats(const at::Tensor& values, Fill fill) {
  SHARDLENS_CHECK(values.scalar_type() == at::kFloat && values.is_contiguous(),
                  "master parameters are contiguous fp32");
  const at::Tensor host =
      values.is_cpu() ? values : at::empty(values.sizes(), values.options().device(at::kCPU));
  fill(std::span(static_cast<float*>(host.data_ptr()), static_cast<size_t>(host.numel())));
  if (!values.is_cpu()) {
    values.copy_(host);
  }
}

const models::TensorEntry& entry_of(const models::Checkpoint& checkpoint,
                                    const plan::Parameter& parameter) {
  std::vector<std::string> names{parameter.fqn};
  names.insert(names.end(), parameter.aliases.begin(), parameter.aliases.end());
  for (const std::string& name : names) {
    if (const auto* entry = checkpoint.find(name)) {
      return *entry;
    }
    for (const std::string_view prefix : kBasePrefixes) {
      if (name.starts_with(prefix)) {
        if (const auto* entry = checkpoint.find(std::string_view(name).substr(prefix.size()))) {
          return *entry;
        }
      }
    }
  }
  return checkpoint.at(parameter.fqn);  // throws, naming the nearest tensor
}

void copy_if_there(const fs::path& from, const fs::path& to) {
  std::ifstream in(from, std::ios::binary);
  if (in) {
    write_file_atomically(to, std::string(std::istreambuf_iterator<char>(in), {}));
  }
}

}  // namespace

void load_parameters(fsdp::ShardedModel& model, const fs::path& path) {
  const c10::NoGradGuard no_grad;
  const models::Checkpoint checkpoint = models::Checkpoint::open(path);
  const plan::ModuleTree& tree = model.plan().tree;
  // Every rank checks every parameter, even those of which it stores nothing: all ranks fail with
  // the same error.
  std::vector<const models::TensorEntry*> entries;
  for (const plan::Parameter& parameter : tree.parameters) {
    const models::TensorEntry& entry = entry_of(checkpoint, parameter);
    if (entry.shape != parameter.shape) {
      throw InputError(
          checkpoint.file_of(entry).string(),
          fmt::format("tensor '{}' has shape [{}], the model's config needs [{}]", entry.name,
                      fmt::join(entry.shape, ", "), fmt::join(parameter.shape, ", ")));
    }
    checkpoint.read(entry, 0, {});  // throws for a dtype that cannot be read
    entries.push_back(&entry);
  }
  for (const fsdp::ParameterSlice& slice : model.slices()) {
    fill_floats(slice.values, [&](std::span<float> floats) {
      checkpoint.read(*entries[slice.parameter], slice.offset, floats);
    });
  }
}

void initialize_parameters(fsdp::ShardedModel& model,
                           const plan::ModelConfig& config,
                           uint64_t seed) {
  const c10::NoGradGuard no_grad;
  const plan::ModuleTree& tree = model.plan().tree;
  for (const fsdp::ParameterSlice& slice : model.slices()) {
    fill_floats(slice.values, [&](std::span<float> floats) {
      models::initial_values(config, tree.parameters[slice.parameter], slice.parameter, seed,
                             slice.offset, floats);
    });
  }
}

void save_checkpoint(fsdp::ShardedModel& model,
                     const plan::ModelConfig& config,
                     const fs::path& directory,
                     int rank) {
  const c10::NoGradGuard no_grad;
  const plan::ModuleTree& tree = model.plan().tree;
  std::unique_ptr<models::SafetensorsWriter> writer;
  if (rank == 0) {
    std::error_code failure;
    fs::create_directories(directory, failure);
    if (failure) {
      throw RuntimeFault(
          fmt::format("cannot create {}: {}", directory.string(), failure.message()));
    }
    std::vector<models::SafetensorsWriter::Tensor> tensors;
    for (const plan::Parameter& parameter : tree.parameters) {
      tensors.push_back({parameter.fqn, DType::kF32, parameter.shape});
    }
    writer = std::make_unique<models::SafetensorsWriter>(directory / "model.safetensors",
                                                         std::move(tensors));
  }
  for (uint32_t index = 0; index < tree.parameters.size(); ++index) {
    const at::Tensor whole = model.full_parameter(index).to(at::kCPU, at::kFloat).contiguous();
    if (writer != nullptr) {
      writer->append({static_cast<const std::byte*>(whole.const_data_ptr()), whole.nbytes()});
    }
  }
  if (writer != nullptr) {
    writer->finish();
    const fs::path source = fs::path(config.source).parent_path();
    copy_if_there(config.source, directory / "config.json");
    copy_if_there(source / "generation_config.json", directory / "generation_config.json");
  }
}

}  // namespace shardlens::train
