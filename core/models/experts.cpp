#include "core/models/experts.h"

#include <string>

#include <ATen/TensorOperators.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>

#include "core/base/error.h"
#include "core/model/families/decoder_family.h"
#include "core/models/expert_ops.h"
#include "core/models/ops.h"

namespace shardlens::models {

RouterImpl::RouterImpl(const plan::ModelConfig& config, bool fp32, Init init)
    : weight(register_parameter("weight",
                                make_parameter({config.experts.count, config.hidden_size}, init))),
      per_row_(config.experts.per_token),
      normalized_(config.experts.normalized),
      fp32_(fp32) {}

std::tuple<at::Tensor, at::Tensor> RouterImpl::forward(const at::Tensor& x) {
  const at::Tensor logits = project(x, weight, {}, /*transposed=*/true);
  auto [weights, chosen] = at::topk(at::softmax(logits, -1, at::kFloat), per_row_);
  if (normalized_) {
    weights = weights / weights.sum(-1, /*keepdim=*/true);
  }
  return {fp32_ ? weights : weights.to(logits.scalar_type()), chosen};
}

ExpertsImpl::ExpertsImpl(const plan::ModelConfig& config, Init init) {
  const int64_t count = config.experts.count;
  const int64_t inner = config.experts.intermediate_size;
  const int64_t hidden = config.hidden_size;
  gate_up_proj =
      register_parameter("gate_up_proj", make_parameter({count, 2 * inner, hidden}, init));
  down_proj = register_parameter("down_proj", make_parameter({count, hidden, inner}, init));
  act_fn_ = register_module("act_fn", Activation(config.activation));
}

at::Tensor ExpertsImpl::forward(const at::Tensor& x,
                                const at::Tensor& weights,
                                const at::Tensor& chosen) {
  const Routing routing = route(chosen, gate_up_proj.size(0));
  const at::Tensor both = grouped_mm(gather_rows(x, routing), gate_up_proj, routing);
  at::Tensor inner;
  if (act_fn_->is_silu()) {
    inner = silu_gate(both);
  } else {
    const auto halves = both.chunk(2, -1);
    inner = act_fn_(halves[0]) * halves[1];
  }
  return weighted_sum(grouped_mm(inner, down_proj, routing), weights, routing);
}

SparseMlpImpl::SparseMlpImpl(const plan::ModelConfig& config, Init init) {
  const plan::DecoderFamily& family = plan::decoder_family_of(config);
  for (const plan::Slot& slot : family.sparse) {
    const std::string name(slot.name);
    switch (slot.part) {
      case plan::Part::kRouter:
        router_ = register_module(name, Router(config, family.fp32_routing, init));
        break;
      case plan::Part::kExperts:
        experts_ = register_module(name, Experts(config, init));
        break;
      default:
        SHARDLENS_CHECK(false, "a family that trains has a part of experts that is not built");
    }
  }
}

at::Tensor SparseMlpImpl::forward(const at::Tensor& x) {
  const at::Tensor rows = x.flatten(0, 1);
  const auto [weights, chosen] = router_(rows);
  return experts_(rows, weights, chosen).view(x.sizes());
}

}  // namespace shardlens::models
