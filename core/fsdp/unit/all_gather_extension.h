#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/TensorBody.h>

#include "core/fsdp/unit/flat_param_types.h"

namespace shardlens::fsdp {

// The facts about its unit that an AllGatherExtension gets when the unit is sharded.
struct ExtendedUnit {
  struct Parameter {  // of the unit
    std::string fqn;
    std::vector<int64_t> shape;
    std::vector<FlatParamRange> in_shard;  // by rank: its elements in that rank's shard
  };
  std::string fqn;
  std::vector<Parameter> parameters;
  int64_t ranks = 1, rank = 0;              // of the shard axis
  int64_t shard_numel = 0;                  // elements of a shard, padding included
  at::ScalarType param_dtype = at::kFloat;  // of the unsharded parameters
};

// A pair of hooks around the all-gathers of one unit, like FSDP2's fsdp_pre_all_gather and
// fsdp_post_all_gather: the first decides what is sent, the second what becomes of what came. The
// reductions do not change.
//
// Streams  pre_all_gather() runs on the stream of copy-ins, post_all_gather() on compute. They
//          issue work to the current stream and do not wait for it.
// Threads  the thread that trains (in a backward on a device, autograd's).
// Source   torch 2.11 _fully_shard/_fsdp_param.py (all_gather_inputs, _init_extensions).
class AllGatherExtension {
 public:
  virtual ~AllGatherExtension() = default;
  // `shard`: [shard_numel], this rank's, in the master dtype, on the device; not to be changed.
  // Returns a 1-D tensor on the device, of the same dtype and number of elements on all ranks and
  // in all calls.
  virtual at::Tensor pre_all_gather(const at::Tensor& shard) = 0;
  // `gathered`: [ranks, n], what pre_all_gather() returned on each rank. Writes every element of
  // the ranks' shards that belongs to a parameter: `shards` is [ranks, shard_numel] in param_dtype.
  virtual void post_all_gather(const at::Tensor& gathered, const at::Tensor& shards) = 0;
};

// Makes the extension of a unit, once; null: the unit's all-gathers stay as they are.
using MakeAllGatherExtension =
    std::function<std::shared_ptr<AllGatherExtension>(const ExtendedUnit& unit)>;

}  // namespace shardlens::fsdp
