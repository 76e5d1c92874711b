#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "core/checkpoint/checkpoint_index.h"
#include "core/plan/step_settings.h"

namespace shardlens::checkpoint {
class Reader;
}
namespace shardlens::dist {
class World;
}
namespace shardlens::fsdp {
class ShardedModel;
}

namespace shardlens::train {

class GradScaler;
class Optimizer;

struct CheckpointOptions {
  std::filesystem::path resume;  // a folder that checkpoint::Reader opens; empty: a new run
  std::filesystem::path save;    // directory of checkpoints; empty: saves nothing
  int64_t every = 0;             // save after every so many steps; 0: only at the end
  std::optional<int64_t> keep;   // the number of checkpoints that are kept; nullopt: all
  std::vector<std::filesystem::path> extra;  // files that are copied into each checkpoint
  // Called with true before a save and with false after it; may be empty.
  std::function<void(bool)> on_saving = {};
};

// Saves and restores a run: parameters, optimizer state, gradient scaler, generators of random
// numbers and the position in the data. Every rank writes what it stores (docs/checkpoints.md),
// replicas a share each; nothing is gathered. A run may resume with another world size, mesh,
// layout or dialect.
//
// Ownership  refers to model and world, which must outlive it.
// Threads    the thread that trains. save() is a collective: all ranks must call it.
// Errors     InputError naming file and tensor for a checkpoint that does not fit; RuntimeFault on
//            all ranks if a save fails on any, naming the path or the rank.
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
  void save(const Optimizer& optimizer, const GradScaler* scaler, int64_t steps, int64_t samples);

 private:
  void restore_optimizer(Optimizer& optimizer);
  void restore_generator();
  [[nodiscard]] bool holds_own(uint32_t parameter) const;
  [[nodiscard]] bool writes(uint32_t parameter) const;
  [[nodiscard]] std::string stored_name(uint32_t parameter) const;
  void agree(const std::string& failure, int64_t steps) const;

  enum class Holder : uint8_t { kShard, kReplica, kOwn };  // as in holders_of()

  fsdp::ShardedModel& model_;
  dist::World& world_;
  plan::StepSettings step_;
  CheckpointOptions options_;
  c10::Device device_;
  std::vector<Holder> holders_;  // by parameter
  std::unique_ptr<checkpoint::Reader> reader_;
  checkpoint::Position start_;
};

}  // namespace shardlens::train
