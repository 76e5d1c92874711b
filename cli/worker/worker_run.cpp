#include "cli/worker/worker_run.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include <ATen/Parallel.h>

#include "core/base/error.h"
#include "core/base/standard_output.h"
#include "core/base/this_process.h"
#include "core/checkpoint/companion_files.h"
#include "core/dist/cuda_backends.h"
#include "core/dist/rendezvous.h"
#include "core/dist/world.h"
#include "core/fsdp/apply/fully_shard.h"
#include "core/json/json_reader.h"
#include "core/models/model.h"
#include "core/train/parallel_model.h"
#include "core/train/run_checkpoints.h"
#include "core/train/token_file.h"
#include "core/train/trainer.h"
#include "core/train/training_checkpoint.h"
#include "core/train/training_metrics.h"
#include "core/weights/safetensors.h"
#include "profiler/record/session.h"
#include "sim/cost/collective_cost.h"

#include "cli/capture/capture_directory.h"
#include "cli/capture/capture_lock.h"
#include "cli/flags/prepared_run.h"
#include "cli/flags/run_outputs.h"
#include "cli/flags/save_place.h"
#include "cli/flags/saved_run.h"
#include "cli/worker/shared_settings.h"
#include "cli/worker/stop_signal.h"

namespace shardlens::cli {
namespace {

namespace fs = std::filesystem;

// The rank's own device. Errors: InputError if it cannot be used.
c10::Device device_of(const RunOptions& options, const Placement& placement) {
  if (options.device == Device::kCpu) {
    return c10::kCPU;
  }
  const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(placement.local_rank));
  dist::use_cuda(device);
  return device;
}

std::unique_ptr<dist::World> join_world(const RunOptions& options,
                                        const Placement& placement,
                                        c10::Device device,
                                        Recorder* recorder) {
  dist::WorldOptions world;
  world.device = device;
  world.force_collectives = options.force_collectives;
  world.rank = placement.rank;
  world.world_size = placement.world_size;
  world.recorder = recorder;
  world.timeout = std::chrono::seconds(options.timeout);
  if (backend_of(options) == Backend::kNccl) {
    world.backend = dist::BackendKind::kNccl;
  }
  if (backend_of(options) == Backend::kEmulated) {
    world.backend = dist::BackendKind::kEmulated;
    world.timer = sim::make_collective_timer(hardware_of(options));
  }
  return dist::World::join(world);
}

// The groups that have a communicator (dist::World): the world, and those of the plan with several
// ranks but not all.
std::vector<record::GroupInfo> groups_of(const plan::ResolvedPlan& plan, int rank) {
  const auto info = [rank](const mesh::Group& group, std::string description) {
    const std::vector<int64_t> ranks = group.members(rank);
    return record::GroupInfo{group.name, std::move(description), {ranks.begin(), ranks.end()}};
  };
  std::vector<record::GroupInfo> out{info({.name = "world", .size = plan.world_size}, "all ranks")};
  for (size_t id = 0; id < plan.groups.size(); ++id) {
    const mesh::Group& group = plan.groups[id];
    if (group.size > 1 && (group.separate || group.size < plan.world_size)) {
      out.push_back(info(group, id == plan::kShardGroup       ? "shard axis"
                                : id == plan::kReplicateGroup ? "replicate axis"
                                : group.separate              ? "reduce-scatters of the shard axis"
                                                              : "part of the shard axis"));
    }
  }
  return out;
}

record::SessionOptions session_options(const RunOptions& options,
                                       const Placement& placement,
                                       const PreparedRun& prepared,
                                       int64_t first_step) {
  record::SessionOptions session;
  session.device = options.device == Device::kCuda;
  record::SpoolOptions& spool = session.spool;
  spool.directory = options.out;
  spool.rank = placement.rank;
  spool.world_size = placement.world_size;
  spool.backend = name_of(backend_of(options));
  spool.groups = groups_of(prepared.plan, placement.rank);
  spool.warmup = first_step + options.warmup;
  spool.trigger_file = options.trigger_file;
  spool.on_request = options.on_signal > 0;
  spool.budget = Bytes{options.record_limit} << 20;
  spool.keep_newest =
      options.record_newest || options.on_signal > 0 || !options.trigger_file.empty();
  return session;
}

train::TrainOptions train_options(const RunOptions& options) {
  train::TrainOptions train;
  train.steps = options.steps;
  train.one_epoch = options.one_epoch;
  train.step = options.step;
  train.norm_type = options.norm_type;
  train.scaler.scale = options.loss_scale;
  train.scaler.growth_interval = options.loss_scale_interval;
  train.lr = options.lr;
  train.weight_decay = options.weight_decay;
  return train;
}

train::CheckpointOptions checkpoint_options(const RunOptions& options,
                                            const SavedRun& saved,
                                            std::vector<checkpoint::CompanionFile> companions) {
  train::CheckpointOptions checkpoints;
  checkpoints.resume = saved.checkpoint;
  if (options.save_format == SaveFormat::kSharded) {
    checkpoints.save = options.save;
  }
  checkpoints.every = options.save_every;
  checkpoints.keep = options.keep;
  checkpoints.asynchronous = options.save_async;
  checkpoints.extra = std::move(companions);
  checkpoints.on_left = [](const std::string& message) { write_stderr("{}\n", message); };
  return checkpoints;
}

// What is saved with a model, read before training: its config, which has been understood as one,
// and generation_config.json of the same directory.
std::vector<checkpoint::CompanionFile> companions_of(const plan::ModelConfig& config) {
  std::vector<checkpoint::CompanionFile> out{{"config.json", plan::read_text_file(config.source)}};
  const fs::path folder = fs::path(config.source).parent_path();
  if (auto file = checkpoint::read_companion(folder, "generation_config.json")) {
    out.push_back(std::move(*file));
  }
  return out;
}

void fill_parameters(fsdp::ShardedModel& sharded,
                     const RunOptions& options,
                     const SavedRun& saved,
                     const plan::ModelConfig& config,
                     int rank) {
  const fs::path& weights = saved.weights.empty() ? options.model : saved.weights;
  if (models::has_checkpoint(weights)) {
    train::load_parameters(sharded, config, weights);
    return;
  }
  if (rank == 0) {
    write_stderr("{} has no safetensors: using random weights from seed {}\n",
                 options.model.string(), options.seed);
  }
  train::initialize_parameters(sharded, config, options.seed);
}

// Prints progress: on a terminal one line that is rewritten, otherwise about ten lines per run.
class Progress {
 public:
  Progress(int64_t steps, bool emulated, bool shown)
      : steps_(steps),
        emulated_(emulated),
        shown_(shown),
        terminal_(::isatty(STDERR_FILENO) == 1) {}

