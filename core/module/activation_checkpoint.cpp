#include "core/module/activation_checkpoint.h"

#include <array>
#include <mutex>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include "core/base/error.h"
#include "core/composable/contract.h"
#include "core/module/hook_point.h"
#include "core/module/tree_of.h"
#include "core/plan/resolved_plan.h"

namespace shardlens::module {
namespace {

using torch::autograd::SavedVariableHooks;

// Ends a recomputation once all tensors that backward needs are available. Not derived from
// std::exception, so that handlers in the forward do not catch it.
struct StopRecomputation {};

// The default generators of the CPU and of this thread's current device, if a device is in use.
std::vector<at::Generator> generators() {
  std::vector<at::Generator> all{at::detail::getDefaultCPUGenerator()};
  if (const auto type = at::accelerator::getAccelerator(); type) {
    const c10::Device device = c10::impl::VirtualGuardImpl(*type).getDevice();
    const auto& hooks = at::globalContext().getAcceleratorHooksInterface(*type);
    if (hooks.hasPrimaryContext(device.index())) {
      all.push_back(hooks.getDefaultGenerator(device.index()));
    }
  }
  return all;
}

std::vector<at::Tensor> random_state() {
  std::vector<at::Tensor> states;
  for (at::Generator generator : generators()) {
    const std::lock_guard lock(generator.mutex());
    states.push_back(generator.get_state());
  }
  return states;
}

// Sets the random number generators to `state`; the destructor restores the previous state.
class RandomScope {
 public:
  explicit RandomScope(const std::vector<at::Tensor>& state) : before_(random_state()) {
    set(state);
  }
  ~RandomScope() { set(before_); }
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

 private:
  static void set(const std::vector<at::Tensor>& state) {
    const std::vector<at::Generator> all = generators();
    for (size_t i = 0; i < state.size() && i < all.size(); ++i) {
      at::Generator generator = all[i];
      const std::lock_guard lock(generator.mutex());
      generator.set_state(state[i]);
    }
  }
  std::vector<at::Tensor> before_;
};

// The autocast of this thread.
struct Autocast {
  struct OfDevice {
    at::DeviceType device;
    bool enabled;
    at::ScalarType dtype;
  };
  static OfDevice of(at::DeviceType device) {
    return {device, at::autocast::is_autocast_enabled(device),
            at::autocast::get_autocast_dtype(device)};
  }
  std::array<OfDevice, 2> devices{of(at::kCPU), of(at::kCUDA)};
  bool cache = at::autocast::is_autocast_cache_enabled();

  void set() const {
    for (const OfDevice& each : devices) {
      at::autocast::set_autocast_enabled(each.device, each.enabled);
      at::autocast::set_autocast_dtype(each.device, each.dtype);
    }
    at::autocast::set_autocast_cache_enabled(cache);
  }
};

// Sets the autocast to that of the forward, because backward usually runs outside of it; the
// destructor restores the previous one. As torch::autocast, it forgets the cached casts at its end,
// unless it is within another one.
class AutocastScope {
 public:
  explicit AutocastScope(const Autocast& autocast) {
    at::autocast::increment_nesting();
    autocast.set();
  }
  ~AutocastScope() {
    before_.set();
    if (at::autocast::decrement_nesting() == 0) {
      at::autocast::clear_cache();
    }
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  Autocast before_;
};

}  // namespace

// The tensors that autograd saves in one forward, in the order in which it saves them.
class CheckpointScope::Region : public std::enable_shared_from_this<Region> {
 public:
  Region(std::string fqn, std::function<void()> again)
      : fqn_(std::move(fqn)), again_(std::move(again)), random_state_(random_state()) {}

  // The innermost region of this thread; null: autograd saves tensors as usual.
  static std::shared_ptr<Region>& active() {
    thread_local std::shared_ptr<Region> region;
    return region;
  }

  // Hooks for the next tensor that autograd saves.
  std::unique_ptr<SavedVariableHooks> hooks();

 private:
  struct Kept {
    std::vector<int64_t> shape;
    at::ScalarType dtype = at::kFloat;
    at::Tensor value;  // set by a recomputation, until backward uses it
  };
  class Hooks;

  void pack(size_t index, const at::Tensor& tensor);
  at::Tensor unpack(size_t index);
  void recompute();

  std::string fqn_;
  std::function<void()> again_;
  std::vector<at::Tensor> random_state_;
  Autocast autocast_;  // of the forward
  std::vector<Kept> kept_;
  bool recomputing_ = false;
  size_t next_ = 0;  // index of the next tensor that the recomputation saves
};

class CheckpointScope::Region::Hooks : public SavedVariableHooks {
 public:
  Hooks(std::shared_ptr<Region> region, size_t index) : region_(std::move(region)), index_(index) {}
  void call_pack_hook(const at::Tensor& tensor) override { region_->pack(index_, tensor); }
  at::Tensor call_unpack_hook() override { return region_->unpack(index_); }

