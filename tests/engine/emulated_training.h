#pragma once

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>

#include "core/dist/world.h"
#include "core/fsdp/apply/fully_shard.h"
#include "core/fsdp/run/executor.h"
#include "core/module/tree_of.h"
#include "core/plan/resolve.h"
#include "profiler/record/host/finish.h"
#include "profiler/record/host/spool_recorder.h"
#include "profiler/record/operators/operator_observer.h"
#include "profiler/trace/run.h"
#include "tests/core/fsdp/mlp.h"

namespace shardlens::test {

using MakeExecutor = std::function<std::unique_ptr<fsdp::Executor>(
    std::vector<fsdp::FlatParamHandle*>, dist::World&, Recorder*)>;

// Training of a small model on rank 0 of an emulated world of 8.
struct EmulatedTraining {
  int64_t width = 8, blocks = 4, rows = 2;
  int steps = 4;
  plan::Plan plan = mlp_plan();
  std::function<void(Mlp&)> change = {};              // after sharding
  MakeExecutor make_executor = {};                    // empty: the engine's own
  std::shared_ptr<const CollectiveTimer> timer = {};  // empty: no delay
  bool operators = false;                             // whether the trace has them
};

// The planned forward: the root around the blocks, in order.
inline plan::Workload workload_of(const plan::ResolvedPlan& plan) {
  plan::Workload workload;
  const auto hook = [&](Hook kind, UnitId unit) {
    workload.order.push_back(
        {plan::WorkloadItem::Kind::kHook, static_cast<uint32_t>(workload.hooks.size())});
    workload.hooks.push_back({kind, unit});
  };
  const auto operators = [&](UnitId unit) {
    workload.order.push_back(
        {plan::WorkloadItem::Kind::kOperator, static_cast<uint32_t>(workload.operators.size())});
    workload.operators.emplace_back().unit = unit;
  };
  hook(Hook::kRootPreForward, 0);
  hook(Hook::kPreForward, 0);
  operators(0);
  for (UnitId unit = 1; unit < plan.units.size(); ++unit) {
    hook(Hook::kPreForward, unit);
    operators(unit);
    hook(Hook::kPostForward, unit);
  }
  operators(0);
  hook(Hook::kPostForward, 0);
  return workload;
}

// Runs the training and returns its capture, with the plan and the planned forward.
inline trace::Run captured(const EmulatedTraining& training) {
  namespace fs = std::filesystem;
  std::string directory = (fs::temp_directory_path() / "shardlens_capture_XXXXXX").string();
  if (mkdtemp(directory.data()) == nullptr) {
    throw std::runtime_error("cannot make " + directory);
  }
  fs::path file;
  trace::PlannedInputs planned;
  {
    record::SpoolRecorder recorder(
        {.directory = directory, .rank = 0, .world_size = 8, .backend = "emulated"});
    std::unique_ptr<record::OperatorObserver> observer;
    if (training.operators) {
      observer = std::make_unique<record::OperatorObserver>(recorder);
    }
    dist::WorldOptions world_options;
    world_options.backend = dist::BackendKind::kEmulated;
    world_options.world_size = 8;
    world_options.recorder = &recorder;
    world_options.timer = training.timer;
    auto world = dist::World::join(world_options);
    Mlp model(training.width, training.blocks);
    planned.plan = plan::resolve(training.plan, module::tree_of(*model), 8);
    planned.workload = workload_of(planned.plan);
    fsdp::Options options{.world = world.get(), .recorder = &recorder};
    if (training.make_executor) {
      options.make_executor = [&](std::vector<fsdp::FlatParamHandle*> handles) {
        return training.make_executor(std::move(handles), *world, &recorder);
      };
    }
    const auto sharded = fsdp::fully_shard(model.ptr(), planned.plan, options);
    if (training.change) {
      training.change(model);
    }
    const at::Tensor x = at::ones({training.rows, training.width});
    const at::Tensor y = at::ones({training.rows, 2});
    for (int step = 0; step < training.steps; ++step) {
      recorder.step_begin(step);
      at::mse_loss(model(x), y).backward();
      sharded->zero_grad();
      sharded->optimizer_done();
      recorder.step_end();
    }
    world.reset();  // the communication thread has recorded everything
    observer.reset();
    file = record::finish_trace(recorder);
  }
  trace::Run run = trace::Run::of({trace::read_trace(file)});
  fs::remove_all(directory);
  run.planned = std::move(planned);
  return run;
}

}  // namespace shardlens::test
