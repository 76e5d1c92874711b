#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/relu.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>

#include "core/module/hookable.h"
#include "core/plan/plan.h"
#include "tests/core/fsdp/seeded.h"

namespace shardlens::test {

// A residual MLP of unmodified torch::nn::Linear; sizes are odd so that shards are uneven and
// padded.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width)
      : up(register_module("up", torch::nn::Linear(width, width + 3))),
        down(register_module("down", torch::nn::Linear(width + 3, width))) {}
  at::Tensor forward(const at::Tensor& x) { return x + down(at::relu(up(x))); }
  torch::nn::Linear up, down;
};
SHARDLENS_MODULE(Block);

struct MlpImpl : torch::nn::Module {
  MlpImpl(int64_t width, int64_t blocks)
      : in(register_module("in", torch::nn::Linear(width, width))) {
    for (int64_t i = 0; i < blocks; ++i) {
      Block block(width);
      layers->push_back(block);
      order.push_back(block);
    }
    register_module("layers", layers);
    out = register_module("out", torch::nn::Linear(width, 2));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor hidden = in(x);
    for (Block& block : order) {
      hidden = block(hidden);
    }
    return out(hidden);
  }
  torch::nn::Linear in, out{nullptr};
  torch::nn::ModuleList layers;
  std::vector<Block> order;  // as forward calls them
};
SHARDLENS_MODULE(Mlp);

// The same values on every rank.
inline Mlp make_mlp(int64_t width, int64_t blocks) {
  Mlp model(width, blocks);
  const at::NoGradGuard no_grad;
  uint64_t seed = 1;
  for (at::Tensor& p : model->parameters()) {
    p.copy_(seeded(p.sizes(), seed++).mul(0.3));
  }
  return model;
}

// `reshard`: null (root kept), true, false as in a plan file.
inline plan::Plan mlp_plan(const std::string& reshard = "null", const std::string& more = "") {
  return plan::parse_plan(
      R"({"version": 1, "units": [{"modules": ""}, {"modules": "layers.*"}], "reshard_after_forward": )" +
          reshard + more + "}",
      "test");
}

}  // namespace shardlens::test
