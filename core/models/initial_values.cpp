#include "core/models/initial_values.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <string_view>

#include "core/model/families/decoder_family.h"

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

bool is_embedding(const plan::DecoderFamily& family, std::string_view name) {
  const plan::Slot* slot = plan::find_slot(family.model, plan::Part::kEmbedding);
  return slot != nullptr && name.ends_with("." + std::string(slot->name) + ".weight");
}

}  // namespace

void initial_values(const plan::ModelConfig& config,
                    const plan::Parameter& parameter,
                    uint32_t index,
                    uint64_t seed,
                    int64_t offset,
                    std::span<float> out) {
  const std::string_view name = parameter.fqn;
  const plan::DecoderFamily* family = plan::find_decoder_family(config);
  if (name.ends_with(".bias")) {
    std::fill(out.begin(), out.end(), 0.0F);
    return;
  }
  if (parameter.shape.size() == 1) {  // vectors are biases or norm weights
    // Where the norms add 1 to their weights, those start at 0.
    std::fill(out.begin(), out.end(), family != nullptr && family->offset_norms ? 0.0F : 1.0F);
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
  if (config.padding_index >= 0 && family != nullptr && is_embedding(*family, name)) {
    const int64_t begin = config.padding_index * parameter.shape[1] - offset;
    const auto count = static_cast<int64_t>(out.size());
    std::fill(out.begin() + std::clamp<int64_t>(begin, 0, count),
              out.begin() + std::clamp<int64_t>(begin + parameter.shape[1], 0, count), 0.0F);
  }
}

}  // namespace shardlens::models
