#include "cli/flags/save_place.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <sys/statvfs.h>

#include "core/base/error.h"
#include "core/base/format_bytes.h"
#include "core/base/units.h"
#include "core/checkpoint/checkpoint_index.h"
#include "core/checkpoint/save_directory.h"
#include "core/files/output_folder.h"
#include "core/files/own_files.h"

namespace shardlens::cli {
namespace {

namespace fs = std::filesystem;

constexpr Bytes kFp32 = 4;

// At least this many bytes: the tensors, without the headers of files. Sharded checkpoints have the
// optimizer's states, and of ignored parameters the values of each rank.
Bytes checkpoint_bytes(const RunOptions& options, const plan::ResolvedPlan& plan) {
  const bool whole = options.save_format == SaveFormat::kFull;
  Bytes sum = 0;
  for (uint32_t index = 0; index < plan.tree.parameters.size(); ++index) {
    const plan::Parameter& parameter = plan.tree.parameters[index];
    const bool ignored =
        std::ranges::find(plan.ignored_parameters, index) != plan.ignored_parameters.end();
    int64_t copies = 1;
    if (!whole && parameter.requires_grad) {
      copies = ignored ? plan.world_size : 1 + options.step.optimizer_states();
    }
    sum += copies * numel_of(parameter.shape) * kFp32;
  }
  return sum;
}

// A whole model is saved under names that any model has. Only one that this program saved there is
// replaced without --force.
void claim_model_files(const RunOptions& options) {
  const std::vector<std::string> names{"model.safetensors", "config.json",
                                       "generation_config.json"};
  OwnFiles own{OutputFolder(options.save)};
  for (const std::string& name : names) {
    if (!options.force && own.foreign(name)) {
      throw UsageError(fmt::format(
          "--save {}: has {}, which this program did not save there; choose another directory, or "
          "add --force to replace the model",
          options.save.string(), name));
    }
  }
  own.add(names);
}

void require_space(const RunOptions& options, Bytes needed) {
  struct statvfs disk {};
  // Some file systems do not say how large they are.
  if (::statvfs(options.save.c_str(), &disk) != 0 || disk.f_blocks == 0) {
    return;
  }
  const auto free = static_cast<Bytes>(disk.f_bavail) * static_cast<Bytes>(disk.f_frsize);
  if (free < needed) {
    throw RuntimeFault(fmt::format(
        "--save {}: no space for a checkpoint: it needs {} ({} bytes), {} ({} bytes) are free",
        options.save.string(), format_bytes(needed), needed, format_bytes(free), free));
  }
}

}  // namespace

std::shared_ptr<const DirectoryLock> lock_save_directory(const RunOptions& options) {
  if (options.save.empty()) {
    return nullptr;
  }
  std::error_code error;
  const fs::file_status link = fs::symlink_status(options.save, error);
  const fs::file_status found = fs::status(options.save, error);
  if (fs::is_symlink(link) && !fs::exists(found)) {
    throw UsageError(fmt::format("--save {}: is a link to {}, which does not exist",
                                 options.save.string(),
                                 fs::read_symlink(options.save, error).string()));
  }
  if (fs::exists(found) && !fs::is_directory(found)) {
    throw UsageError(
        fmt::format("--save {}: is no directory; choose another one", options.save.string()));
  }
  try {
    (void)OutputFolder::make(options.save);
  } catch (const WriteFault& fault) {
    throw RuntimeFault(
        fmt::format("--save {}: cannot be created: {}", options.save.string(), fault.reason()));
  }
  return std::make_shared<const DirectoryLock>(checkpoint::save_place(options.save));
}

void try_save_directory(const RunOptions& options,
                        const plan::ResolvedPlan& plan,
                        const DirectoryLock* lock) {
  if (lock == nullptr) {
    return;
  }
  try {
    const checkpoint::SaveDirectory directory(options.save, random_identifier());
    if (lock->held()) {
      (void)directory.remove_interrupted();  // the run says what is left
    }
    directory.try_writing(0);
    directory.end_trial();
  } catch (const WriteFault& fault) {
    throw RuntimeFault(fmt::format("--save {}: {}", options.save.string(), fault.what()));
  }
  require_space(options, checkpoint_bytes(options, plan));
  if (options.save_format == SaveFormat::kFull) {
    claim_model_files(options);
  }
}

}  // namespace shardlens::cli
