#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "sim/validate/published_runs.h"

namespace shardlens::sim {

// A published run as simple models see it.
struct RunPoint {
  const PublishedRun* run = nullptr;
  double peak_flops = 0;  // of its GPU, per second
};

// Models of a step's time without a simulation, fitted to runs of the same GPU type; if there are
// none, to all of `known`. What they predict is the share of the GPU's peak that a run's FLOPs
// reach; the FLOPs are those of its matrix products.
enum class SimpleModel : uint8_t {
  kConstantRate,  // the median of the known runs
  kNearestRow,    // that of the most similar run: model, sequence, batch, GPUs, checkpointing
  kLogLinear,     // least squares of its logarithm over the logarithms of the same sizes
};
inline constexpr size_t kSimpleModelCount = 3;

[[nodiscard]] std::string_view name_of(SimpleModel model);

// Seconds per step; nullopt: too few known runs.
[[nodiscard]] std::optional<double> simple_prediction(SimpleModel model,
                                                      const RunPoint& run,
                                                      std::span<const RunPoint> known);

// The least FLOPs per token of a step: matrix products and half of the attention matrix, in forward
// and (twice) in backward, and once more with full checkpointing.
[[nodiscard]] double least_flops_per_token(const PublishedRun& run);

}  // namespace shardlens::sim
