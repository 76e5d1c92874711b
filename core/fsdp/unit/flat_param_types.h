#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/TensorBody.h>
#include <c10/core/Device.h>

namespace shardlens::fsdp {

struct FlatParamSlot {  // one parameter of a unit
  std::string fqn;
  at::Tensor parameter;  // as registered in the module; tied modules have the same tensor
  std::vector<int64_t> shape;
};

// A shard with a gradient, for an optimizer.
struct ShardUpdate {
  size_t shard = 0;         // index into ShardedModel::flat_shards()
  at::Tensor values, grad;  // 1-D; `values` shares the shard's memory
};

struct FlatParamRange {  // elements of a shard
  int64_t start = 0, numel = 0;
};

// A FlatParamHandle in a scope FullParameters.
struct Summoned {
  bool open = false;
  bool grads = false;              // gradients are whole too
  std::vector<at::Tensor> hidden;  // per slot: the gradient of the slice that the parameter shows
};

// How a FlatParamHandle is made.
struct FlatParamChoices {
  // Some parameters may be frozen: they are gathered with the others and have no gradient.
  bool mixed_requires_grad = false;
  // FSDP1: if only some parameters are frozen, autograd differentiates all of them, and the
  // gradients of the frozen ones are discarded.
  bool differentiates_frozen = false;
  // If the parameters have no storage, the shard has none either until materialize().
  bool deferred = false;
  // The device of the unsharded parameters; nullopt: that of the parameters. The shard and its
  // gradient are there too or, with `offload`, on the host, in pinned memory unless the device is
  // the CPU.
  std::optional<c10::Device> device;
  bool offload = false;
};

}  // namespace shardlens::fsdp
