#include "tests/core/fsdp/device_cases.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <vector>

#include <fmt/format.h>

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/relu.h>
#include <torch/nn/modules/linear.h>

#include "core/dist/world.h"
#include "core/fsdp/apply/fully_shard.h"
#include "core/module/activation_checkpoint.h"
#include "core/plan/plan.h"
#include "tests/core/fsdp/chain.h"

namespace shardlens::test {
namespace {

using fsdp::ParameterSlice;

constexpr std::array kChoices = {R"("layout": "flat")", R"("layout": "per_parameter")",
                                 R"("dialect": "fsdp1")", R"("reshard_after_forward": false)"};

// A chain on rank 1 of an emulated world of 2.
struct ShardedChain {
  ShardedChain(const Place& where,
               const std::string& choice,
               at::ScalarType dtype,
               dist::WorldOptions options = {})
      : place(where) {
    options.backend = dist::BackendKind::kEmulated;
    options.world_size = 2;
    options.rank = 1;
    options.device = place.device;
    world = dist::World::join(options);
    model->to(dtype);
    place.bring(*model);
    const std::string plan =
        R"({"version": 1, "units": [{"modules": ""}, {"modules": "layers.*"}], )" + choice + "}";
    sharded = fsdp::fully_shard(model.ptr(), plan::parse_plan(plan, "test"),
                                {.world = world.get(), .check_ledger = true});
  }
  at::Tensor loss() {
    const at::Tensor x = seeded({3, 5}, 7).to(model->in->bias.scalar_type());
    return model(x.to(place.device)).pow(2).mean();
  }
  [[nodiscard]] Tensors gradients() const {
    Tensors found;
    for (const ParameterSlice& slice : sharded->slices()) {
      found.push_back(on_host(model->parameters()[slice.parameter].grad()));
    }
    return found;
  }

