#include "cli/flags/run_options.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "core/base/error.h"

#include "cli/flags/prepared_run.h"

namespace shardlens::cli {
namespace {

using testing::HasSubstr;

RunOptions parse(std::vector<std::string> arguments) {
  CLI::App app;
  RunOptions options;
  add_run_options(app, options);
  std::reverse(arguments.begin(), arguments.end());
  app.parse(arguments);
  return options;
}

RunOptions usable() {
  RunOptions options;
  options.model = std::string(SHARDLENS_TEST_DATA) + "/llama-tiny";
  options.tokens = std::string(SHARDLENS_TEST_DATA) + "/tokens.u16.bin";
  options.out = "out";
  return options;
}

// "" if `act` does not throw, else exit code and message.
std::string refusal(const std::function<void()>& act) {
  try {
    act();
    return "";
  } catch (const Error& error) {
    return std::to_string(static_cast<int>(error.code())) + " " + error.what();
  }
}

TEST(RunOptionsTest, DefaultsAreThoseOfTheManual) {
  const RunOptions o = parse({"--model", "m", "--tokens", "t", "--out", "o"});
  EXPECT_EQ(o.nproc, 2);
  EXPECT_EQ(o.step.batch, 2);
  EXPECT_EQ(o.step.seq, 64);
  EXPECT_EQ(o.steps, 10);
  EXPECT_EQ(o.warmup, 0);
  EXPECT_DOUBLE_EQ(o.lr, 1e-3);
  EXPECT_DOUBLE_EQ(o.weight_decay, 0.01);
  EXPECT_DOUBLE_EQ(o.step.momentum, 0.9);
  EXPECT_EQ(o.strategy, "full_shard");
  EXPECT_EQ(backend_of(o), Backend::kGloo);
  EXPECT_EQ(world_size_of(o), 2);
  EXPECT_EQ(hardware_of(o), "ab:5000:inf");
  EXPECT_NO_THROW(check(o));
}

TEST(RunOptionsTest, ArgumentsReadBackToTheSameOptions) {
  RunOptions o = usable();
  EXPECT_EQ(parse(to_arguments(o)), o);
  o.strategy = "shard_grad_op";
  o.mesh = "2x4";
  o.device = Device::kCuda;
  o.backend = Backend::kEmulated;
  o.world_size = 8;
  o.rank = 3;
  o.hardware = "ab:1.5:40";
  o.steps = 33;
  o.warmup = 2;
  o.step.batch = 5;
  o.step.seq = 7;
  o.step.accumulate = 3;
  o.step.sync_every_microbatch = false;
  o.step.optimizer = plan::Optimizer::kSgd;
  o.lr = 0.1 + 0.2;  // has no short decimal form
  o.weight_decay = 0;
  o.step.momentum = 1e-9;
  o.step.clip = 0.7;
  o.norm_type = 1.5;
  o.precision = Precision::kFp16;
  o.loss_scale = 1024;
  o.loss_scale_interval = 7;
  o.seed = 18446744073709551615U;
  o.save = "a directory/with spaces";
  o.save_format = SaveFormat::kFull;
  o.save_every = 5;
  o.keep = 3;
  o.save_async = true;
  o.one_epoch = true;
  o.resume = "another directory";
  o.trigger_file = "go";
  o.on_signal = 3;
  o.record_limit = 17;
  o.record_newest = true;
  o.threads = 4;
  o.timeout = 20;
  o.force_collectives = true;
  EXPECT_EQ(parse(to_arguments(o)), o);
  o.strategy = RunOptions().strategy;
  o.plan = "plan.json";
  EXPECT_EQ(parse(to_arguments(o)), o);
  EXPECT_EQ(nlohmann::json::parse(to_json(o)).at("world_size"), 8);
  o.norm_type = std::numeric_limits<double>::infinity();
  EXPECT_EQ(parse(to_arguments(o)), o);
  EXPECT_EQ(nlohmann::json::parse(to_json(o)).at("norm_type"), "inf");
  EXPECT_EQ(nlohmann::json::parse(to_json(o)).at("one_epoch"), true);
}

TEST(RunOptionsTest, ChecksRangesAndFlagsThatExcludeEachOther) {
  struct Row {
    std::function<void(RunOptions&)> change;
    const char* message;
  };
  const std::vector<Row> rows{
      {[](RunOptions& o) { o.nproc = 0; }, "2 --nproc 0"},
      {[](RunOptions& o) { o.nproc = 100'000; }, "2 --nproc 100000"},
      {[](RunOptions& o) { o.threads = 100'000; }, "2 --threads 100000"},
      {[](RunOptions& o) { o.step.momentum = std::nan(""); }, "2 --momentum nan"},
      {[](RunOptions& o) { o.steps = 0; }, "2 --steps 0"},
      {[](RunOptions& o) { o.steps = 1'000'000'000'001; }, "at most 1000000000000"},
      {[](RunOptions& o) {
         o.backend = Backend::kEmulated;
         o.world_size = 65537;
       },
       "--world-size 65537: expected at most 65536"},
      {[](RunOptions& o) { o.warmup = 10; }, "2 --warmup 10"},
      {[](RunOptions& o) { o.step.batch = -1; }, "2 --batch -1"},
      {[](RunOptions& o) { o.step.seq = 0; }, "2 --seq 0"},
      {[](RunOptions& o) { o.threads = 0; }, "2 --threads 0"},
      {[](RunOptions& o) { o.timeout = 0; }, "2 --timeout 0"},
      {[](RunOptions& o) { o.on_signal = -1; }, "2 --on-signal -1"},
      {[](RunOptions& o) { o.record_limit = 0; }, "2 --record-limit 0"},
      {[](RunOptions& o) { o.step.sync_every_microbatch = false; }, "2 --no-sync"},
      {[](RunOptions& o) { o.lr = -1; }, "2 --lr -1"},
      {[](RunOptions& o) { o.step.clip = 0; }, "2 --clip 0"},
      {[](RunOptions& o) { o.norm_type = 0; }, "2 --norm-type 0"},
      {[](RunOptions& o) { o.norm_type = std::nan(""); }, "2 --norm-type nan"},
      {[](RunOptions& o) { o.loss_scale = 0; }, "2 --loss-scale 0"},
      {[](RunOptions& o) { o.loss_scale_interval = 0; }, "2 --loss-scale-interval 0"},
      {[](RunOptions& o) { o.world_size = 4; }, "2 --world-size"},
      {[](RunOptions& o) { o.hardware = "ab:1:1"; }, "2 --hardware"},
      {[](RunOptions& o) { o.backend = Backend::kEmulated; }, "--world-size"},
      {[](RunOptions& o) {
         o.backend = Backend::kEmulated;
         o.world_size = 4;
         o.rank = 4;
       },
       "2 --rank 4"},
      {[](RunOptions& o) {
         o.backend = Backend::kEmulated;
         o.world_size = 4;
         o.one_epoch = true;
       },
       "2 --one-epoch: an emulated run has one rank"},
      {[](RunOptions& o) {
         o.backend = Backend::kEmulated;
         o.world_size = 4;
         o.save = "out";
       },
       "2 --save: with --backend emulated the parameters have no meaning"},
      {[](RunOptions& o) { o.backend = Backend::kNccl; }, "--device cuda"},
      {[](RunOptions& o) {
         o.backend = Backend::kGloo;
         o.device = Device::kCuda;
       },
       "--device cpu"},
      {[](RunOptions& o) {
         o.backend = Backend::kEmulated;
         o.world_size = 4;
         o.resume = "out";
       },
       "2 --resume: with --backend emulated the parameters have no meaning"},
      {[](RunOptions& o) { o.save_every = 2; }, "2 --save-every needs --save"},
      {[](RunOptions& o) { o.keep = 1; }, "2 --keep needs --save"},
      {[](RunOptions& o) { o.save_async = true; }, "2 --save-async needs --save"},
      {[](RunOptions& o) { o.save_format = SaveFormat::kFull; }, "2 --save-format needs --save"},
      {[](RunOptions& o) { o.save_every = -1; }, "--save-every -1: expected at least 0"},
      {[](RunOptions& o) {
         o.save = "out";
         o.keep = 0;
       },
       "--keep 0: expected at least 1"},
      {[](RunOptions& o) {
         o.save = "out";
         o.save_format = SaveFormat::kFull;
         o.save_every = 2;
       },
       "2 --save-every needs --save-format sharded"},
  };
  for (const Row& row : rows) {
    RunOptions options = usable();
    row.change(options);
    EXPECT_THAT(refusal([&] { check(options); }), HasSubstr(row.message));
  }
}

// Worker flags come from whoever started the job.
TEST(RunOptionsTest, AWorkersWrongFlagsAreShownOnOneLine) {
  for (const std::string flag : {"--backend", "--device", "--seq", "--unknown"}) {
    CLI::App app("", "shardlens-worker");
    RunOptions options;
    add_run_options(app, options);
    std::vector<std::string> words{"shardlens-worker",
                                   "--model",
                                   "m",
                                   "--tokens",
                                   "t",
                                   "--out",
                                   "o",
                                   flag + "=a\x1b[31m\n::error::b"};
    std::vector<char*> arguments;
    for (std::string& word : words) {
      arguments.push_back(word.data());
    }
    try {
      (void)parse_worker_flags(app, static_cast<int>(arguments.size()), arguments.data());
      ADD_FAILURE() << flag;
    } catch (const UsageError& error) {
      const std::string text = error.what();
      EXPECT_THAT(text, testing::AllOf(testing::StartsWith("shardlens-worker: "),
                                       testing::HasSubstr(flag)));
      EXPECT_EQ(text.find('\x1b'), std::string::npos);
      EXPECT_EQ(text.find("\n::"), std::string::npos);
    }
  }
}

TEST(PreparedRunTest, ResolvesAndCountsSamples) {
  const PreparedRun run = prepare_run(usable(), 2);
  EXPECT_EQ(run.plan.world_size, 2);
  EXPECT_EQ(run.plan.shards(), 2);
  EXPECT_EQ(run.tokens, static_cast<int64_t>(std::filesystem::file_size(usable().tokens)) / 2);
  EXPECT_EQ(run.samples, (run.tokens - 1) / 64);
}

TEST(PreparedRunTest, AppliesMeshAndPrecision) {
  RunOptions options = usable();
  options.mesh = "1x4";
  options.precision = Precision::kBf16;
  const PreparedRun run = prepare_run(options, 4);
  EXPECT_EQ(run.plan.shards(), 4);
  EXPECT_EQ(run.plan.param_dtype(0), DType::kBF16);
  EXPECT_EQ(run.plan.reduce_dtype(0), DType::kF32);
  options.precision = Precision::kFp16;
  EXPECT_EQ(prepare_run(options, 4).plan.param_dtype(0), DType::kF16);
  EXPECT_EQ(prepare_run(options, 4).plan.reduce_dtype(0), DType::kF32);
}

TEST(PreparedRunTest, RefusesBeforeAnythingStarts) {
  const std::filesystem::path scratch = std::filesystem::path(testing::TempDir()) /
                                        ("shardlens_prepare_" + std::to_string(::getpid()));
  std::filesystem::create_directories(scratch);
  std::ofstream(scratch / "odd.bin") << "123";
  std::ofstream(scratch / "few.txt") << std::string(200, 'x');
  std::ofstream(scratch / "one.txt") << std::string(10, 'x');
  std::ofstream(scratch / "plan.json")
      << R"({"version": 1, "mesh": {"replicate": 1, "shard": 2}, "checkpointing_saves": ["attention"]})";
  const auto with = [&](const std::function<void(RunOptions&)>& change, int64_t world = 2) {
    RunOptions options = usable();
    change(options);
    return refusal([&] { (void)prepare_run(options, world); });
  };
  EXPECT_THAT(with([](RunOptions& o) { o.model = "/nonexistent"; }), testing::StartsWith("3 "));
  EXPECT_THAT(with([](RunOptions& o) { o.tokens = "/nonexistent"; }),
              HasSubstr("3 /nonexistent: no such file"));
  EXPECT_THAT(with([&](RunOptions& o) { o.tokens = scratch; }), testing::StartsWith("3 "));
  EXPECT_THAT(with([&](RunOptions& o) { o.tokens = scratch / "odd.bin"; }),
              HasSubstr("3 bytes are not a multiple of"));
  EXPECT_THAT(with([&](RunOptions& o) { o.tokens = scratch / "one.txt"; }),
              HasSubstr("too few for one sample"));
  EXPECT_THAT(with([&](RunOptions& o) { o.tokens = scratch / "few.txt"; }, 4),
              HasSubstr("4 ranks, but only 3 samples"));
  const std::string positions = with([](RunOptions& o) { o.step.seq = 100000; });
  EXPECT_THAT(positions, HasSubstr("100000"));
  EXPECT_THAT(positions, HasSubstr("positions"));
  EXPECT_THAT(with([](RunOptions& o) { o.mesh = "2by4"; }), HasSubstr("2 --mesh '2by4'"));
  EXPECT_THAT(with([](RunOptions& o) { o.mesh = "0x2"; }), HasSubstr("2 --mesh"));
  EXPECT_THAT(with([](RunOptions& o) { o.mesh = "3x5"; }), testing::StartsWith("3 "));
  EXPECT_THAT(with([](RunOptions& o) { o.strategy = "ful_shard"; }),
              HasSubstr("did you mean 'full_shard'"));
  EXPECT_THAT(with([&](RunOptions& o) { o.plan = scratch / "plan.json"; }),
              HasSubstr("not supported by the engine yet"));
  EXPECT_THAT(with([&](RunOptions& o) {
                o.plan = scratch / "plan.json";
                o.mesh = "2x1";
              }),
              HasSubstr("--mesh 2x1 contradicts"));
  std::filesystem::remove_all(scratch);
}

}  // namespace
}  // namespace shardlens::cli