 private:
  std::shared_ptr<Region> region_;
  size_t index_;
};

std::unique_ptr<SavedVariableHooks> CheckpointScope::Region::hooks() {
  return std::make_unique<Hooks>(shared_from_this(), recomputing_ ? next_++ : kept_.size());
}

void CheckpointScope::Region::pack(size_t index, const at::Tensor& tensor) {
  if (!recomputing_) {
    kept_.push_back({tensor.sizes().vec(), tensor.scalar_type(), {}});
    return;
  }
  if (index >= kept_.size() || kept_[index].shape != tensor.sizes() ||
      kept_[index].dtype != tensor.scalar_type()) {
    throw UsageError(fmt::format(
        "checkpoint: the forward of '{}' did not run the same in backward: tensor {} of the {} "
        "saved tensors now has another shape or dtype; a checkpointed forward must depend only on "
        "its inputs and parameters",
        fqn_, index + 1, kept_.size()));
  }
  kept_[index].value = tensor.detach();
  if (index + 1 == kept_.size()) {
    throw StopRecomputation();
  }
}

at::Tensor CheckpointScope::Region::unpack(size_t index) {
  if (!kept_[index].value.defined()) {  // first use, or a second backward through the graph
    recompute();
  }
  return std::exchange(kept_[index].value, {});
}

void CheckpointScope::Region::recompute() {
  const at::AutoGradMode grad_mode(true);
  const RandomScope random(random_state_);
  const AutocastScope autocast(autocast_);
  const std::shared_ptr<Region> outer = std::exchange(active(), shared_from_this());
  recomputing_ = true;
  next_ = 0;
  const auto end = [&] {
    recomputing_ = false;
    active() = outer;
  };
  try {
    again_();
  } catch (const StopRecomputation&) {
    return end();
  } catch (...) {
    end();
    throw;
  }
  end();
  throw UsageError(
      fmt::format("checkpoint: the forward of '{}' did not run the same in backward: it now saves "
                  "{} tensors, but the first time it saved {}; a checkpointed forward must depend "
                  "only on its inputs and parameters",
                  fqn_, next_, kept_.size()));
}

namespace {

// Autograd's engine, with hooks for the tensors that autograd saves.
class CheckpointEngine final : public torch::autograd::Engine {
 public:
  static Engine& get() {
    static auto* engine = new CheckpointEngine;  // outlives every thread, like LibTorch's engine
    return *engine;
  }
  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks() override {
    const auto& region = CheckpointScope::Region::active();
    return region == nullptr ? nullptr : region->hooks();
  }
  // LibTorch starts the threads of one engine only. If a backward has run before this engine was
  // installed, those are the default engine's, so this one has none for devices and nested
  // backwards.
  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& inputs,
                                         bool keep_graph,
                                         bool create_graph,
                                         bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    initialize_device_threads_pool();
    {
      const std::lock_guard lock(starting_);
      if (thread_pool_shared_ == nullptr) {
        start_device_threads();
      }
    }
    return Engine::execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }

 private:
  CheckpointEngine() = default;
  std::mutex starting_;
};

}  // namespace

CheckpointScope::CheckpointScope(std::string fqn, std::function<void()> again)
    : region_(std::make_shared<Region>(std::move(fqn), std::move(again))),
      outer_(std::exchange(Region::active(), region_)) {}

CheckpointScope::~CheckpointScope() {
  Region::active() = outer_;
}

const composable::Api& checkpoint_api() {
  static const composable::Api api("checkpoint");
  return api;
}

std::vector<NamedModule> modules_to_checkpoint(const std::shared_ptr<torch::nn::Module>& model,
                                               const plan::ResolvedPlan& plan) {
  std::vector<NamedModule> found;
  if (plan.checkpointed_modules.empty()) {
    return found;
  }
  const ModulesByFqn modules = modules_by_fqn(*model);
  for (const uint32_t index : plan.checkpointed_modules) {
    const std::string& fqn = plan.tree.modules[index].fqn;
    const auto module = modules.find(fqn);
    if (module == modules.end()) {
      throw UsageError(fmt::format(
          "checkpoint: the plan names module '{}', but the model has no such module", fqn));
    }
    static_cast<void>(hook_point(checkpoint_api(), *module->second, fqn));
    composable::require_once(checkpoint_api(), *module->second, fqn);
    found.push_back({fqn, module->second});
  }
  return found;
}

void checkpoint(const std::shared_ptr<torch::nn::Module>& module, const std::string& fqn) {
  HookPoint& point = hook_point(checkpoint_api(), *module, fqn);
  torch::autograd::set_default_engine_stub(&CheckpointEngine::get);
  struct State : composable::State {};
  composable::apply(
      checkpoint_api(), {module}, std::make_shared<State>(),
      [&](const composable::Modules& given) {
        point.set_checkpoint(fqn);
        return given;
      },
      fqn);
}

void refuse_checkpoint(const std::string& fqn) {
  throw UsageError(fmt::format(
      "checkpoint: the forward of '{}' takes an argument that cannot be copied, or that "
      "the forward may change, so the argument cannot be saved for the recomputation",
      fqn));
}

}  // namespace shardlens::module
