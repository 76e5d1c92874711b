// Cost of recording for a training step: one process trains alternately with and without recording.
//
//   recording_cost --model DIR --tokens FILE --out DIR [flags of capture]
//
// Runs rank 0 of an emulated world (two ranks and no delay, unless set by flags). Blocks of steps
// alternate, so that all run under the same conditions: nothing is recorded; LibTorch calls
// callbacks that do nothing, the floor of any observer; callbacks that only read the clock; the
// recorder. Prints medians of the step time, what each adds with its spread over the rounds of
// these four, and the number of records.

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>

#include <ATen/Parallel.h>

#include "core/base/error.h"
#include "core/base/median.h"
#include "core/dist/world.h"
#include "core/fsdp/apply/fully_shard.h"
#include "core/models/model.h"
#include "core/train/trainer.h"
#include "core/train/training_checkpoint.h"
#include "profiler/record/host/spool_recorder.h"
#include "profiler/record/operators/operator_observer.h"
#include "sim/cost/alpha_beta_timer.h"

#include "bench/empty_observer.h"
#include "cli/flags/prepared_run.h"
#include "cli/flags/run_options.h"

namespace shardlens {
namespace {

constexpr int64_t kBlock = 10;  // steps per block

// Passes everything on to a recorder, or to nothing.
class Switch final : public Recorder {
 public:
  void to(Recorder* target) { target_ = target; }
  void units(std::span<const std::string> fqns) override { fqns_.assign(fqns.begin(), fqns.end()); }
  void groups(std::span<const std::string> names) override {
    groups_.assign(names.begin(), names.end());
  }
  [[nodiscard]] const std::vector<std::string>& group_names() const { return groups_; }
  [[nodiscard]] const std::vector<std::string>& fqns() const { return fqns_; }
  void step_begin(int64_t step) override {
    if (target_ != nullptr) {
      target_->step_begin(step);
    }
  }
  void step_end() override {
    if (target_ != nullptr) {
      target_->step_end();
    }
  }
  uint32_t hook(const HookEvent& event) override {
    return target_ != nullptr ? target_->hook(event) : 0;
  }
  void action(uint32_t seq, const schedule::Action& action) override {
    if (target_ != nullptr) {
      target_->action(seq, action);
    }
  }
  void range_begin(Range range, UnitId unit) override {
    if (target_ != nullptr) {
      target_->range_begin(range, unit);
    }
  }
  void range_end() override {
    if (target_ != nullptr) {
      target_->range_end();
    }
  }
  void collective(const CollectiveRecord& record) override {
    if (target_ != nullptr) {
      target_->collective(record);
    }
  }

 private:
  Recorder* target_ = nullptr;
  std::vector<std::string> fqns_, groups_;
};

// CPU time of this process; unlike wall time, it does not include time of other processes.
double cpu_ms() {
  timespec t{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) / 1e6;
}

// What observes the steps of a block.
enum Mode : uint8_t { kNothing, kEmpty, kClock, kRecorder, kModes };
constexpr std::array<std::string_view, kModes> kModeNames{"nothing", "empty observer", "clock only",
                                                          "recorder"};

constexpr int64_t kFirstSteps = kModes * kBlock;  // warmup of caches and allocator; not counted

struct Steps {
  std::vector<double> wall, cpu;  // ms
  std::vector<double> rounds;     // median CPU of each round, ms
  size_t round_begin = 0;

