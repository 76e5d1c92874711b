#include "core/fsdp/apply/module_states.h"

#include <unordered_set>

#include <fmt/format.h>

#include <ATen/core/grad_mode.h>

#include "core/base/error.h"
#include "core/dist/same_device.h"
#include "core/dist/world.h"
#include "core/fsdp/unit/move_data.h"

namespace shardlens::fsdp {

void prepare_module_states(const std::vector<ModuleState>& states, const Options& options) {
  dist::Communicator& all = options.world->world();
  const c10::Device device = all.device();
  if (options.device_id && !dist::same_device(*options.device_id, device)) {
    throw UsageError(
        fmt::format("fully_shard: inconsistent compute device and device_id: the ranks communicate "
                    "on {}, device_id is {}",
                    device.str(), options.device_id->str()));
  }
  const at::NoGradGuard no_grad;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const ModuleState& state : states) {
    if (!seen.insert(state.tensor.unsafeGetTensorImpl()).second) {
      continue;
    }
    if (state.buffer && options.device_id && state.tensor.is_cpu() && !device.is_cpu()) {
      move_data(state.tensor, state.tensor.to(device));
    }
    if (!options.sync_module_states || options.world->emulated() || state.tensor.numel() == 0) {
      continue;
    }
    if (state.tensor.storage().nbytes() == 0) {
      throw UsageError(fmt::format(
          "fully_shard: sync_module_states needs the values of '{}', which has none yet",
          state.fqn));
    }
    const at::Tensor value = state.tensor.detach().to(device).contiguous();
    all.wait(all.broadcast(value, 0, {kNoUnit, "sync_module_states"}));
    if (!value.is_alias_of(state.tensor)) {
      at::Tensor target = state.tensor.detach();
      target.copy_(value);
    }
  }
}

}  // namespace shardlens::fsdp
