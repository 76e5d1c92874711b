// Time, CPU time and memory of saving and resuming a run: one rank of checkpoint_bench.py.
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <sys/resource.h>

#include <ATen/Parallel.h>

#include "core/base/error.h"
#include "core/checkpoint/save_directory.h"
#include "core/dist/world.h"
#include "core/fsdp/apply/fully_shard.h"
#include "core/models/model.h"
#include "core/plan/plan.h"
#include "core/plan/resolve.h"
#include "core/train/optimizer.h"
#include "core/train/parallel_model.h"
#include "core/train/run_checkpoints.h"
#include "core/train/training_checkpoint.h"

namespace shardlens {
namespace {

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// A line of /proc/self/status, in bytes.
int64_t memory(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key + ":")) {
      return std::stoll(line.substr(key.size() + 1)) * 1024;
    }
  }
  return 0;
}

// What happens between two calls, as JSON.
class Measured {
 public:
  Measured() {
    std::ofstream("/proc/self/clear_refs") << "5";  // VmHWM begins again
    resident_ = memory("VmRSS");
    cpu_ = cpu_seconds();
    begin_ = std::chrono::steady_clock::now();
  }
  void print(const std::string& what, double blocked) const {
    fmt::print(
        "{{\"what\": \"{}\", \"seconds\": {}, \"blocked_s\": {}, \"cpu_s\": {}, "
        "\"extra_bytes\": {}}}\n",
        what, elapsed(), blocked, cpu_seconds() - cpu_, memory("VmHWM") - resident_);
  }
  [[nodiscard]] double elapsed() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  int64_t resident_;
  double cpu_;
  std::chrono::steady_clock::time_point begin_;
};

struct Settings {
  int rank = 0, world = 4;
  std::string model, out;
};

void run(const Settings& settings) {
  at::set_num_threads(1);
  dist::WorldOptions options;
  options.rank = settings.rank;
  options.world_size = settings.world;
  const auto world = dist::World::join(options);
  std::ifstream file(settings.model);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const plan::ModelConfig config = plan::parse_model_config(text, settings.model);
  const auto model = models::make_model(config, models::Init::kNone);
  fsdp::Options sharding;
  sharding.world = world.get();
  const auto sharded =
      train::apply_plan(model,
                        plan::resolve(plan::parse_plan(R"({"version": 1})", "bench"),
                                      plan::module_tree(config), settings.world),
                        sharding);
  train::initialize_parameters(*sharded, config, 1);
  const auto optimizer = train::make_optimizer(sharded->flat_shards(), {});
  for (size_t i = 0; i < sharded->flat_shards().size(); ++i) {
    optimizer->create_state(i, 1);
    for (const auto* moment : {&optimizer->states()[i].first, &optimizer->states()[i].second}) {
      at::Tensor values = *moment;
      values.fill_(0.5);  // its pages exist
    }
  }
  plan::StepSettings step;
  step.seq = 8;
  const auto meet = [&] {
    world->world().wait(world->world().barrier({kNoUnit, "a measurement"}));
  };
  for (const bool asynchronous : {false, true}) {
    train::CheckpointOptions saving;
    saving.save = std::filesystem::path(settings.out) / (asynchronous ? "async" : "sync");
    saving.asynchronous = asynchronous;
    train::RunCheckpoints checkpoints(*sharded, *world, step, saving);
    meet();
    const Measured measured;
    checkpoints.save(*optimizer, nullptr, 1, 0, /*last=*/!asynchronous);
    const double blocked = measured.elapsed();
    checkpoints.finish();
    measured.print(asynchronous ? "async" : "sync", blocked);
  }
  train::CheckpointOptions resuming;
  resuming.resume = *checkpoint::latest_checkpoint(std::filesystem::path(settings.out) / "sync");
  meet();
  const Measured measured;
  train::RunCheckpoints checkpoints(*sharded, *world, step, resuming);
  checkpoints.restore_parameters();
  checkpoints.restore_state(*optimizer, nullptr);
  meet();
  measured.print("load", measured.elapsed());
}

}  // namespace
}  // namespace shardlens

int main(int argc, char** argv) {
  CLI::App app("Saves and resumes a run as one rank; see checkpoint_bench.py");
  shardlens::Settings settings;
  app.add_option("--rank", settings.rank)->required();
  app.add_option("--world", settings.world)->required();
  app.add_option("--model", settings.model)->required();
  app.add_option("--out", settings.out)->required();
  CLI11_PARSE(app, argc, argv);
  try {
    shardlens::run(settings);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "checkpoint_save: {}\n", error.what());
    return 4;
  }
}
