#include "core/model/families/transformer_parts.h"

namespace shardlens::plan {

std::string activation_type(const std::string& name) {
  if (name == "gelu_new") {
    return "NewGELUActivation";
  }
  if (name == "gelu") {
    return "GELUActivation";
  }
  if (name == "gelu_pytorch_tanh") {
    return "GELUTanh";
  }
  return name == "relu" ? "ReLU" : "SiLUActivation";
}

void rms_norm(WorkloadBuilder& build, const std::string& module, int64_t features, bool residual) {
  build.enter(module);
  build.norm("shardlens::rms_norm", "shardlens::rms_norm_backward",
             {.features = features, .statistics = 1, .weights = 1, .sums_input_grad = residual});
  build.leave();
}

void layer_norm(WorkloadBuilder& build,
                const std::string& module,
                int64_t features,
                bool residual) {
  build.enter(module);
  build.norm("aten::layer_norm", "aten::native_layer_norm_backward",
             {.features = features, .statistics = 2, .weights = 2, .sums_input_grad = residual});
  build.leave();
}

}  // namespace shardlens::plan