  void show(const train::StepReport& report) {
    const int64_t done = report.step + 1;
    const int64_t every = std::max<int64_t>(1, steps_ / 10);
    if (!shown_ || (!terminal_ && done % every != 0 && done != steps_)) {
      return;
    }
    const std::string loss = emulated_ ? "emulated" : fmt::format("loss {:.4f}", report.loss);
    write_stderr("{}step {}/{}  {}  {:.1f} ms  {:.0f} tokens/s{}",
                 terminal_ ? Shown("\r\x1b[K") : Shown(), done, steps_, loss, report.step_ms,
                 report.tokens_per_s, terminal_ && done != steps_ ? Shown() : Shown("\n"));
  }

 private:
  int64_t steps_;
  bool emulated_, shown_, terminal_;
};

// Locks the capture directory in workers that were started by torchrun, srun or mpirun; otherwise
// `shardlens capture` has the lock.
std::optional<DirectoryLock> lock_of(const RunOptions& options) {
  if (std::getenv("SHARDLENS_RENDEZVOUS") != nullptr) {
    return std::nullopt;
  }
  share_capture_directory(options.out, options.force);
  return std::make_optional<DirectoryLock>(capture_place(options.out), DirectoryLock::Use::kShared);
}

// Ends the process if it has not joined the others some time after the timeout. The stores of c10d
// wait without a limit for a program that listens at the rendezvous' port but does not answer, and
// for a file that was removed.
class JoinDeadline {
 public:
  JoinDeadline(int rank, int64_t timeout)
      : thread_([this, rank, timeout] {
          const std::chrono::seconds limit(2 * timeout + kMargin);
          std::unique_lock lock(mutex_);
          if (!changed_.wait_for(lock, limit, [this] { return joined_; })) {
            write_stderr(
                "[rank {}] did not join the other ranks within {} s (--timeout {}): the "
                "rendezvous at {} does not answer\n",
                rank, limit.count(), timeout, dist::rendezvous_name(environment_variable));
            std::fflush(nullptr);
            std::_Exit(static_cast<int>(ExitCode::kRuntime));
          }
        }) {}
  ~JoinDeadline() {
    {
      const std::lock_guard lock(mutex_);
      joined_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  JoinDeadline(const JoinDeadline&) = delete;
  JoinDeadline& operator=(const JoinDeadline&) = delete;

 private:
  static constexpr int64_t kMargin = 10;  // seconds, for c10d's own messages to come first
  std::mutex mutex_;
  std::condition_variable changed_;
  bool joined_ = false;  // guarded by mutex_
  std::thread thread_;
};

class Worker {
 public:
  Worker(const RunOptions& options, const Placement& placement)
      : options_(options),
        placement_(placement),
        lock_(lock_of(options)),
        save_lock_(placement.rank == 0 ? lock_save_directory(options) : nullptr),
        stop_(placement.rank),
        device_(device_of(options, placement)),
        prepared_(prepare_run(options, placement.world_size)),
        saved_(find_saved_run(options)),
        tokens_(options.tokens) {
    train::BatchShape shape = train::shape_of(options.step, placement.rank, placement.world_size);
    shape.first_sample = saved_.first_step;  // a run that resumes may read any sample
    train::check_tokens(tokens_, shape, options.steps * options.step.accumulate,
                        prepared_.config.vocab_size);
    try_save_directory(options, prepared_.plan, save_lock_.get());
    if (!options.save.empty()) {
      companions_ = companions_of(prepared_.config);
    }
    at::set_num_threads(static_cast<int>(options.threads));
    session_ = std::make_unique<record::Session>(
        session_options(options, placement, prepared_, saved_.first_step));
    stop_.set_last_words([this] { session_->spool().flush(); });
    if (options.on_signal > 0) {
      stop_.set_on_user_signal([this] { session_->spool().request(options_.on_signal); });
    }
  }
  // The signal thread must not use members that are already destroyed.
  ~Worker() {
    stop_.set_last_words(nullptr);
    stop_.set_on_user_signal(nullptr);
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void run() {
    try {
      train();
    } catch (...) {
      session_->spool().flush();
      save_lock_.reset();  // the process ends without destructors
      throw;
    }
  }

 private:
  void train() {
    {
      const JoinDeadline deadline(placement_.rank, options_.timeout);
      world_ = join_world(options_, placement_, device_, &session_->recorder());
    }
    if (!world_->emulated()) {
      world_->world().require_same(shared_settings(options_, prepared_, saved_.first_step));
    }
    model_ = models::make_model(prepared_.config, models::Init::kNone, options_.seed, device_);
    fsdp::Options sharding;
    sharding.world = world_.get();
    sharding.recorder = &session_->recorder();
    sharding.force_collectives = options_.force_collectives;
    sharded_ = train::apply_plan(model_, prepared_.plan, sharding);
    train::CheckpointOptions saving = checkpoint_options(options_, saved_, companions_);
    saving.lock = save_lock_;
    saving.on_saving = [this](bool begins) { stop_.set_unlimited(begins); };
    train::RunCheckpoints checkpoints(*sharded_, *world_, options_.step, std::move(saving),
                                      device_);
    if (saved_.checkpoint.empty()) {
      fill_parameters(*sharded_, options_, saved_, prepared_.config, placement_.rank);
    } else {
      checkpoints.restore_parameters();
    }

    const bool first = placement_.rank == 0 || world_->emulated();
    std::optional<train::MetricsFile> metrics;
    if (first) {
      metrics.emplace(options_.out / "metrics.jsonl", world_->emulated());
    }
    const train::TrainContext context{
        model_.get(),          sharded_.get(),        world_.get(),       &tokens_, placement_.rank,
        placement_.world_size, &session_->recorder(), &stop_.requested(), device_,  &checkpoints};
    const int64_t all = train::steps_of(context, train_options(options_));
    Progress progress(all, world_->emulated(), first);
    const int64_t steps =
        train::train(context, train_options(options_), [&](const train::StepReport& report) {
          if (metrics) {
            metrics->write(report);
          }
          progress.show(report);
        });
    stop_.set_unlimited(true);
    world_->set_recorder(nullptr);
    (void)session_->finish();
    if (options_.save_format == SaveFormat::kFull && !options_.save.empty() && steps == all) {
      train::save_checkpoint(*sharded_, prepared_.config, companions_, options_.save,
                             placement_.rank);
    }
    if (steps < all) {
      throw RuntimeFault(fmt::format("stopped by a signal after {} of {} steps", steps, all));
    }
  }

  const RunOptions& options_;
  Placement placement_;
  std::optional<DirectoryLock> lock_;
  std::shared_ptr<const DirectoryLock> save_lock_;  // of rank 0, before saved_ is looked up
  StopSignal stop_;                                 // before CUDA creates threads
  c10::Device device_;
  PreparedRun prepared_;
  SavedRun saved_;
  std::vector<checkpoint::CompanionFile> companions_;
  train::TokenFile tokens_;
  // Each of these depends on the previous ones.
  std::unique_ptr<record::Session> session_;
  std::unique_ptr<dist::World> world_;
  std::shared_ptr<models::CausalLm> model_;
  std::shared_ptr<fsdp::ShardedModel> sharded_;
};

}  // namespace

void run_worker(const RunOptions& options, const Placement& placement) {
  check_outputs(options);
  // Not destroyed after an exception, since its communication threads may be blocked (see
  // worker_main.cpp).
  auto* worker = new Worker(options, placement);
  worker->run();
  delete worker;
}

}  // namespace shardlens::cli
