#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/model/families/decoder_family.h"
#include "core/model/families/model_family.h"

namespace shardlens::plan {

extern const ModelFamily kGpt2Family, kMlpFamily, kVitFamily;

std::span<const ModelFamily> model_families() {
  static const std::vector<ModelFamily> kFamilies = [] {
    std::vector<ModelFamily> out;
    for (const DecoderFamily& decoder : decoder_families()) {
      out.push_back({decoder.model_type, read_decoder, decoder_modules, decoder_forward});
    }
    out.insert(out.end(), {kGpt2Family, kMlpFamily, kVitFamily});
    return out;
  }();
  return kFamilies;
}

const ModelFamily& family_of(const ModelConfig& config) {
  for (const ModelFamily& family : model_families()) {
    if (family.model_type == config.family) {
      return family;
    }
  }
  throw RuntimeFault(fmt::format("internal error: no family '{}'", config.family));
}

std::string torchtitan_refusal(const ModelConfig& config) {
  if (config.file != nullptr) {
    return "a model.json has the operators that were recorded; expected a config.json";
  }
  const DecoderFamily* family = find_decoder_family(config);
  if (family == nullptr || family->torchtitan == Titan::kNone) {
    std::string known;
    for (const DecoderFamily& each : decoder_families()) {
      if (each.torchtitan != Titan::kNone) {
        known += (known.empty() ? "" : ", ") + std::string(each.model_type);
      }
    }
    return fmt::format("its model of '{}' is not described; known: {}", config.family, known);
  }
  if (config.head != ModelHead::kCausal) {
    return fmt::format("it has no {}", config.torch_type);
  }
  if (family->expert_bias && !config.attention_bias) {
    return fmt::format("the linear layers of its {} have biases", config.family);
  }
  if ((config.attention_bias && !family->expert_bias) || config.mlp_bias) {
    return "its linear layers have no biases";
  }
  if (!family->sinks &&
      std::ranges::any_of(config.windowed, [](bool windowed) { return windowed; })) {
    return "its attention has no windows";
  }
  return {};
}

}  // namespace shardlens::plan
