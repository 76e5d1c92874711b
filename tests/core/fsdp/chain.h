#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/relu.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>

#include "core/module/hookable.h"
#include "tests/core/fsdp/seeded.h"

namespace shardlens::test {

struct InjectedFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The identity, whose backward throws.
struct FailInBackward : torch::autograd::Function<FailInBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 const torch::autograd::variable_list& /*grads*/) {
    throw InjectedFailure("in backward");
  }
};

// Linear, ReLU, Linear, with a fault between them on demand.
struct LinkImpl : torch::nn::Module {
  explicit LinkImpl(int64_t width)
      : up(register_module("up", torch::nn::Linear(width, width + 2))),
        down(register_module("down", torch::nn::Linear(width + 2, width))) {}
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor hidden = at::relu(up(x));
    if (fail_forward) {
      throw InjectedFailure("in forward");
    }
    if (fail_backward) {
      hidden = FailInBackward::apply(hidden);
    }
    return down(hidden);
  }
  torch::nn::Linear up, down;
  bool fail_forward = false, fail_backward = false;
};
SHARDLENS_MODULE(Link);

// A module whose only part is a link.
struct CasingImpl : torch::nn::Module {
  explicit CasingImpl(Link inside) : link(register_module("link", std::move(inside))) {}
  at::Tensor forward(const at::Tensor& x) { return link(x); }
  Link link;
};
SHARDLENS_MODULE(Casing);

// Links run in the order of `calls`, between two linears of the root, if it has any.
struct ChainImpl : torch::nn::Module {
  struct Shape {
    int64_t width = 5, links = 3;
    bool root_owns = true;
    std::vector<int64_t> calls = {};  // empty: 0, 1, …
    bool encased = false;             // "layers.0.link" instead of "layers.0"
  };
  explicit ChainImpl(Shape chosen) : shape(std::move(chosen)) {
    const bool in_order = shape.calls.empty();
    if (shape.root_owns) {
      in = register_module("in", torch::nn::Linear(shape.width, shape.width));
    }
    for (int64_t i = 0; i < shape.links; ++i) {
      links.emplace_back(shape.width);
      if (shape.encased) {
        casings.emplace_back(links.back());
        layers->push_back(casings.back());
      } else {
        layers->push_back(links.back());
      }
      if (in_order) {
        shape.calls.push_back(i);
      }
    }
    register_module("layers", layers);
    if (shape.root_owns) {
      out = register_module("out", torch::nn::Linear(shape.width, shape.width));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor hidden = shape.root_owns ? in(x) : x;
    if (unused >= 0) {
      static_cast<void>(links[static_cast<size_t>(unused)](hidden));
    }
    for (const int64_t i : shape.calls) {
      try {
        const auto index = static_cast<size_t>(i);
        hidden = shape.encased ? casings[index](hidden) : links[index](hidden);
      } catch (const InjectedFailure&) {
        if (!skip_failed) {
          throw;
        }
      }
    }
    return shape.root_owns ? out(hidden) : hidden;
  }
  Shape shape;
  int64_t unused = -1;       // a link that also runs, and whose output is dropped; -1: none
  bool skip_failed = false;  // skip a link that throws
  torch::nn::Linear in{nullptr}, out{nullptr};
  torch::nn::ModuleList layers;
  std::vector<Link> links;
  std::vector<Casing> casings;
};
SHARDLENS_MODULE(Chain);

inline Chain make_chain(const ChainImpl::Shape& shape) {
  Chain model(shape);
  const at::NoGradGuard no_grad;
  uint64_t seed = 1;
  for (at::Tensor& p : model->parameters()) {
    p.copy_(seeded(p.sizes(), seed++).mul(0.5));
  }
  return model;
}

}  // namespace shardlens::test
