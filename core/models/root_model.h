#pragma once

#include <string>

#include "core/base/error.h"
#include "core/models/model.h"

namespace shardlens::models {

// Makes a model class the root that make_model returns: logits() runs forward with its hooks.
template <typename Impl>
class RootModel final : public module::Hookable<Impl> {
 public:
  using module::Hookable<Impl>::Hookable;
  at::Tensor logits(const at::Tensor& tokens) override { return this->forward(tokens); }
};

inline void require_positions(const at::Tensor& tokens, const plan::ModelConfig& config) {
  if (tokens.size(1) > config.max_positions) {
    throw InputError(config.source, "a sequence of " + std::to_string(tokens.size(1)) +
                                        " tokens exceeds the model's " +
                                        std::to_string(config.max_positions) + " positions");
  }
}

}  // namespace shardlens::models
