// What the steps of one rank are made of: one rank of bench/bound.py.
//
//   step_bound --model DIR --tokens FILE [--turns] [flags of capture], with RANK, WORLD_SIZE and
//   SHARDLENS_RENDEZVOUS
//
// All ranks alternate, after barriers, between three things, each with the same batch:
//   engine         a training step of the engine
//   compute        the same step of a model that is not sharded, without any communication:
//   forward, backward, gradient norm and optimizer of
//                  as many elements as this rank has in its shards
//   communication  the collectives of the engine's step, one after the other over the same groups,
//   with nothing beside them
//   turns          with --turns: compute once more, in which all ranks meet before each unit's
//   forward and backward, as a unit's all-gathers make them, and as many meetings alone. With more
//   ranks than cores, a core then changes processes at each unit, and with them what is in its
//   caches, as in a step, though nothing is sharded.
// Prints a line of JSON with the times of each, in ms: wall clock, and CPU of all threads of the
// process. `waits_ms` is the time without CPU in the collectives that no order of the step can
// hide: the first all-gather, before which nothing can be computed, the last reduction, after which
// nothing is left but the optimizer, and the gradient norm.

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/zeros.h>

#include "core/base/error.h"
#include "core/dist/world.h"
#include "core/fsdp/apply/fully_shard.h"
#include "core/models/model.h"
#include "core/models/ops.h"
#include "core/module/forward_hooks.h"
#include "core/module/scalar_type.h"
#include "core/train/optimizer.h"
#include "core/train/parallel_model.h"
#include "core/train/token_file.h"
#include "core/train/trainer.h"
#include "core/train/training_checkpoint.h"

#include "cli/flags/prepared_run.h"
#include "cli/flags/run_options.h"

namespace shardlens {
namespace {

constexpr int64_t kWarmup = 4;  // steps; the collectives are those of the last of them

// Wall clock and CPU time of this process since the last call, in ms.
class Meter {
 public:
  void start() {
    wall_ = std::chrono::steady_clock::now();
    cpu_ = cpu_ms();
  }
  [[nodiscard]] double wall() const {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - wall_)
        .count();
  }
  [[nodiscard]] double cpu() const { return cpu_ms() - cpu_; }

 private:
  static double cpu_ms() {
    timespec t{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) / 1e6;
  }
  std::chrono::steady_clock::time_point wall_;
  double cpu_ = 0;
};

struct Times {
  std::vector<double> wall, cpu;  // ms of each round

  void add(const Meter& meter) {
    cpu.push_back(meter.cpu());
    wall.push_back(meter.wall());
  }
};

// The collectives of one step, in the order in which they were issued.
class Collectives final : public NullRecorder {
 public:
  void step_begin(int64_t step) override { listening_ = step == kWarmup - 1; }
  void collective(const CollectiveRecord& record) override {
    const std::lock_guard lock(mutex_);
    if (listening_) {
      records_.push_back(record);
    }
  }
  std::vector<CollectiveRecord> take() {
    const std::lock_guard lock(mutex_);
    listening_ = false;
    std::ranges::stable_sort(records_, {}, &CollectiveRecord::issued);
    return std::move(records_);
  }

 private:
  std::mutex mutex_;
  bool listening_ = false;
  std::vector<CollectiveRecord> records_;
};

// Runs collectives with nothing beside them.
class Replay {
 public:
  Replay(dist::World& world, const plan::ResolvedPlan& plan, std::vector<CollectiveRecord> records)
      : records_(std::move(records)), waits_(records_.size(), false) {
    groups_["world"] = &world.world();
    for (const mesh::Group& group : plan.groups) {
      dist::Communicator& found = world.of(group);
      groups_[found.name()] = &found;
    }
    int64_t most = 0;
    for (const CollectiveRecord& record : records_) {
      most = std::max({most, record.in_nelems, record.out_nelems});
      bytes_ += std::max(record.in_nelems, record.out_nelems) * size_of(record.dtype);
    }
    // As memory that each collective frees and the next one gets again.
    in_ = at::zeros({most}, at::kDouble);
    out_ = at::zeros({most}, at::kDouble);
    mark_waits();
  }

  [[nodiscard]] size_t count() const { return records_.size(); }
  [[nodiscard]] int64_t bytes() const { return bytes_; }

  // Returns the waits in ms.
  double run() {
    double waits = 0;
    for (size_t i = 0; i < records_.size(); ++i) {
      Meter meter;
      meter.start();
      run(records_[i]);
      if (waits_[i]) {
        waits += std::max(0.0, meter.wall() - meter.cpu());
      }
    }
    return waits;
  }