  void end_round() {
    if (cpu.size() > round_begin) {
      const auto begin = cpu.begin() + static_cast<std::ptrdiff_t>(round_begin);
      rounds.push_back(median(std::vector<double>(begin, cpu.end())));
    }
    round_begin = cpu.size();
  }
};

// What a mode adds to the CPU of a step, in percent: of all steps, and of each round.
void print_cpu(Mode mode, const Steps& plain, const Steps& steps) {
  std::vector<double> added;
  for (size_t i = 0; i < std::min(plain.rounds.size(), steps.rounds.size()); ++i) {
    added.push_back((steps.rounds[i] / plain.rounds[i] - 1) * 100);
  }
  const auto [least, most] = std::ranges::minmax(added);
  fmt::print(
      "cpu       {:.3f} ms with {}: {:+.2f} %, median of {} rounds {:+.2f} % ({:+.2f} to "
      "{:+.2f})\n",
      median(steps.cpu), kModeNames[mode], (median(steps.cpu) / median(plain.cpu) - 1) * 100,
      added.size(), median(added), least, most);
}

void measure(const cli::RunOptions& options) {
  const int64_t world_size = options.world_size.value_or(2);
  const cli::PreparedRun prepared = cli::prepare_run(options, world_size);
  at::set_num_threads(static_cast<int>(options.threads));
  dist::WorldOptions world_options;
  world_options.backend = dist::BackendKind::kEmulated;
  world_options.world_size = static_cast<int>(world_size);
  world_options.timer = std::make_shared<sim::AlphaBetaTimer>(
      sim::AlphaBetaTimer::parse(options.hardware.empty() ? "ab:0:inf" : options.hardware));
  Switch tap;
  world_options.recorder = &tap;
  const auto world = dist::World::join(world_options);
  const auto model = models::make_model(prepared.config, models::Init::kNone);
  fsdp::Options sharding;
  sharding.world = world.get();
  sharding.recorder = &tap;
  const auto sharded = fsdp::fully_shard(model, prepared.plan, sharding);
  train::initialize_parameters(*sharded, prepared.config, options.seed);
  const train::TokenFile tokens(options.tokens);

  record::SpoolOptions spool;
  spool.directory = options.out;
  spool.world_size = world_options.world_size;
  record::SpoolRecorder recorder(spool);
  recorder.units(tap.fqns());
  recorder.groups(tap.group_names());
  std::optional<record::OperatorObserver> observer;
  std::optional<EmptyObserver> empty;
  std::array<Steps, kModes> all;
  Mode mode = kNothing;
  int64_t recorded_steps = 0;
  int64_t observed = 0, observed_steps = 0;  // functions, with the empty observer
  double cpu_before = cpu_ms();
  const auto after_step = [&](const train::StepReport& report) {
    const double cpu = cpu_ms();
    // The first step of a block is not counted, since it includes the change.
    if (report.step >= kFirstSteps && report.step % kBlock != 0) {
      all[mode].wall.push_back(report.step_ms);
      all[mode].cpu.push_back(cpu - cpu_before);
    }
    if ((report.step + 1) % kBlock == 0) {
      if (mode == kEmpty) {
        observed += EmptyObserver::calls();
        observed_steps += kBlock;
      }
      if (mode == kRecorder) {
        recorded_steps += kBlock;
        std::ranges::for_each(all, &Steps::end_round);
      }
      mode = static_cast<Mode>((mode + 1) % kModes);
      tap.to(mode == kRecorder ? &recorder : nullptr);
      observer.reset();
      empty.reset();
      if (mode == kRecorder) {
        observer.emplace(recorder);
      } else if (mode != kNothing) {
        empty.emplace(mode == kClock);
      }
    }
    cpu_before = cpu_ms();
  };
  train::TrainOptions train;
  train.steps = options.steps;
  train.step = options.step;
  const train::TrainContext context{model.get(), sharded.get(), world.get(), &tokens,
                                    0,           world_size,    &tap,        nullptr};
  train::train(context, train, after_step);
  observer.reset();
  empty.reset();
  recorder.finish();

  const Steps &off = all[kNothing], &on = all[kRecorder];
  if (off.rounds.empty() || on.rounds.empty()) {
    throw UsageError(
        fmt::format("no step to compare; expected --steps {} or more", 2 * kFirstSteps));
  }
  const double records = static_cast<double>(recorder.kept()) / static_cast<double>(recorded_steps);
  const double plain = median(off.cpu), recorded = median(on.cpu);
  fmt::print("steps     {} without and {} with recording, medians\n", off.cpu.size(),
             on.cpu.size());
  fmt::print("wall      {:.3f} ms without, {:.3f} ms with: {:+.2f} %\n", median(off.wall),
             median(on.wall), (median(on.wall) / median(off.wall) - 1) * 100);
  fmt::print("cpu       {:.3f} ms with nothing\n", plain);
  for (const Mode each : {kEmpty, kClock, kRecorder}) {
    print_cpu(each, off, all[each]);
  }
  fmt::print("ratio recording/wall {:.4f}\nratio recording/cpu {:.4f}\n",
             median(on.wall) / median(off.wall), recorded / plain);
  fmt::print("observed  {:.0f} functions a step, {:.0f} ns of cpu each by the empty observer\n",
             static_cast<double>(observed) / static_cast<double>(observed_steps),
             (median(all[kEmpty].cpu) - plain) * 1e6 * static_cast<double>(observed_steps) /
                 static_cast<double>(observed));
  fmt::print("recorded  {:.0f} records a step, {:.0f} ns of cpu each; {} dropped\n", records,
             (recorded - plain) * 1e6 / records, recorder.dropped());
}

}  // namespace
}  // namespace shardlens

int main(int argc, char** argv) {
  CLI::App app("Measures the cost of recording for a training step");
  shardlens::cli::RunOptions options;
  options.steps = 400;
  shardlens::cli::add_run_options(app, options);
  try {
    app.parse(argc, argv);
    std::filesystem::create_directories(options.out);
    shardlens::measure(options);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  } catch (const std::exception& error) {
    fmt::print(stderr, "recording_cost: {}\n", error.what());
    return 4;
  }
  return 0;
}
