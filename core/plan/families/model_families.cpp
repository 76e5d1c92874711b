#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/plan/families/decoder_family.h"
#include "core/plan/families/model_family.h"

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

}  // namespace shardlens::plan
