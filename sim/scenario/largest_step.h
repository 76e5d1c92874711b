#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "sim/scenario/scenario.h"

namespace shardlens::sim {

enum class StepSize : uint8_t { kBatch, kSequence };
[[nodiscard]] std::string_view name_of(StepSize size);  // "batch", "sequence"
[[nodiscard]] Scenario with_size(const Scenario& scenario, StepSize size, int64_t value);

// The largest value of one size of a step with which the step fits.
struct LargestStep {
  int64_t unit = 1;   // values are multiples of it: samples, or tokens of a sample
  int64_t value = 0;  // 0: not even one unit fits
  int64_t bound = 0;  // the largest value that was allowed; value = bound: nothing larger was tried
  std::optional<Prediction> at;      // the step of `value`, with Detail::alive
  std::optional<Prediction> beyond;  // that of `value` + `unit`, which does not fit
  std::string refusal;               // why the size cannot be changed; "": it can
};

// Doubles the size until the step does not fit, then halves the interval, since a larger step keeps
// more. Only the memory decides: what the machine's allocator can reserve and, if `limit` is not 0,
// that many bytes of it. The other settings are the scenario's.
//
// `on_progress`: called before each of some 20 to 40 predictions, with its value.
// Threads  see Scenario.
// Errors   UsageError if neither the machine's memory nor a limit is known; InputError as
// evaluate() for the smallest
//          step. Where only another size than the scenario's is refused (a recorded run), `refusal`
//          has the reason.
[[nodiscard]] LargestStep largest_step(const Scenario& scenario,
                                       StepSize size,
                                       Bytes limit = 0,
                                       const std::function<void(int64_t)>& on_progress = {});

}  // namespace shardlens::sim
