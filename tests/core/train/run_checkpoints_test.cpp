// Runs that are stopped and continued.
#include "core/train/run_checkpoints.h"

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/recorder.h"
#include "core/checkpoint/checkpoint_reader.h"
#include "core/checkpoint/save_directory.h"
#include "core/dist/world.h"
#include "core/files/directory_lock.h"
#include "core/fsdp/apply/fully_shard.h"
#include "core/models/model.h"
#include "core/plan/plan.h"
#include "core/plan/resolve.h"
#include "core/train/parallel_model.h"
#include "core/train/trainer.h"
#include "core/train/training_checkpoint.h"
#include "tests/core/train/train_context.h"
#include "tests/support/ranks.h"

namespace {

// The name of a file that cannot be flushed; "" for none.
std::string failing;  // NOLINT(cert-err58-cpp)

}  // namespace

// The program's definition takes precedence over that of the C library.
extern "C" int fsync(int fd) {
  char path[PATH_MAX] = {};
  const ssize_t size =
      ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path, sizeof path - 1);
  if (!failing.empty() && size > 0 && std::string(path).ends_with("/" + failing)) {
    errno = EIO;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

namespace shardlens::train {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr const char* kLlama = R"({"model_type": "llama", "vocab_size": 512,
  "hidden_size": 20, "intermediate_size": 28, "num_hidden_layers": 2,
  "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64})";
constexpr const char* kTiedModel = R"({"model_type": "llama", "vocab_size": 512,
  "hidden_size": 20, "intermediate_size": 28, "num_hidden_layers": 2, "tie_word_embeddings": true,
  "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64})";
constexpr int64_t kStepSamples = 12;  // of a step, over all ranks and microbatches

struct Training {
  std::string plan = R"({"version": 1})";
  int world = 2;
  int64_t steps = 6;
  int64_t accumulate = 1;
  plan::Optimizer optimizer = plan::Optimizer::kAdamW;
  std::string model = kLlama;
  int stop_in_forward = 0;  // rank 1 is asked to stop in its n-th forward; 0: never
};

// Asks for the stop when the n-th forward begins.
struct StopInForward : NullRecorder {
  explicit StopInForward(int forward) : left(forward) {}
  void range_begin(Range range, UnitId /*unit*/) override {
    stop = stop || (range == Range::kForward && --left == 0);
  }
  int left;
  std::atomic<bool> stop = false;
};

struct Outcome {
  std::map<int64_t, double> losses;  // by step
  std::map<int64_t, double> scales;  // by step, in fp16
  std::map<std::pair<int, uint32_t>, std::vector<float>>
      parameters;  // by rank and index: what it has
};

// `of_rank_1`: that rank's options, if they differ.
Outcome train_run(const Training& run,
                  const CheckpointOptions& saving,
                  const std::optional<CheckpointOptions>& of_rank_1 = std::nullopt) {
  const plan::ModelConfig config = plan::parse_model_config(run.model, "model");
  Outcome outcome;
  std::mutex mutex;
  test::run_ranks(run.world, [&](dist::World& world) {
    const auto model = models::make_model(config, models::Init::kNone);
    const plan::ModuleTree tree = plan::module_tree(config);
    fsdp::Options sharding;
    sharding.world = &world;
    const auto sharded = apply_plan(
        model, plan::resolve(plan::parse_plan(run.plan, "plan.json"), tree, run.world), sharding);
    TrainOptions options;
    options.steps = run.steps;
    options.step.accumulate = run.accumulate;
    options.step.batch = kStepSamples / run.world / run.accumulate;
    options.step.seq = 8;
    options.step.optimizer = run.optimizer;
    options.lr = 1e-2;
    options.scaler.growth_interval = 2;
    RunCheckpoints checkpoints(*sharded, world, options.step,
                               of_rank_1 && world.rank() == 1 ? *of_rank_1 : saving);
    if (saving.resume.empty()) {
      initialize_parameters(*sharded, config, 1);
    } else {
      checkpoints.restore_parameters();
    }
    const TokenFile tokens(std::string(SHARDLENS_TEST_DATA) + "/tokens.u16.bin");
    TrainContext context = context_of(*model, *sharded, world, tokens);
    context.checkpoints = &checkpoints;
    StopInForward stopper(world.rank() == 1 ? run.stop_in_forward : 0);
    if (run.stop_in_forward > 0) {
      context.recorder = &stopper;
      context.stop = &stopper.stop;
    }
    train(context, options, [&](const StepReport& report) {
      const std::lock_guard lock(mutex);
      outcome.losses[report.step] = report.loss;
      if (report.loss_scale) {
        outcome.scales[report.step] = *report.loss_scale;
      }
    });
    const std::lock_guard lock(mutex);
    for (const fsdp::ParameterSlice& slice : sharded->slices()) {
      const auto* first = slice.values.const_data_ptr<float>();
      outcome.parameters[{world.rank(), slice.parameter}] = {first, first + slice.values.numel()};
    }
  });
  return outcome;
}

class RunCheckpointsTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) / ("shardlens_runs_" + std::to_string(::getpid()));
    fs::remove_all(root_);
    failing.clear();
  }
  void TearDown() override {
    failing.clear();
    fs::remove_all(root_);
  }

  [[nodiscard]] CheckpointOptions saving() const {
    CheckpointOptions options;
    options.save = root_;
    return options;
  }
  [[nodiscard]] CheckpointOptions resuming() const {
    CheckpointOptions options;
    options.resume = *checkpoint::latest_checkpoint(root_);
    return options;
  }

  fs::path root_;
};