  Place place;
  std::unique_ptr<dist::World> world;
  Chain model = make_chain({});
  std::shared_ptr<fsdp::ShardedModel> sharded;
};

enum class Way : uint8_t { kSlices, kWhole, kInPlace };

at::Tensor new_values(const at::Tensor& old) {
  return old.detach().mul(0.5).add_(0.125);
}

// The gradients of a step after new values were given to the parameters, between steps and while
// units may be kept unsharded.
Tensors after_assignment(const Place& place, const std::string& choice, Way way) {
  ShardedChain chain(place, choice, at::kFloat);
  chain.loss().backward();
  chain.sharded->zero_grad();
  {
    const at::NoGradGuard no_grad;
    chain.loss();
  }
  Chain source = make_chain({});
  const at::NoGradGuard no_grad;
  Tensors given;  // by slice
  for (const ParameterSlice& slice : chain.sharded->slices()) {
    const at::Tensor whole = new_values(source->parameters()[slice.parameter]);
    given.push_back(whole.reshape({-1}).narrow(0, slice.offset, slice.values.numel()).clone());
    at::Tensor target = chain.model->parameters()[slice.parameter];
    if (way == Way::kSlices) {
      target.set_data(given.back().to(place.device));
    } else if (way == Way::kWhole) {
      target.set_data(whole.to(place.device));
    } else {
      target.copy_(target.dim() == whole.dim() && target.numel() == whole.numel() ? whole
                                                                                  : given.back());
    }
  }
  {
    const at::AutoGradMode grad(true);
    chain.loss().backward();
  }
  const auto slices = chain.sharded->slices();
  for (size_t i = 0; i < slices.size(); ++i) {
    if (!on_host(slices[i].values).equal(on_host(given[i]))) {
      throw Mismatch(fmt::format("slice {} of parameter {} has other values than it was given", i,
                                 chain.sharded->plan().tree.parameters[slices[i].parameter].fqn));
    }
  }
  return chain.gradients();
}

void assigned_values(const Place& place, double share) {
  for (const std::string choice : kChoices) {
    for (const Way way : {Way::kSlices, Way::kWhole, Way::kInPlace}) {
      compare(after_assignment(place, choice, way), after_assignment({}, choice, way), share,
              fmt::format("gradients with {}, way {},", choice, static_cast<int>(way)));
    }
  }
}

void own_dtypes(const Place& place, double share) {
  struct Precision {
    at::ScalarType dtype;
    double share;
  };
  for (const std::string choice : kChoices) {
    for (const Precision each :
         {Precision{at::kDouble, 1e-10}, {at::kHalf, 2e-2}, {at::kBFloat16, 1e-1}}) {
      const auto gradients = [&](const Place& where) {
        ShardedChain chain(where, choice, each.dtype);
        chain.loss().backward();
        return chain.gradients();
      };
      compare(gradients(place), gradients({}), std::max(share == 0 ? 0 : each.share, share),
              fmt::format("gradients in {} with {}", toString(each.dtype), choice));
    }
  }
}

struct DropoutImpl : torch::nn::Module {
  DropoutImpl() : linear(register_module("linear", torch::nn::Linear(5, 5))) {
    const at::NoGradGuard no_grad;
    linear->weight.copy_(seeded({5, 5}, 1));
    linear->bias.zero_();
  }
  at::Tensor forward(const at::Tensor& x) {
    return at::dropout(at::relu(linear(x)), 0.5, /*train=*/true);
  }
  torch::nn::Linear linear;
};
SHARDLENS_MODULE(Dropout);

// The recomputation draws the random numbers of the first forward, and later forwards those that
// they would have drawn without it.
void random_numbers_of_checkpoints(const Place& place, double /*share*/) {
  at::Generator generator = at::globalContext().defaultGenerator(place.device);
  const at::Tensor state = generator.get_state();
  const auto gradient = [&](bool checkpointed) {
    generator.set_state(state);
    Dropout first, second;
    for (Dropout* each : {&first, &second}) {
      place.bring(**each);
      if (checkpointed) {
        module::checkpoint(each->ptr());
      }
    }
    const at::Tensor x = seeded({16, 5}, 3).to(place.device);
    for (int step = 0; step < 2; ++step) {
      second(first(x)).pow(2).sum().backward();
    }
    return on_host(first->linear->weight.grad());
  };
  const at::Tensor expected = gradient(false);
  compare({gradient(true)}, {expected}, 1e-6, "gradients with checkpoints");
  generator.set_state(state);
  if (expected.abs().sum().item<double>() == 0) {
    throw Mismatch("the gradient is zero");
  }
}

struct ChangingTimer : CollectiveTimer {
  [[nodiscard]] Nanoseconds duration(CollectiveKind, int, Bytes) const override { return each; }
  Nanoseconds each = 0;
};

// Collectives that take longer than the timeout end the wait for them, with a message. (The
// collectives of the tests' device take no time.)
void timeouts(const Place& place, double /*share*/) {
  if (place.device.is_privateuseone()) {
    return;
  }
  dist::WorldOptions options;
  options.timeout = std::chrono::milliseconds(200);
  const auto timer = std::make_shared<ChangingTimer>();
  options.timer = timer;
  ShardedChain chain(place, kChoices[0], at::kFloat, options);
  const auto step = [&] {
    chain.loss().backward();
    chain.sharded->clip_grad_norm(1);
  };
  step();  // CUDA loads a kernel at its first use, for which the host may wait for the device
  timer->each = 2'000'000'000;
  const std::string message = failure_of(step);
  if (message.find("did not finish within") == std::string::npos) {
    throw Mismatch("expected a timeout, seen '" + message + "'");
  }
}

constexpr std::array kCases = {
    DeviceCase{"assigned_values", assigned_values}, DeviceCase{"own_dtypes", own_dtypes},
    DeviceCase{"random_numbers_of_checkpoints", random_numbers_of_checkpoints},
    DeviceCase{"timeouts", timeouts}};

}  // namespace

std::span<const DeviceCase> device_cases() {
  return kCases;
}

}  // namespace shardlens::test
