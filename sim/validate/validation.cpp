#include "sim/validate/validation.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <numeric>
#include <set>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/median.h"
#include "sim/scenario/uncertainty.h"
#include "sim/validate/simple_models.h"

namespace shardlens::sim {
namespace {

constexpr double kBytesPerGiB = 1024.0 * 1024 * 1024;
constexpr size_t kLeastRanked = 10;
constexpr double kClose = 0.15;

plan::Plan plan_of(const PublishedRun& run, const Stack& stack) {
  plan::Plan plan = stack.plan;
  plan.source = stack.name;
  plan.units = plan::strategy_plan("full_shard", plan::decoder_tree(run.shape)).units;
  if (run.strategy == "SHARD_GRAD_OP") {
    plan.reshard_after_forward.kind = plan::Reshard::Kind::kNo;
  }
  if (run.notes.find("mp_mode=PURE") != std::string::npos) {
    plan.mixed_precision.reduce_dtype = DType::kBF16;
  }
  if (run.checkpointing == Checkpointing::kFull) {
    plan.activation_checkpointing = {"layers.*"};
  } else if (run.checkpointing == Checkpointing::kSelective) {
    // The table does not state which operators a stack keeps; checkpointing every second layer is a
    // usual equivalent.
    for (int64_t i = 0; i < run.shape.layers; i += 2) {
      plan.activation_checkpointing.push_back(fmt::format("layers.{}", i));
    }
  }
  return plan;
}

// `hardware`: of the stack, with constants. `intervals`: also that of the step.
Prediction prediction_of(const PublishedRun& run,
                         const Stack& stack,
                         HardwareSpec hardware,
                         bool intervals) {
  hardware.nodes = std::max<int64_t>(1, (run.gpus + hardware.gpus - 1) / hardware.gpus);
  // The predicted peak may be larger than the GPU's memory, although the run did fit. No limit, so
  // that the full peak is computed.
  hardware.gpu.memory = Bytes{1} << 50;
  Scenario scenario;
  scenario.model = std::make_shared<const ScenarioModel>(run.shape);
  scenario.plan = plan_of(run, stack);
  scenario.world_size = run.gpus;
  scenario.step = {.batch = run.microbatch, .seq = run.seq, .accumulate = run.accumulate};
  scenario.machine = std::make_shared<const TargetMachine>(std::move(hardware));
  Prediction out = evaluate(scenario);
  if (intervals) {
    Uncertainty(scenario.machine).add_to(scenario, out);
  }
  return out;
}

double seconds(Nanoseconds time) {
  return static_cast<double>(time) * 1e-9;
}

PredictedSeconds with_interval(const Prediction& prediction) {
  const double step = seconds(prediction.step.duration);
  const std::optional<PredictedInterval>& interval = prediction.interval;
  return interval ? PredictedSeconds{step, seconds(interval->low), seconds(interval->high)}
                  : PredictedSeconds{step, step, step};
}

// Stacks that name their sources were fitted to these only; others may have constants of another
// stack. nullptr: there is none without the code base or the stack.
const Stack* fitted_without(const FittedStacks& stacks,
                            const std::string& code_base,
                            const Stack* without,
                            const HardwareSpec& hardware) {
  std::vector<const Stack*> others;
  for (const Stack& stack : stacks.stacks) {
    const auto contains = [&code_base](const std::string& source) {
      return code_base.find(source) != std::string::npos;
    };
    if (!stack.sources.empty() && &stack != without &&
        (code_base.empty() || std::ranges::none_of(stack.sources, contains))) {
      others.push_back(&stack);
    }
  }
  return nearest_stack(others, hardware, /*pytorch=*/false);
}

HardwareSpec with_constants(const HardwareSpec& hardware,
                            const Stack* other,
                            const FittedStacks& stacks) {
  Stack assumed;
  assumed.hardware.software = stacks.assumed;
  assumed.hardware.fabric.link = hardware.fabric.link;
  return under_stack(hardware, other != nullptr ? *other : assumed, stacks);
}

void predict_row(ValidatedRow& row,
                 const Stack& stack,
                 const FittedStacks& stacks,
                 bool intervals) {
  const PublishedRun& run = row.run;
  const HardwareSpec bare = load_hardware(stack.hardware.name);
  const auto predicted = [&](HardwareSpec hardware) {
    return prediction_of(run, stack, std::move(hardware), intervals);
  };
  const Prediction prediction = predicted(under_stack(bare, stack, stacks));
  const Stack* known = fitted_without(stacks, code_base_of(run.source), nullptr, bare);
  row.left_out_stack = known == nullptr ? "" : known->name;
  row.left_out = with_interval(predicted(with_constants(bare, known, stacks)));
  const Stack* other = fitted_without(stacks, "", &stack, bare);
  row.other_stack = with_interval(predicted(with_constants(bare, other, stacks)));
  row.interval = with_interval(prediction);
  row.peak_flops = stack.hardware.gpu.half_tflops * 1e12;
  row.measured = run.step_seconds();
  row.predicted = seconds(prediction.step.duration);
  row.figures = prediction.figures;
  row.error = row.predicted / row.measured - 1;
  if (run.peak_gib) {
    const bool reserved = run.notes.find("reserved") != std::string::npos;
    row.predicted_peak = static_cast<double>(reserved ? prediction.memory.peak_reserved
                                                      : prediction.memory.peak_allocated) /
                         kBytesPerGiB;
    row.peak_error = *row.predicted_peak / *run.peak_gib - 1;
  }
}

void validate_row(ValidatedRow& row, const FittedStacks& stacks, bool intervals) {
  PublishedRun& run = row.run;
  const Stack* stack = find_stack(stacks, run.gpu_type, run.source, run.notes);
  if (!run.out_of_scope.empty()) {
    return;
  }
  if (stack == nullptr) {
    run.out_of_scope = fmt::format("GPU type '{}'", run.gpu_type);
    return;
  }
  if (least_flops_per_token(run) * run.tokens_per_s_gpu > stack->hardware.gpu.half_tflops * 1e12) {
    run.out_of_scope = "the measured throughput is above the GPU's peak";
    return;
  }
  row.stack = stack->name;
  row.used_to_fit = stacks.fitted.contains(run.identity);
  try {
    predict_row(row, *stack, stacks, intervals);
  } catch (const Error& error) {
    row.failed = error.what();
  }
}

bool is_predicted(const ValidatedRow& row) {
  return row.run.out_of_scope.empty() && row.failed.empty();
}

class ErrorSum {
 public:
  explicit ErrorSum(std::string_view name) { out_.name = name; }

