#include "core/train/optimizer.h"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

namespace shardlens::train {
namespace {

constexpr double kBeta1 = 0.9;
constexpr double kBeta2 = 0.999;
constexpr double kEpsilon = 1e-8;

std::vector<ShardState> states_of(std::span<const at::Tensor> shards) {
  std::vector<ShardState> states;
  for (const at::Tensor& shard : shards) {
    states.push_back({shard, {}, {}, {}});
  }
  return states;
}

// The devices of the shards; the host, if shards are offloaded, last: the others then work while
// the host does.
std::vector<c10::Device> devices_of(std::span<const at::Tensor> shards) {
  std::vector<c10::Device> devices;
  for (const at::Tensor& shard : shards) {
    if (std::ranges::find(devices, shard.device()) == devices.end()) {
      devices.push_back(shard.device());
    }
  }
  std::ranges::stable_sort(devices, {}, [](const c10::Device& device) { return device.is_cpu(); });
  return devices;
}

// Shards on one device that have gradients; `states` are those of the optimizer.
struct Due {
  std::vector<ShardState*> states;
  std::vector<at::Tensor> values, grads;

  void add(ShardState& state, const at::Tensor& value, const at::Tensor& grad) {
    states.push_back(&state);
    values.push_back(value);
    grads.push_back(grad);
  }
};

Due due_on(const c10::Device& device, std::span<ShardState> states) {
  Due due;
  for (ShardState& state : states) {
    if (state.shard.device() == device && state.shard.grad().defined()) {
      due.add(state, state.shard.detach(), state.shard.grad());
    }
  }
  return due;
}

Due due_of(std::span<const fsdp::ShardUpdate> updates, std::span<ShardState> states) {
  Due due;
  for (const fsdp::ShardUpdate& update : updates) {
    due.add(states[update.shard], update.values, update.grad);
  }
  return due;
}

// `like`: of the shard's shape; the shard itself may be in use.
void create(at::Tensor& moment, const at::Tensor& like) {
  if (!moment.defined()) {
    moment = at::zeros_like(like);
  }
}

std::optional<at::Tensor> given(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

// Updates the shards of one device after the other, each with one call of update().
class FusedOptimizer : public Optimizer {
 public:
  FusedOptimizer(std::span<const at::Tensor> shards, const OptimizerOptions& options)
      : options_(options), states_(states_of(shards)), devices_(devices_of(shards)) {}

  void step(const at::Tensor& found_inf) override {
    for (const c10::Device& device : devices_) {
      update(due_on(device, states_), found_inf.defined() ? found_inf.to(device) : found_inf);
    }
  }
  void step_in_backward(std::span<const fsdp::ShardUpdate> updates) override {
    update(due_of(updates, states_), {});
  }

  [[nodiscard]] std::span<const ShardState> states() const override { return states_; }

 protected:
  virtual void update(const Due& due, const at::Tensor& found_inf) = 0;

  OptimizerOptions options_;
  std::vector<ShardState> states_;
  std::vector<c10::Device> devices_;
};

class AdamW final : public FusedOptimizer {
 public:
  using FusedOptimizer::FusedOptimizer;

  [[nodiscard]] std::span<const std::string_view> moments() const override {
    static constexpr std::array<std::string_view, 2> kNames{"exp_avg", "exp_avg_sq"};
    return kNames;
  }
  void create_state(size_t shard, double steps) override {
    create(states_.at(shard), states_.at(shard).shard, steps);
  }

 private:
  void update(const Due& due, const at::Tensor& found_inf) override {
    const c10::NoGradGuard no_grad;
    std::vector<at::Tensor> firsts, seconds, steps;
    for (size_t i = 0; i < due.states.size(); ++i) {
      ShardState& state = *due.states[i];
      if (!state.first.defined()) {
        create(state, due.values[i], 0);
      }
      firsts.push_back(state.first);
      seconds.push_back(state.second);
      steps.push_back(state.step);
    }
    if (steps.empty()) {
      return;
    }
    at::_foreach_add_(steps, 1);
    at::_fused_adamw_(due.values, due.grads, firsts, seconds, {}, steps, options_.lr, kBeta1,
                      kBeta2, options_.weight_decay, kEpsilon,
                      /*amsgrad=*/false,
                      /*maximize=*/false, /*grad_scale=*/{}, given(found_inf));
    if (found_inf.defined()) {
      at::_foreach_sub_(steps, std::vector<at::Tensor>(steps.size(), found_inf.squeeze(0)));
    }
  }

  static void create(ShardState& state, const at::Tensor& like, double steps) {
    train::create(state.first, like);
    train::create(state.second, like);
    state.step = at::full({}, steps, like.options().dtype(at::kFloat).requires_grad(false));
  }
};

class Sgd final : public FusedOptimizer {
 public:
  using FusedOptimizer::FusedOptimizer;

  [[nodiscard]] std::span<const std::string_view> moments() const override {
    static constexpr std::array<std::string_view, 1> kNames{"momentum_buffer"};
    return options_.momentum == 0 ? std::span<const std::string_view>{} : kNames;
  }
  void create_state(size_t shard, double /*steps*/) override {
    create(states_.at(shard).first, states_.at(shard).shard);
  }

 private:
  // A buffer of zeros has the same first step as torch.optim's, which starts with the gradient.
  void update(const Due& due, const at::Tensor& found_inf) override {
    const c10::NoGradGuard no_grad;
    std::vector<at::Tensor> buffers;
    for (size_t i = 0; i < due.states.size() && options_.momentum != 0; ++i) {
      ShardState& state = *due.states[i];
      create(state.first, due.values[i]);
      buffers.push_back(state.first);
    }
    if (!due.states.empty()) {
      at::_fused_sgd_(
          due.values, due.grads, buffers, options_.weight_decay, options_.momentum, options_.lr,
          /*dampening=*/0.0,
          /*nesterov=*/false,
          /*maximize=*/false, /*is_first_step=*/false, /*grad_scale=*/{}, given(found_inf));
    }
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(std::span<const at::Tensor> shards,
                                          const OptimizerOptions& options) {
  if (options.kind == plan::Optimizer::kSgd) {
    return std::make_unique<Sgd>(shards, options);
  }
  return std::make_unique<AdamW>(shards, options);
}

}  // namespace shardlens::train