struct Case {
  std::string name;
  Training run;
};
class SameRanksTest : public RunCheckpointsTest, public testing::WithParamInterface<Case> {};

// Three steps, and three more in new processes, are bitwise the six steps of one run.
TEST_P(SameRanksTest, AResumedRunIsBitwiseTheUninterruptedOne) {
  Training run = GetParam().run;
  const Outcome whole = train_run(run, {});
  run.steps = 3;
  (void)train_run(run, saving());
  run.steps = 6;
  const Outcome rest = train_run(run, resuming());
  EXPECT_THAT(rest.losses, testing::SizeIs(3));
  for (const auto& [step, loss] : rest.losses) {
    EXPECT_EQ(loss, whole.losses.at(step)) << "step " << step;
  }
  for (const auto& [step, scale] : rest.scales) {
    EXPECT_EQ(scale, whole.scales.at(step)) << "step " << step;
  }
  EXPECT_EQ(rest.parameters, whole.parameters);
}

const Case kCases[] = {
    {"Flat", {}},
    {"PerParameter", {.plan = R"({"version": 1, "layout": "per_parameter"})", .world = 4}},
    {"Fsdp1", {.plan = R"({"version": 1, "dialect": "fsdp1"})", .world = 3}},
    {"Sgd", {.world = 4, .optimizer = plan::Optimizer::kSgd}},
    {"Bf16",
     {.plan =
          R"({"version": 1, "mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32"}})"}},
    {"Fp16",
     {.plan =
          R"({"version": 1, "mixed_precision": {"param_dtype": "fp16", "reduce_dtype": "fp32"}})"}},
    {"Hybrid", {.plan = R"({"version": 1, "mesh": {"replicate": 2, "shard": 2}})", .world = 4}},
    {"NoShard", {.plan = R"({"version": 1, "mesh": {"replicate": 2, "shard": 1}})"}},
    {"Replicate", {.plan = R"({"version": 1, "units": [{"modules": "", "api": "replicate"}]})"}},
    {"Frozen",
     {.plan =
          R"({"version": 1, "frozen_parameters": ["**.q_proj.weight", "model.embed_tokens.weight"]})"}},
    {"FrozenFsdp1",
     {.plan = R"({"version": 1, "dialect": "fsdp1", "frozen_parameters": ["model.layers.0.**"]})"}},
    {"Ignored", {.plan = R"({"version": 1, "ignored_parameters": ["model.norm.weight"]})"}},
    {"Tied", {.world = 3, .model = kTiedModel}},
    {"Accumulated", {.accumulate = 3}},
    {"Offloaded", {.plan = R"({"version": 1, "cpu_offload": true})", .world = 3}},
};
INSTANTIATE_TEST_SUITE_P(All, SameRanksTest, testing::ValuesIn(kCases), [](const auto& each) {
  return each.param.name;
});

// A signal in the second of three microbatches: the step is ended and saved, and nothing of the
// next one is lost or done twice.
TEST_F(RunCheckpointsTest, AStopBetweenMicrobatchesContinuesBitwise) {
  for (const char* plan :
       {R"({"version": 1})", R"({"version": 1, "reshard_after_backward": false})",
        R"({"version": 1, "cpu_offload": true})"}) {
    SCOPED_TRACE(plan);
    fs::remove_all(root_);
    Training run{.plan = plan, .accumulate = 3};
    const Outcome whole = train_run(run, {});
    run.stop_in_forward = 5;
    EXPECT_THAT(train_run(run, saving()).losses, testing::SizeIs(2));
    EXPECT_EQ(checkpoint::latest_checkpoint(root_)->filename(), "step-00000002");
    run.stop_in_forward = 0;
    const Outcome rest = train_run(run, resuming());
    EXPECT_THAT(rest.losses, testing::SizeIs(4));
    for (const auto& [step, loss] : rest.losses) {
      EXPECT_EQ(loss, whole.losses.at(step)) << "step " << step;
    }
    EXPECT_EQ(rest.parameters, whole.parameters);
  }
}

