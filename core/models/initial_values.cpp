#include "core/models/initial_values.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string_view>

namespace shardlens::models {
namespace {

uint64_t mix(uint64_t x) {  // splitmix64's finaliser
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31U);
}

double uniform(uint64_t key, uint64_t counter) {  // (0, 1]
  return (static_cast<double>(mix(key ^ mix(counter)) >> 11U) + 1.0) * 0x1.0p-53;
}

}  // namespace

void initial_values(const plan::ModelConfig& config,
                    const plan::Parameter& parameter,
                    uint32_t index,
                    uint64_t seed,
                    int64_t offset,
                    std::span<float> out) {
  const std::string_view name = parameter.fqn;
  if (name.ends_with(".bias")) {
    std::fill(out.begin(), out.end(), 0.0F);
    return;
  }
  if (parameter.shape.size() == 1) {  // vectors are biases or norm weights
    std::fill(out.begin(), out.end(), 1.0F);
    return;
  }
  double deviation = config.initializer_range;
  if (config.family == "gpt2" && name.ends_with(".c_proj.weight")) {
    deviation /= std::sqrt(2.0 * static_cast<double>(config.layers));
  }
  const uint64_t key = mix(mix(seed) + index);
  for (size_t i = 0; i < out.size(); ++i) {
    const auto element = static_cast<uint64_t>(offset) + i;
    const uint64_t pair = element / 2;
    const double radius = std::sqrt(-2.0 * std::log(uniform(key, 2 * pair)));
    const double angle = 2.0 * std::numbers::pi * uniform(key, 2 * pair + 1);
    out[i] = static_cast<float>(deviation * radius *
                                (element % 2 == 0 ? std::cos(angle) : std::sin(angle)));
  }
}

}  // namespace shardlens::models