 private:
  void run(const CollectiveRecord& record) {
    dist::Communicator& on = *groups_.at(std::string(record.group));
    const dist::Purpose purpose{record.unit, "a measurement"};
    const at::Tensor in = part(in_, record.in_nelems, record.dtype);
    const auto op = record.unit == kNoUnit ? dist::ReduceOp::kSum : dist::ReduceOp::kAverage;
    switch (record.kind) {
      case CollectiveKind::kAllGather:
        return on.wait(on.all_gather(part(out_, record.out_nelems, record.dtype), in, purpose));
      case CollectiveKind::kReduceScatter:
        return on.wait(
            on.reduce_scatter(part(out_, record.out_nelems, record.dtype), in, op, purpose));
      case CollectiveKind::kAllReduce:
        return on.wait(on.all_reduce(in, op, purpose));
      default:
        throw UsageError("a step with " + std::string(name_of(record.kind)) +
                         " cannot be measured");
    }
  }

  static at::Tensor part(const at::Tensor& memory, int64_t numel, DType dtype) {
    return memory.view(module::to_scalar_type(dtype)).narrow(0, 0, numel);
  }

  void mark_waits() {
    const auto gather =
        std::ranges::find(records_, CollectiveKind::kAllGather, &CollectiveRecord::kind);
    if (gather != records_.end()) {
      waits_[static_cast<size_t>(gather - records_.begin())] = true;
    }
    size_t last = records_.size();
    for (size_t i = 0; i < records_.size(); ++i) {
      const CollectiveRecord& record = records_[i];
      if (record.unit != kNoUnit && record.kind != CollectiveKind::kAllGather) {
        last = i;
      }
      // The last one without a unit is the norm; the loss before it can be shared during backward.
      if (record.unit == kNoUnit && i + 1 == records_.size()) {
        waits_[i] = true;
      }
    }
    if (last < records_.size()) {
      waits_[last] = true;
    }
  }

  std::vector<CollectiveRecord> records_;
  std::vector<bool> waits_;
  std::map<std::string, dist::Communicator*> groups_;
  at::Tensor in_, out_;
  int64_t bytes_ = 0;
};

// The step without sharding and communication.
class Unsharded {
 public:
  Unsharded(const cli::RunOptions& options,
            const plan::ModelConfig& config,
            const std::vector<at::Tensor>& shards)
      : model_(models::make_model(config, models::Init::kRandom, options.seed)) {
    for (const at::Tensor& shard : shards) {
      at::Tensor own = at::randn_like(shard).detach();
      own.mutable_grad() = at::zeros_like(own).fill_(1e-6);
      own_.push_back(std::move(own));
    }
    optimizer_ = train::make_optimizer(own_, {});
  }

  // For step_with_turns(). The hooks of units stay, so a step without turns is a little longer.
  void watch(const plan::ResolvedPlan& plan) {
    const auto modules = model_->named_modules();
    for (const plan::Unit& unit : plan.units) {
      const auto* module = modules.find(unit.fqn);
      if (auto* point = module ? dynamic_cast<module::HookPoint*>(module->get()) : nullptr) {
        watch(*point);
      }
    }
  }

  // The same with a call of `meet` before each unit's forward and backward; how many calls.
  int64_t step_with_turns(const at::Tensor& inputs,
                          const at::Tensor& targets,
                          std::function<void()> meet) {
    met_ = 0;
    meet_ = std::move(meet);
    step(inputs, targets);
    meet_ = nullptr;
    return met_;
  }

  void step(const at::Tensor& inputs, const at::Tensor& targets) {
    const at::Tensor logits = model_->logits(inputs);
    models::token_loss(logits.flatten(0, 1), targets).backward();
    {
      const at::NoGradGuard no_grad;
      for (const at::Tensor& own : own_) {
        (void)at::linalg_vector_norm(own.grad(), 2).item<double>();
      }
    }
    optimizer_->step();
    for (const at::Tensor& parameter : model_->parameters()) {
      parameter.mutable_grad() = at::Tensor();
    }
  }

 private:
  void watch(module::HookPoint& point) {
    point.keep(point.register_pre_forward([this](module::TensorRefs& /*inputs*/) { meet(); }));
    point.keep(point.register_post_forward([this](module::TensorRefs& outputs) {
      outputs.at(0)->register_hook([this](const at::Tensor& /*gradient*/) { meet(); });
    }));
  }
  void meet() {
    if (meet_) {
      ++met_;
      meet_();
    }
  }

