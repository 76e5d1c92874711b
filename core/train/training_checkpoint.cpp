#include "core/train/training_checkpoint.h"

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include "core/files/atomic_file.h"
#include "core/files/output_folder.h"
#include "core/fsdp/apply/fully_shard.h"
#include "core/models/initial_values.h"
#include "core/weights/checkpoint_layout.h"
#include "core/weights/safetensors.h"
#include "core/weights/safetensors_writer.h"

namespace shardlens::train {
namespace {

namespace fs = std::filesystem;

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

}  // namespace

void load_parameters(fsdp::ShardedModel& model,
                     const plan::ModelConfig& config,
                     const fs::path& path) {
  const c10::NoGradGuard no_grad;
  const models::Checkpoint checkpoint = models::Checkpoint::open(path);
  const plan::ModuleTree& tree = model.plan().tree;
  // Every rank checks every parameter, even those of which it stores nothing: all ranks fail with
  // the same error.
  std::vector<models::CheckpointParameter> stored;
  for (const plan::Parameter& parameter : tree.parameters) {
    stored.emplace_back(checkpoint, config, parameter);
  }
  for (const fsdp::ParameterSlice& slice : model.slices()) {
    fill_floats(slice.values, [&](std::span<float> floats) {
      stored[slice.parameter].read(slice.offset, floats);
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
                     std::span<const checkpoint::CompanionFile> companions,
                     const fs::path& directory,
                     int rank) {
  const c10::NoGradGuard no_grad;
  const plan::ModuleTree& tree = model.plan().tree;
  std::unique_ptr<models::SafetensorsWriter> writer;
  if (rank == 0) {
    (void)OutputFolder::make(directory);
    std::vector<models::SafetensorsWriter::Tensor> tensors;
    for (const plan::Parameter& parameter : tree.parameters) {
      for (models::StoredTensor& stored : models::stored_tensors(config, parameter)) {
        tensors.push_back({std::move(stored.name), DType::kF32, std::move(stored.shape)});
      }
    }
    writer = std::make_unique<models::SafetensorsWriter>(directory / "model.safetensors",
                                                         std::move(tensors));
  }
  for (uint32_t index = 0; index < tree.parameters.size(); ++index) {
    const at::Tensor whole = model.full_parameter(index).to(at::kCPU, at::kFloat).contiguous();
    if (writer != nullptr) {
      const auto* bytes = static_cast<const std::byte*>(whole.const_data_ptr());
      for (const models::StoredTensor& stored :
           models::stored_tensors(config, tree.parameters[index])) {
        const size_t count = static_cast<size_t>(stored.numel) * sizeof(float);
        writer->append({bytes, count});
        bytes += count;
      }
    }
  }
  if (writer != nullptr) {
    writer->finish();
    for (const checkpoint::CompanionFile& file : companions) {
      write_file_atomically(directory / file.name, file.text);
    }
  }
}

}  // namespace shardlens::train
