#include "sim/scenario/largest_step.h"

#include <algorithm>

#include "core/base/error.h"

namespace shardlens::sim {
namespace {

constexpr int64_t kMostSamples = int64_t{1} << 20;
constexpr int64_t kMostTokens = int64_t{1} << 24;
constexpr int64_t kTokens = 64;  // sequences are tried in multiples

int64_t bound_of(const Scenario& scenario, StepSize size) {
  if (size == StepSize::kBatch) {
    return kMostSamples;
  }
  const plan::ModelConfig* config = scenario.model->config();
  const int64_t positions = config != nullptr ? config->max_positions : 0;
  return positions > 0 ? std::min(positions, kMostTokens) : kMostTokens;
}

}  // namespace

Scenario with_size(const Scenario& scenario, StepSize size, int64_t value) {
  Scenario out = scenario;
  if (size == StepSize::kBatch) {
    out.step.batch = value;
  } else {
    out.step.seq = value;
  }
  return out;
}

std::string_view name_of(StepSize size) {
  return size == StepSize::kBatch ? "batch" : "sequence";
}

LargestStep largest_step(const Scenario& scenario,
                         StepSize size,
                         Bytes limit,
                         const std::function<void(int64_t)>& on_progress) {
  if (scenario.machine->target().memory <= 0 && limit <= 0) {
    throw UsageError(
        "--fits: the machine's memory is unknown; give --memory-limit, or a node of GPUs with "
        "--hardware");
  }
  LargestStep out;
  if (size == StepSize::kSequence && !scenario.step.seq) {
    out.refusal = "the model takes no tokens";
    return out;
  }
  out.bound = bound_of(scenario, size);
  out.unit = size == StepSize::kBatch ? 1 : std::min(kTokens, out.bound);
  out.bound -= out.bound % out.unit;
  const auto fits = [&](int64_t value) {
    if (on_progress) {
      on_progress(value);
    }
    const StepMemory memory = evaluate(with_size(scenario, size, value)).memory;
    return memory.fits && (limit == 0 || memory.peak_reserved <= limit);
  };
  int64_t low = 0, high = out.unit;  // low fits, or is 0; high does not, or was not tried yet
  try {
    while (high <= out.bound && fits(high)) {
      low = high;
      high = low == out.bound ? out.bound + out.unit : std::min(2 * high, out.bound);
    }
  } catch (const InputError& error) {
    // A recorded run may not say what other sizes need.
    (void)evaluate(scenario);
    out.refusal = error.what();
    return out;
  }
  while (high - low > out.unit) {
    const int64_t middle = low + (high - low) / out.unit / 2 * out.unit;
    (fits(middle) ? low : high) = middle;
  }
  out.value = low;
  if (low > 0) {
    out.at = evaluate(with_size(scenario, size, low), {.alive = true});
  }
  if (high <= out.bound) {
    out.beyond = evaluate(with_size(scenario, size, high), {.alive = true});
  }
  return out;
}

}  // namespace shardlens::sim
