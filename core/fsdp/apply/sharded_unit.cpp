#include "core/fsdp/apply/sharded_unit.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>

#include <torch/nn/module.h>

#include "core/base/error.h"
#include "core/composable/class_name.h"
#include "core/fsdp/apply/traversal.h"
#include "core/fsdp/apply/unit_setup.h"
#include "core/fsdp/run/root.h"
#include "core/fsdp/run/state.h"

namespace shardlens::fsdp {
namespace {

using schedule::Setting;

// Settings need the schedule that the units share. Before the first forward, the root must be
// determined with lazy_init().
std::shared_ptr<Root> root_of(const std::weak_ptr<FsdpState>& weak) {
  const auto state = weak.lock();
  auto root = state == nullptr ? nullptr : state->root();
  if (root == nullptr) {
    throw UsageError(state == nullptr || state->application() == nullptr
                         ? "the model of this sharded unit was destroyed"
                         : "this sharded unit has no root yet: first run a forward, or call "
                           "lazy_init on the root");
  }
  return root;
}

std::shared_ptr<FsdpState> unit_state(const std::shared_ptr<torch::nn::Module>& module) {
  if (module == nullptr || !is_fully_sharded(*module)) {
    throw UsageError(
        fmt::format("expected a module that fully_shard was applied to, but got {}",
                    module == nullptr ? "none" : composable::described(*module, module->name())));
  }
  return module_fsdp_state(*module);
}

}  // namespace

ShardedUnit::ShardedUnit(const std::shared_ptr<torch::nn::Module>& module)
    : state_(unit_state(module)) {}

void ShardedUnit::set(Setting::Kind kind, bool flag, bool recurse) const {
  const auto root = root_of(state_);
  root->set(state_.lock()->unit(), {.kind = kind, .flag = flag, .units = {}}, recurse);
}

void ShardedUnit::set_requires_gradient_sync(bool sync, bool recurse) const {
  set(Setting::Kind::kGradientSync, sync, recurse);
}
void ShardedUnit::set_requires_all_reduce(bool all_reduce, bool recurse) const {
  set(Setting::Kind::kAllReduce, all_reduce, recurse);
}
void ShardedUnit::set_reshard_after_forward(bool reshard, bool recurse) const {
  set(Setting::Kind::kReshardAfterForward, reshard, recurse);
}
void ShardedUnit::set_reshard_after_backward(bool reshard, bool recurse) const {
  set(Setting::Kind::kReshardAfterBackward, reshard, recurse);
}
void ShardedUnit::set_is_last_backward(bool last) const {
  set(Setting::Kind::kLastBackward, last, false);
}
void ShardedUnit::set_unshard_in_backward(bool unshard) const {
  set(Setting::Kind::kUnshardInBackward, unshard, false);
}
void ShardedUnit::set_modules_to_forward_prefetch(const Modules& modules) const {
  set_prefetch(Setting::Kind::kForwardPrefetch, modules);
}
void ShardedUnit::set_modules_to_backward_prefetch(const Modules& modules) const {
  set_prefetch(Setting::Kind::kBackwardPrefetch, modules);
}

void ShardedUnit::set_prefetch(Setting::Kind kind, const Modules& modules) const {
  const auto root = root_of(state_);
  Setting setting{.kind = kind, .flag = true, .units = {}};
  for (const auto& module : modules) {
    const auto target = unit_state(module);
    if (target->root() != root) {
      throw UsageError(fmt::format("a prefetch list names {}, which is below another root",
                                   composable::described(*module, module->name())));
    }
    setting.units.push_back(target->unit());
  }
  root->set(state_.lock()->unit(), setting, /*recurse=*/false);
}

void ShardedUnit::set_gradient_divide_factor(double factor) const {
  if (!std::isfinite(factor) || factor <= 0) {
    throw UsageError(
        fmt::format("gradient divide factor {}: expected a finite number > 0", factor));
  }
  root_of(state_)->set_gradient_divide_factor(state_.lock()->unit(), factor);
}

UnshardHandle ShardedUnit::unshard(bool async) const {
  root_of(state_)->unshard(state_.lock()->unit(), Hook::kUnshard);
  UnshardHandle handle(state_);
  if (!async) {
    handle.wait();
  }
  return handle;
}

void ShardedUnit::reshard() const {
  root_of(state_)->unshard(state_.lock()->unit(), Hook::kReshard);
}

void UnshardHandle::wait() {
  const auto state = std::exchange(state_, {}).lock();
  if (const auto root = state == nullptr ? nullptr : state->root()) {
    root->unshard(state->unit(), Hook::kWaitUnshard);
  }
}

}  // namespace shardlens::fsdp
