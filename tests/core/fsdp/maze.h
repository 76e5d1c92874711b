#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>

#include "core/module/hookable.h"
#include "tests/core/fsdp/chain.h"
#include "tests/core/fsdp/seeded.h"

namespace shardlens::test {

enum class StationKind : uint8_t {
  kLinears,  // two Linears
  kGain,     // parameters that autograd saves directly
  kNested,   // another station inside
  kEmpty,    // a parameter without elements
};

// A frozen parameter may have another dtype than `x`, in which all is computed.
inline at::Tensor in_dtype_of(const at::Tensor& x, const at::Tensor& parameter) {
  return parameter.to(x.scalar_type());
}
inline at::Tensor through(torch::nn::Linear& linear, const at::Tensor& x) {
  return at::linear(x, in_dtype_of(x, linear->weight), in_dtype_of(x, linear->bias));
}

struct StationImpl : torch::nn::Module {
  StationImpl(int64_t width, StationKind chosen) : kind(chosen) {
    if (kind == StationKind::kLinears) {
      up = register_module("up", torch::nn::Linear(width, width + 2));
      down = register_module("down", torch::nn::Linear(width + 2, width));
      return;
    }
    gain = register_parameter("gain", at::ones({width}));
    if (kind == StationKind::kEmpty) {
      empty = register_parameter("empty", at::zeros({0, width}));
    }
    shift = register_parameter("shift", at::zeros({width}));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor hidden = x;
    switch (kind) {
      case StationKind::kLinears:
        hidden = at::tanh(through(up, hidden));
        break;
      case StationKind::kNested:
        hidden = hidden + inner(hidden) * in_dtype_of(hidden, gain);
        break;
      case StationKind::kEmpty:
        hidden = hidden + in_dtype_of(hidden, empty).sum();
        [[fallthrough]];
      case StationKind::kGain:
        hidden = at::tanh(hidden * in_dtype_of(hidden, gain));
        break;
    }
    if (fail_forward) {
      throw InjectedFailure("in forward");
    }
    if (fail_backward) {
      hidden = FailInBackward::apply(hidden);
    }
    return kind == StationKind::kLinears ? through(down, hidden)
                                         : hidden + in_dtype_of(hidden, shift);
  }
  void set_inner(const std::shared_ptr<torch::nn::Module>& module,
                 std::function<at::Tensor(const at::Tensor&)> call) {
    register_module("inner", module);
    inner = std::move(call);
  }

  StationKind kind;
  torch::nn::Linear up{nullptr}, down{nullptr};
  at::Tensor gain, empty, shift;
  std::function<at::Tensor(const at::Tensor&)> inner;
  bool fail_forward = false, fail_backward = false;
};
SHARDLENS_MODULE(Station);

struct MazeShape {
  int64_t width = 4;
  std::vector<StationKind> stations;
  bool shared = false;  // the last name is another one of the first station
};

// Stations between two Linears of the root, called in any order, repeatedly or not at all.
struct MazeImpl : torch::nn::Module {
  explicit MazeImpl(const MazeShape& shape)
      : in(register_module("in", torch::nn::Linear(shape.width, shape.width))),
        scale(register_parameter("scale", at::ones({shape.width}))),
        width(shape.width) {
    for (const StationKind kind : shape.stations) {
      Station station(shape.width, kind);
      if (kind == StationKind::kNested) {
        Station inner(shape.width, StationKind::kLinears);
        station->set_inner(inner.ptr(), [inner](const at::Tensor& x) mutable { return inner(x); });
      }
      list->push_back(station);
      stations.push_back(station);
    }
    if (shape.shared) {
      list->push_back(stations.front());
      stations.push_back(stations.front());
    }
    register_module("stations", list);
    out = register_module("out", torch::nn::Linear(shape.width, 2));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor hidden = at::tanh(through(in, x)) * in_dtype_of(x, scale);
    for (const size_t call : calls) {
      try {
        hidden = stations[call](hidden);
      } catch (const InjectedFailure&) {
        if (!catches) {
          throw;
        }
      }
    }
    return through(out, hidden);
  }
  torch::nn::Linear in, out{nullptr};
  at::Tensor scale;
  int64_t width;
  torch::nn::ModuleList list;
  std::vector<Station> stations;
  std::vector<size_t> calls;
  bool catches = false;
};
SHARDLENS_MODULE(Maze);

// Parameters that have another dtype than the model, by index.
struct OtherDtype {
  uint64_t parameters = 0;
  at::ScalarType dtype = at::kFloat;
};

inline Maze make_maze(const MazeShape& shape,
                      uint64_t frozen,
                      at::ScalarType dtype,
                      const OtherDtype& other) {
  Maze model(shape);
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& p : model->parameters()) {
    if (std::ranges::none_of(parameters, [&](const at::Tensor& each) { return each.is_same(p); })) {
      parameters.push_back(p);
    }
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].copy_(seeded(parameters[i].sizes(), i + 1).mul(0.4));
    parameters[i].set_requires_grad((frozen >> i & 1) == 0);
  }
  model->to(dtype);
  for (size_t i = 0; i < parameters.size(); ++i) {
    if ((other.parameters >> i & 1) != 0) {
      parameters[i].set_data(parameters[i].to(other.dtype));
    }
  }
  return model;
}

}  // namespace shardlens::test
