#include <array>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/plan/families/model_family.h"

namespace shardlens::plan {

extern const ModelFamily kLlamaFamily, kGpt2Family, kMlpFamily;

std::span<const ModelFamily* const> model_families() {
  static constexpr std::array kFamilies{&kLlamaFamily, &kGpt2Family, &kMlpFamily};
  return kFamilies;
}

const ModelFamily& family_of(const ModelConfig& config) {
  for (const ModelFamily* family : model_families()) {
    if (family->model_type == config.family) {
      return *family;
    }
  }
  throw RuntimeFault(fmt::format("internal error: no family '{}'", config.family));
}

}  // namespace shardlens::plan