// A Reducer arranges its buckets again after its first backward, and with three ranks the place in
// a bucket decides in which order numbers are added.
TEST_F(RunCheckpointsTest, ReplicatedOnThreeRanksContinuesUpToRounding) {
  Training run{.plan = R"({"version": 1, "units": [{"modules": "", "api": "replicate"}]})",
               .world = 3};
  const Outcome whole = train_run(run, {});
  run.steps = 3;
  (void)train_run(run, saving());
  run.steps = 6;
  for (const auto& [step, loss] : train_run(run, resuming()).losses) {
    EXPECT_NEAR(loss, whole.losses.at(step), 1e-5) << "step " << step;
  }
}

// 4, 3, 2 and 1 ranks with 12 samples a step, each with another layout and dialect.
TEST_F(RunCheckpointsTest, OtherWorldSizesLayoutsAndDialectsContinueTheRun) {
  Training run{.world = 4, .steps = 8};
  const Outcome whole = train_run(run, {});
  const Training parts[] = {
      {.world = 4, .steps = 2},
      {.plan = R"({"version": 1, "layout": "per_parameter"})", .world = 3, .steps = 4},
      {.plan = R"({"version": 1, "dialect": "fsdp1", "mesh": {"replicate": 2, "shard": 1}})",
       .world = 2,
       .steps = 6,
       .accumulate = 3},
      {.world = 1, .steps = 8}};
  for (const Training& part : parts) {
    CheckpointOptions options = saving();
    if (part.steps > 2) {
      options.resume = *checkpoint::latest_checkpoint(root_);
    }
    const Outcome outcome = train_run(part, options);
    EXPECT_THAT(outcome.losses, testing::SizeIs(2));
    for (const auto& [step, loss] : outcome.losses) {
      EXPECT_NEAR(loss, whole.losses.at(step), 1e-5) << part.world << " ranks, step " << step;
    }
  }
}

TEST_F(RunCheckpointsTest, EveryFewStepsAndTheLatestAreKept) {
  CheckpointOptions options = saving();
  options.every = 2;
  options.keep = 2;
  (void)train_run({.steps = 7}, options);
  std::vector<int64_t> steps;
  for (const checkpoint::SavedStep& saved : checkpoint::saved_steps(root_)) {
    steps.push_back(saved.step);
  }
  EXPECT_THAT(steps, testing::ElementsAre(6, 7));
}

// Every checkpoint of a run that goes on while they are written is that of its step.
TEST_F(RunCheckpointsTest, AsynchronousCheckpointsAreThoseOfTheirStep) {
  const Outcome whole = train_run({.world = 3}, {});
  CheckpointOptions options = saving();
  options.every = 1;
  options.asynchronous = true;
  EXPECT_EQ(train_run({.world = 3}, options).losses, whole.losses);
  for (const int64_t step : {1, 2, 3, 4, 5}) {
    const checkpoint::SavedStep saved =
        checkpoint::saved_steps(root_).at(static_cast<size_t>(step - 1));
    ASSERT_EQ(saved.step, step);
    CheckpointOptions resumed;
    resumed.resume = saved.path;
    EXPECT_EQ(train_run({.world = 3}, resumed).parameters, whole.parameters) << "step " << step;
  }
  EXPECT_THAT(checkpoint::unfinished_saves(root_), testing::IsEmpty());
}

TEST_F(RunCheckpointsTest, AFailedAsynchronousSaveEndsAllRanks) {
  failing = "rank00001.safetensors";
  CheckpointOptions options = saving();
  options.every = 2;
  options.asynchronous = true;
  EXPECT_THAT(
      [&] { (void)train_run({.steps = 1000}, options); },
      testing::ThrowsMessage<RuntimeFault>(HasSubstr("a checkpoint was not saved: rank 1 failed")));
}

TEST_F(RunCheckpointsTest, PositionAndStateAreSaved) {
  (void)train_run({.steps = 3}, saving());
  checkpoint::Reader reader = checkpoint::Reader::open(*checkpoint::latest_checkpoint(root_));
  const checkpoint::Position& position = reader.index().position;
  EXPECT_EQ(position.step, 3);
  EXPECT_EQ(position.samples, 3 * kStepSamples);
  EXPECT_EQ(position.seq, 8);
  EXPECT_EQ(reader.index().origin.optimizer, "adamw");
  float steps = 0;
  reader.read(reader.at("state.model.norm.weight.step"), 0, {&steps, 1});
  EXPECT_EQ(steps, 3);
  EXPECT_EQ(reader.at("state.model.layers.1.mlp.up_proj.weight.exp_avg_sq").shape,
            (std::vector<int64_t>{28, 20}));
  EXPECT_NE(reader.find("rank1.rng.cpu"), nullptr);
}