  std::function<void()> meet_;  // null: no turns
  int64_t met_ = 0;
  std::shared_ptr<models::CausalLm> model_;
  std::vector<at::Tensor> own_;
  std::unique_ptr<train::Optimizer> optimizer_;
};

int number(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

void measure(cli::RunOptions options, bool turns) {
  at::set_num_threads(static_cast<int>(options.threads));
  Collectives seen;
  dist::WorldOptions world_options;
  world_options.rank = number("RANK", 0);
  world_options.world_size = number("WORLD_SIZE", 1);
  world_options.recorder = &seen;
  const auto world = dist::World::join(world_options);
  const cli::PreparedRun prepared = cli::prepare_run(options, world->size());
  const auto model = models::make_model(prepared.config, models::Init::kNone);
  fsdp::Options sharding;
  sharding.world = world.get();
  const auto sharded = train::apply_plan(model, prepared.plan, sharding);
  train::initialize_parameters(*sharded, prepared.config, options.seed);
  const train::TokenFile tokens(options.tokens);
  const auto shards = sharded->flat_shards();
  Unsharded unsharded(options, prepared.config, {shards.begin(), shards.end()});
  if (turns) {
    unsharded.watch(prepared.plan);
  }

  const int64_t batch = options.step.batch, seq = options.step.seq.value_or(1);
  const at::Tensor inputs = at::zeros({batch, seq}, at::kLong);
  tokens.read(0, {inputs.mutable_data_ptr<int64_t>(), static_cast<size_t>(inputs.numel())});
  const at::Tensor targets = inputs.flatten();
  const auto meet = [&] {
    world->world().wait(world->world().barrier({kNoUnit, "a measurement"}));
  };

  // One small all-reduce, in which the ranks meet once (PeerMemory).
  const at::Tensor one = at::zeros({1});
  const auto take_turns = [&] {
    world->world().wait(
        world->world().all_reduce(one, dist::ReduceOp::kSum, {kNoUnit, "a measurement"}));
  };
  std::unique_ptr<Replay> replay;
  Times engine, compute, communication;
  std::vector<double> waits, turns_cpu;
  Meter engine_meter;
  const auto after_step = [&](const train::StepReport& report) {
    if (report.step + 1 > kWarmup) {
      engine.cpu.push_back(engine_meter.cpu());
      engine.wall.push_back(report.step_ms);
    }
    if (report.step + 1 == kWarmup) {
      replay = std::make_unique<Replay>(*world, prepared.plan, seen.take());
    }
    Meter meter;
    meet();
    meter.start();
    unsharded.step(inputs, targets);
    if (report.step + 1 > kWarmup) {
      compute.add(meter);
    }
    if (turns) {
      meet();
      meter.start();
      const int64_t met = unsharded.step_with_turns(inputs, targets, take_turns);
      const double with_turns = meter.cpu();
      meet();
      meter.start();
      for (int64_t i = 0; i < met; ++i) {
        take_turns();
      }
      if (report.step + 1 > kWarmup) {
        turns_cpu.push_back(with_turns - meter.cpu());
      }
    }
    meet();
    if (report.step + 1 > kWarmup) {
      meter.start();
      waits.push_back(replay->run());
      communication.add(meter);
    }
    meet();
    engine_meter.start();
  };
  train::TrainOptions train;
  train.steps = kWarmup + options.steps;
  train.step = options.step;
  const train::TrainContext context{model.get(),   sharded.get(), world.get(), &tokens,
                                    world->rank(), world->size(), &seen,       nullptr};
  train::train(context, train, after_step);

  const auto list = [](const std::vector<double>& values) {
    return fmt::format("[{:.4f}]", fmt::join(values, ", "));
  };
  fmt::print(
      R"({{"rank": {}, "collectives": {}, "bytes": {}, "engine_ms": {}, "engine_cpu_ms": {}, "compute_ms": {}, "compute_cpu_ms": {}, )"
      R"("turns_cpu_ms": {}, "communication_ms": {}, "communication_cpu_ms": {}, "waits_ms": {}}})"
      "\n",
      world->rank(), replay->count(), replay->bytes(), list(engine.wall), list(engine.cpu),
      list(compute.wall), list(compute.cpu), list(turns_cpu), list(communication.wall),
      list(communication.cpu), list(waits));
}

}  // namespace
}  // namespace shardlens

int main(int argc, char** argv) {
  CLI::App app("Measures what the steps of one rank are made of; see bench/bound.py");
  shardlens::cli::RunOptions options;
  shardlens::cli::add_run_options(app, options);
  bool turns = false;
  app.add_flag("--turns", turns, "also compute with a meeting of the ranks at each unit");
  try {
    app.parse(argc, argv);
    shardlens::measure(options, turns);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  } catch (const std::exception& error) {
    fmt::print(stderr, "step_bound: {}\n", error.what());
    return 4;
  }
  return 0;
}
