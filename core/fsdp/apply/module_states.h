#pragma once

#include <string>
#include <vector>

#include <ATen/core/TensorBody.h>

#include "core/fsdp/run/fsdp_options.h"

namespace shardlens::fsdp {

// A parameter or buffer that is about to be managed by fully_shard.
struct ModuleState {
  std::string fqn;
  at::Tensor tensor;
  bool buffer = false;
};

// Options::device_id and sync_module_states: moves buffers from the CPU to the device, and gives
// every rank rank 0's values. Parameters stay where they are, because sharding copies each rank's
// part to the device. A collective with sync_module_states.
//
// Errors  UsageError if device_id is not the world's device, or a state to broadcast has no values.
// Source  _move_module_to_device and _sync_module_params_and_buffers,
//         torch/distributed/fsdp/_init_utils.py, torch 2.11.
void prepare_module_states(const std::vector<ModuleState>& states, const Options& options);

}  // namespace shardlens::fsdp
