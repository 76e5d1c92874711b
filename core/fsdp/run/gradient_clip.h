#pragma once

#include <memory>
#include <vector>

#include <ATen/core/TensorBody.h>

#include "core/fsdp/run/root_units.h"
#include "core/fsdp/run/sharded_model.h"

namespace shardlens::fsdp {

// The norm of all gradients of a sharded model, also of those that an optimizer in backward has
// used by then.
//
// Threads  the thread that trains.
class GradientClip {
 public:
  explicit GradientClip(RootUnits& units);

  // As in ShardedModel.
  void set_optimizer_in_backward(OptimizerInBackward optimizer);
  // Errors  UsageError if the plan has optimizer_in_backward, but there is no optimizer.
  void require_optimizer() const;
  // Forgets the gradients that the last backward's optimizer has used.
  void begin_backward();
  // ShardedModel::issue_clip_grad_norm(). The shards' gradients are those that users see.
  [[nodiscard]] at::Tensor issue(double max_norm, double norm_type);

 private:
  [[nodiscard]] at::Tensor issue_on_device(const std::vector<at::Tensor>& grads,
                                           double max_norm,
                                           double norm_type);

  RootUnits& units_;
  // Norms of the gradients that optimizer_in_backward has used since the last backward began.
  struct SteppedNorm;
  std::shared_ptr<SteppedNorm> stepped_;  // null: no unit has the key; shared with queued work
};

}  // namespace shardlens::fsdp
