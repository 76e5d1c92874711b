#pragma once

#include <memory>
#include <vector>

#include "core/base/units.h"
#include "core/fsdp/run/summon_options.h"

namespace torch::nn {
class Module;
}

namespace shardlens::fsdp {

class Root;

// A scope in which the parameters of sharded units are whole, in their own shapes and master dtype,
// like PyTorch's summon_full_params. All units at and below the module; with recurse false the unit
// of the module itself; none if it has none. Gradients are hidden unless with_grads.
//
// At the end of the scope parameters become this rank's slices again. With writeback, every rank
// keeps what it has written to its own elements, so all ranks should write the same. A unit that is
// not sharded (one rank for each shard) shares its memory, so its changes are kept in any case.
// A gradient that was reset in the scope stays reset.
//
// Threads     the thread that trains. Creating it is a collective: all ranks, in the same order,
//             with the same options.
// Errors      UsageError: within a forward or backward, or another such scope; for options that
//             exclude each other; with_grads if some gradients are not reduced yet. In the scope:
//             forwards, backwards, and other calls of the sharded model.
// Source      torch/distributed/fsdp/_unshard_param_utils.py, torch 2.11.
class FullParameters {
 public:
  explicit FullParameters(const std::shared_ptr<torch::nn::Module>& module,
                          const SummonOptions& options = {});
  // As close(), but values that cannot be written back are lost without an error.
  ~FullParameters();
  FullParameters(const FullParameters&) = delete;
  FullParameters& operator=(const FullParameters&) = delete;

  // Ends the scope; later calls do nothing. Errors: UsageError naming a parameter that was given
  // values of another shape or dtype; its unit's changes are then dropped.
  void close();

 private:
  struct Part {
    std::shared_ptr<Root> root;
    std::vector<UnitId> units;
  };
  void end(bool writeback);

  std::vector<Part> parts_;
  bool writeback_;
};

}  // namespace shardlens::fsdp
