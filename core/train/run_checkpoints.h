#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/TensorBody.h>
#include <c10/core/Device.h>

#include "core/checkpoint/checkpoint_index.h"
#include "core/checkpoint/companion_files.h"
#include "core/workload/step_settings.h"

namespace shardlens {
class DirectoryLock;
}
namespace shardlens::checkpoint {
class Reader;
class SaveDirectory;
}  // namespace shardlens::checkpoint
namespace shardlens::dist {
class World;
}
namespace shardlens::fsdp {
class ShardedModel;
}

namespace shardlens::train {

class BackgroundSave;
class GradScaler;
class HostParts;
class Optimizer;

struct CheckpointOptions {       // what a run reads and saves
  std::filesystem::path resume;  // a folder that checkpoint::Reader opens; empty: a new run
  std::filesystem::path save;    // directory of checkpoints; empty: saves nothing
  int64_t every = 0;             // save after every so many steps; 0: only at the end
  std::optional<int64_t> keep;   // the number of checkpoints that are kept; nullopt: all
  // Saves before the last step cost the step only a copy to the host; they are written while later
  // steps run.
  bool asynchronous = false;
  std::vector<checkpoint::CompanionFile> extra;  // files that are written into each checkpoint
  // Called with true before a save and with false after it; may be empty.
  std::function<void(bool)> on_saving = {};
  // Of rank 0: the lock of save_place(save), if the caller has it already.
  std::shared_ptr<const DirectoryLock> lock = nullptr;
  // Called on rank 0 with a message for each folder in `save` that stays although it is old or was
  // interrupted; may be empty. From any thread.
  std::function<void(const std::string&)> on_left = {};
};

// Saves and restores a run: parameters, optimizer state, gradient scaler, generators of random
// numbers and the position in the data. Every rank writes what it stores
// (docs/reference/checkpoints.md), replicas a share each; nothing is gathered. A run may resume
// with another world size, mesh, layout or dialect.
//
// Whether the directory can be written is tried by the constructor. As long as the object exists,
// rank 0 has the lock of the directory, so that no other run saves there.
//
// Asynchronous saves: save() copies what this rank writes, and a thread writes it. The ranks learn
// from a collective that every step has anyway how far the others are: progress() is this rank's
// share of it; with the sum over the ranks, see() lets rank 0 complete the checkpoint.
//
// Ownership  refers to model and world, which must outlive it. With asynchronous saves it keeps one
//            copy of what this rank writes.
// Threads    the thread that trains. The constructor, save() and finish() are collectives.
// Errors     InputError naming file and tensor for a checkpoint that does not fit; RuntimeFault on
//            all ranks if a save fails on any, or will, naming the path or the rank.
class RunCheckpoints {
 public:
  RunCheckpoints(fsdp::ShardedModel& model,
                 dist::World& world,
                 const plan::StepSettings& step,
                 CheckpointOptions options,
                 c10::Device device = c10::kCPU);
  ~RunCheckpoints();
  RunCheckpoints(const RunCheckpoints&) = delete;
  RunCheckpoints& operator=(const RunCheckpoints&) = delete;

  // The position at which training starts: that of the checkpoint, in samples of this run's
  // sequence length; zeros for a new run.
  [[nodiscard]] const checkpoint::Position& start() const { return start_; }
  // Fills the parameters. Call before the first forward.
  void restore_parameters();
  // Fills the optimizer state, scaler (may be null) and generators. Does nothing for a new run.
  void restore_state(Optimizer& optimizer, GradScaler* scaler);
  // Whether to save after `steps` steps in all.
  [[nodiscard]] bool is_due(int64_t steps, bool last) const;
  // Saves, or begins an asynchronous save if that is an option and the save is not the `last`. At
  // most one save is under way: the next one waits for it.
  void save(const Optimizer& optimizer,
            const GradScaler* scaler,
            int64_t steps,
            int64_t samples,
            bool last);
  // Waits for an asynchronous save.
  void finish();

  // How far this rank is with an asynchronous save: 1 is yes, so that sums count ranks.
  struct Progress {
    double written = 0, failed = 0;
  };
  [[nodiscard]] Progress progress() const;
  // `sum`: over all ranks, and the same on each.
  void see(const Progress& sum);

 private:
  void restore_optimizer(Optimizer& optimizer);
  void restore_generator();
  [[nodiscard]] bool holds_own(uint32_t parameter) const;
  [[nodiscard]] bool writes(uint32_t parameter) const;
  [[nodiscard]] std::string stored_name(uint32_t parameter) const;
  [[nodiscard]] std::string generator_name() const;
  void collect(const Optimizer& optimizer, HostParts& host) const;
  void open_directory();
  [[nodiscard]] std::string shared(const std::string& id) const;
  void agree(const std::string& failure, const std::string& what) const;
  void agree_on_save(const std::string& failure) const;
  void commit(const checkpoint::Position& position);
  void tell_left(const std::vector<std::string>& messages);

  // Who stores a parameter: each rank of a replica a part; all ranks the same; each rank its own.
  enum class Holder : uint8_t { kShard, kReplica, kOwn };

  fsdp::ShardedModel& model_;
  dist::World& world_;
  plan::StepSettings step_;
  CheckpointOptions options_;
  c10::Device device_;
  std::vector<Holder> holders_;  // by parameter
  std::unique_ptr<checkpoint::Reader> reader_;
  checkpoint::Position start_;
  std::shared_ptr<const DirectoryLock> lock_;             // of rank 0; null: saves nothing
  std::unique_ptr<checkpoint::SaveDirectory> directory_;  // null: saves nothing
  std::set<std::string> told_;                            // messages of what was left
  std::unique_ptr<BackgroundSave> background_;            // null: no save is under way
  std::vector<at::Tensor> staging_;                       // memory of asynchronous saves' copies
};

}  // namespace shardlens::train
