#include "sim/validate/simple_models.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <vector>

#include "core/base/median.h"
#include "core/model/decoder.h"

namespace shardlens::sim {
namespace {

constexpr size_t kFeatures = 6;  // a constant, and five sizes
using Features = std::array<double, kFeatures>;

Features features_of(const PublishedRun& run) {
  const auto seq = static_cast<double>(run.seq);
  return {1,
          std::log(static_cast<double>(plan::parameter_count(run.shape))),
          std::log(seq),
          std::log(seq * static_cast<double>(run.microbatch)),
          std::log(static_cast<double>(run.gpus)),
          run.checkpointing == Checkpointing::kFull ? 1.0 : 0.0};
}

double step_flops(const PublishedRun& run) {
  return least_flops_per_token(run) *
         static_cast<double>(run.seq * run.microbatch * run.accumulate);
}

// The share of the peak that was measured.
double share_of(const RunPoint& point) {
  return step_flops(*point.run) / point.run->step_seconds() / point.peak_flops;
}

double median_share(std::span<const RunPoint> known) {
  std::vector<double> shares;
  for (const RunPoint& each : known) {
    shares.push_back(share_of(each));
  }
  return median(shares);
}

// Distance over factors of two; checkpointing counts as two of them.
double distance(const PublishedRun& a, const PublishedRun& b) {
  const Features x = features_of(a), y = features_of(b);
  double sum = 0;
  for (size_t i = 1; i < kFeatures; ++i) {
    const double each = (x[i] - y[i]) * (i + 1 == kFeatures ? 2 : 1 / std::log(2.0));
    sum += each * each;
  }
  return sum;
}

double nearest_share(const RunPoint& run, std::span<const RunPoint> known) {
  return share_of(
      *std::min_element(known.begin(), known.end(), [&run](const RunPoint& a, const RunPoint& b) {
        return distance(*a.run, *run.run) < distance(*b.run, *run.run);
      }));
}

// Solves the normal equations by elimination. A feature that does not vary gets no weight, for
// which the diagonal has a little added.
double log_linear_share(const RunPoint& run, std::span<const RunPoint> known) {
  constexpr double kRidge = 1e-6;
  std::array<std::array<double, kFeatures + 1>, kFeatures> rows{};
  Features means{};
  for (const RunPoint& each : known) {
    const Features x = features_of(*each.run);
    for (size_t i = 1; i < kFeatures; ++i) {
      means[i] += x[i] / static_cast<double>(known.size());
    }
  }
  const auto centered = [&means](const PublishedRun& of) {
    Features x = features_of(of);
    for (size_t i = 1; i < kFeatures; ++i) {
      x[i] -= means[i];
    }
    return x;
  };
  for (const RunPoint& each : known) {
    const Features x = centered(*each.run);
    for (size_t i = 0; i < kFeatures; ++i) {
      for (size_t k = 0; k < kFeatures; ++k) {
        rows[i][k] += x[i] * x[k];
      }
      rows[i][kFeatures] += x[i] * std::log(share_of(each));
    }
  }
  for (size_t i = 0; i < kFeatures; ++i) {
    rows[i][i] += kRidge;
  }
  for (size_t i = 0; i < kFeatures; ++i) {
    for (size_t k = 0; k < kFeatures; ++k) {
      const double factor = k == i ? 0 : rows[k][i] / rows[i][i];
      for (size_t c = i; c <= kFeatures && factor != 0; ++c) {
        rows[k][c] -= factor * rows[i][c];
      }
    }
  }
  double log_share = 0;
  const Features x = centered(*run.run);
  for (size_t i = 0; i < kFeatures; ++i) {
    log_share += x[i] * rows[i][kFeatures] / rows[i][i];
  }
  return std::exp(log_share);
}

}  // namespace

std::string_view name_of(SimpleModel model) {
  switch (model) {
    case SimpleModel::kConstantRate:
      return "constant FLOP rate";
    case SimpleModel::kNearestRow:
      return "nearest row";
    case SimpleModel::kLogLinear:
      return "log-linear";
  }
  return "";
}

double least_flops_per_token(const PublishedRun& run) {
  const auto parameters = static_cast<double>(plan::parameter_count(run.shape));
  const double once = 2 * parameters + 2.0 * static_cast<double>(run.shape.layers) *
                                           static_cast<double>(run.shape.hidden * run.seq);
  return once * (run.checkpointing == Checkpointing::kFull ? 4 : 3);
}

std::optional<double> simple_prediction(SimpleModel model,
                                        const RunPoint& run,
                                        std::span<const RunPoint> known) {
  std::vector<RunPoint> alike;
  std::copy_if(known.begin(), known.end(), std::back_inserter(alike),
               [&run](const RunPoint& each) { return each.run->gpu_type == run.run->gpu_type; });
  if (!alike.empty()) {
    known = alike;
  }
  if (known.empty() || (model == SimpleModel::kLogLinear && known.size() <= kFeatures)) {
    return std::nullopt;
  }
  const double share = model == SimpleModel::kConstantRate ? median_share(known)
                       : model == SimpleModel::kNearestRow ? nearest_share(run, known)
                                                           : log_linear_share(run, known);
  return step_flops(*run.run) / (share * run.peak_flops);
}

}  // namespace shardlens::sim