TEST_F(RunCheckpointsTest, WhatDoesNotFitIsNamed) {
  (void)train_run({.steps = 1}, saving());
  EXPECT_THAT([&] { (void)train_run({.optimizer = plan::Optimizer::kSgd}, resuming()); },
              testing::ThrowsMessage<InputError>(
                  HasSubstr("has the optimizer state of adamw, this run has --optimizer sgd")));
  std::string other = kLlama;
  other.replace(other.find("28"), 2, "24");
  EXPECT_THAT([&] { (void)train_run({.model = other}, resuming()); },
              testing::ThrowsMessage<InputError>(
                  HasSubstr("has shape [28, 20], the model's config needs [24, 20]")));
}

// A file that rank 1 cannot write: all ranks end, and the message names what still loads.
TEST_F(RunCheckpointsTest, AFailedSaveEndsAllRanksAndNamesTheOneBefore) {
  (void)train_run({.steps = 1}, saving());
  failing = "rank00001.safetensors";
  CheckpointOptions options = saving();
  options.resume = *checkpoint::latest_checkpoint(root_);
  EXPECT_THAT(
      [&] { (void)train_run({.steps = 2}, options); },
      testing::ThrowsMessage<RuntimeFault>(HasSubstr("a checkpoint was not saved: rank 1 failed")));
  EXPECT_EQ(checkpoint::latest_checkpoint(root_)->filename(), "step-00000001");
  failing.clear();
  (void)train_run({.steps = 2}, options);
  EXPECT_EQ(checkpoint::latest_checkpoint(root_)->filename(), "step-00000002");
  EXPECT_EQ(std::distance(fs::directory_iterator(root_), {}), 2) << "what had failed is removed";
}

// The directory is tried before the first step, not when the run saves.
TEST_F(RunCheckpointsTest, WhatCannotBeWrittenIsAnErrorBeforeTraining) {
  std::ofstream(root_) << "a file";
  EXPECT_THAT(
      [&] { (void)train_run({}, saving()); },
      testing::ThrowsMessage<RuntimeFault>(testing::StartsWith("checkpoints cannot be saved: ")));
  fs::remove(root_);
  fs::create_directory_symlink("nowhere", root_);
  EXPECT_THAT(
      [&] { (void)train_run({}, saving()); },
      testing::ThrowsMessage<RuntimeFault>(testing::StartsWith("checkpoints cannot be saved: ")));
}

// As long as a run saves to a directory, no other one does.
TEST_F(RunCheckpointsTest, ASecondRunIsRefused) {
  fs::create_directory(root_);
  {
    const DirectoryLock lock(checkpoint::save_place(root_));
    EXPECT_THAT(
        [&] { (void)train_run({}, saving()); },
        testing::ThrowsMessage<RuntimeFault>(testing::StartsWith("checkpoints cannot be saved: ")));
    EXPECT_EQ(std::distance(fs::directory_iterator(root_), {}), 1) << "only the lock";
  }
  (void)train_run({.steps = 1}, saving());
  EXPECT_EQ(std::distance(fs::directory_iterator(root_), {}), 1) << "only the checkpoint";
}

// A rank whose path leads to another directory than rank 0's, as on a node without the shared one.
TEST_F(RunCheckpointsTest, AllRanksNeedTheSameDirectory) {
  const fs::path other = root_.string() + "_other";
  CheckpointOptions options = saving();
  CheckpointOptions of_rank_1 = options;
  of_rank_1.save = other;
  EXPECT_THAT(
      [&] { (void)train_run({}, options, of_rank_1); },
      testing::ThrowsMessage<RuntimeFault>(testing::StartsWith("checkpoints cannot be saved: ")));
  fs::remove_all(other);
}

// The messages for what stays are given once.
TEST_F(RunCheckpointsTest, WhatIsNotRemovedIsTold) {
  fs::create_directories(root_ / "step-00000001.tmp");
  fs::create_directory_symlink("step-00000001.tmp", root_ / "step-00000000");
  std::vector<std::string> messages;
  CheckpointOptions options = saving();
  options.every = 1;
  options.keep = 1;
  options.on_left = [&](const std::string& message) { messages.push_back(message); };
  (void)train_run({.steps = 4}, options);
  EXPECT_THAT(messages, testing::ElementsAre(HasSubstr("step-00000001.tmp is left as it is"),
                                             HasSubstr("step-00000000 is left as it is")));
}

}  // namespace
}  // namespace shardlens::train