  void add(double predicted, double measured) {
    ++out_.rows;
    out_.relative += std::abs(predicted / measured - 1);
    out_.logarithmic += std::abs(std::log(predicted / measured));
  }
  [[nodiscard]] MeanErrors mean() const {
    MeanErrors out = out_;
    const auto rows = static_cast<double>(std::max<int64_t>(1, out.rows));
    out.relative /= rows;
    out.logarithmic /= rows;
    return out;
  }

 private:
  MeanErrors out_;
};

// Errors on `tested`: of the simulator, and of each simple model, fitted to `known`.
std::vector<MeanErrors> errors_on(const std::vector<const ValidatedRow*>& tested,
                                  const std::vector<const ValidatedRow*>& known,
                                  double (*simulated)(const ValidatedRow& row)) {
  std::vector<RunPoint> points;
  for (const ValidatedRow* each : known) {
    points.push_back({&each->run, each->peak_flops});
  }
  ErrorSum simulator("simulator");
  for (const ValidatedRow* row : tested) {
    simulator.add(simulated(*row), row->measured);
  }
  std::vector<MeanErrors> out{simulator.mean()};
  for (size_t i = 0; i < kSimpleModelCount; ++i) {
    const auto model = static_cast<SimpleModel>(i);
    ErrorSum sum(name_of(model));
    for (const ValidatedRow* row : tested) {
      if (const auto predicted = simple_prediction(model, {&row->run, row->peak_flops}, points)) {
        sum.add(*predicted, row->measured);
      }
    }
    out.push_back(sum.mean());
  }
  return out;
}

void compare(Validation& out) {
  std::vector<const ValidatedRow*> tested, known;
  std::map<std::string, std::vector<const ValidatedRow*>> by_base;
  for (const ValidatedRow& row : out.rows) {
    if (is_predicted(row)) {
      (row.used_to_fit ? known : tested).push_back(&row);
      by_base[code_base_of(row.run.source)].push_back(&row);
    }
  }
  out.errors = errors_on(tested, known, [](const ValidatedRow& row) { return row.predicted; });
  for (const auto& [base, rows] : by_base) {
    std::vector<const ValidatedRow*> others;
    std::copy_if(
        known.begin(), known.end(), std::back_inserter(others),
        [&base = base](const ValidatedRow* row) { return code_base_of(row->run.source) != base; });
    LeftOut left{base, {}, errors_on(rows, others, [](const ValidatedRow& row) {
                   return row.left_out.step;
                 })};
    std::set<std::string> constants;
    for (const ValidatedRow* row : rows) {
      constants.insert(row->left_out_stack.empty() ? "assumed" : row->left_out_stack);
    }
    left.constants.assign(constants.begin(), constants.end());
    out.left_out.push_back(std::move(left));
  }
}

Coverage coverage_of(std::string name,
                     const std::vector<ValidatedRow>& rows,
                     bool fitted_too,
                     PredictedSeconds ValidatedRow::*of) {
  Coverage out;
  out.name = std::move(name);
  std::vector<double> errors, widths;
  for (const ValidatedRow& row : rows) {
    if (!is_predicted(row) || (row.used_to_fit && !fitted_too)) {
      continue;
    }
    const PredictedSeconds& predicted = row.*of;
    ++out.rows;
    out.inside += predicted.low <= row.measured && row.measured <= predicted.high ? 1 : 0;
    errors.push_back(std::abs(predicted.step / row.measured - 1));
    widths.push_back(std::sqrt(predicted.high / predicted.low) - 1);
  }
  if (out.rows > 0) {
    out.median_error = median(std::move(errors));
    out.median_half_width = median(std::move(widths));
  }
  return out;
}

void count_coverage(Validation& out) {
  out.coverage = {coverage_of("not used to fit", out.rows, false, &ValidatedRow::interval),
                  coverage_of("code base left out", out.rows, true, &ValidatedRow::left_out),
                  coverage_of("stack left out", out.rows, true, &ValidatedRow::other_stack)};
}

void summarize(Validation& out) {
  std::map<std::string, std::pair<std::vector<double>, std::vector<double>>> of_type;
  double sum = 0;
  int64_t close = 0;
  for (const ValidatedRow& row : out.rows) {
    out.used_to_fit += row.used_to_fit ? 1 : 0;
    if (!is_predicted(row) || row.used_to_fit) {
      continue;
    }
    ++out.counted;
    sum += std::abs(row.error);
    out.worst = std::max(out.worst, std::abs(row.error));
    close += std::abs(row.error) <= kClose ? 1 : 0;
    auto& [measured, predicted] = of_type[row.run.gpu_type];
    // Throughput, since the durations of steps would mainly reflect the sizes of the steps.
    measured.push_back(row.run.tokens_per_s_gpu);
    predicted.push_back(row.run.tokens_per_s_gpu / (1 + row.error));
  }
  if (out.counted > 0) {
    out.mape = sum / static_cast<double>(out.counted);
    out.within_15_percent = static_cast<double>(close) / static_cast<double>(out.counted);
  }
  for (const auto& [type, series] : of_type) {
    if (series.first.size() >= kLeastRanked) {
      out.spearman[type] = spearman(series.first, series.second);
    }
  }
}

std::vector<double> ranks_of(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin;
    while (end < order.size() && values[order[end]] == values[order[begin]]) {
      ++end;
    }
    for (size_t i = begin; i < end; ++i) {
      ranks[order[i]] = static_cast<double>(begin + end - 1) / 2;
    }
    begin = end;
  }
  return ranks;
}

}  // namespace

std::string code_base_of(std::string_view source) {
  constexpr std::string_view kAddress = "https://github.com/";
  if (source.starts_with(kAddress)) {
    source.remove_prefix(kAddress.size());
  }
  const size_t owner = source.find('/');
  const size_t end = owner == std::string_view::npos ? source.find_first_of(":@ ")
                                                     : source.find_first_of("/:@ ", owner + 1);
  return std::string(source.substr(0, end));
}

double spearman(const std::vector<double>& x, const std::vector<double>& y) {
  SHARDLENS_CHECK(x.size() == y.size(), "two series of the same length are expected");
  const std::vector<double> rx = ranks_of(x), ry = ranks_of(y);
  const double mean = (static_cast<double>(x.size()) - 1) / 2;
  double xy = 0, xx = 0, yy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xy += (rx[i] - mean) * (ry[i] - mean);
    xx += (rx[i] - mean) * (rx[i] - mean);
    yy += (ry[i] - mean) * (ry[i] - mean);
  }
  return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : 0;
}

Validation validate(std::vector<PublishedRun> runs, const FittedStacks& stacks, bool intervals) {
  Validation out;
  for (PublishedRun& run : runs) {
    out.rows.emplace_back().run = std::move(run);
  }
  std::atomic<size_t> next{0};
  std::vector<std::thread> workers;
  const auto work = [&] {
    for (size_t i = next++; i < out.rows.size(); i = next++) {
      validate_row(out.rows[i], stacks, intervals);
    }
  };
  for (unsigned i = 1; i < std::thread::hardware_concurrency(); ++i) {
    workers.emplace_back(work);
  }
  work();
  for (std::thread& worker : workers) {
    worker.join();
  }
  summarize(out);
  if (intervals) {
    count_coverage(out);
  }
  compare(out);
  return out;
}

}  // namespace shardlens::sim
