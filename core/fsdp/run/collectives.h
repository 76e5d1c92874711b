#pragma once

#include <ATen/core/TensorBody.h>

#include "core/dist/communicator.h"

namespace shardlens::fsdp {

// The collectives of units. The default is those of the process groups; a user's class can
// replace some, count them, or do something around them (fsdp::Options::collectives), like
// PyTorch's set_custom_all_gather and set_custom_reduce_scatter. Loss and gradient norm do not pass
// through it.
//
// Streams  called in the place of the action on its stream; what it issues must be ordered after
//          earlier work of `group` and before the completion that it returns, as requests to
//          `group` are (Communicator::run for local work).
// Threads  the thread that trains (in a backward on a device, autograd's).
// Errors   what it throws ends the forward or backward, as a failed collective does.
// Source   torch 2.11 _fully_shard/_fsdp_api.py (AllGather, ReduceScatter).
class Collectives {
 public:
  virtual ~Collectives() = default;

  // As the functions of dist::Communicator with these names, over `group`.
  virtual dist::CompletionPtr all_gather(dist::Communicator& group,
                                         const at::Tensor& output,
                                         const at::Tensor& input,
                                         const dist::Purpose& purpose) {
    return group.all_gather(output, input, purpose);
  }
  virtual dist::CompletionPtr reduce_scatter(dist::Communicator& group,
                                             const at::Tensor& output,
                                             const at::Tensor& input,
                                             dist::ReduceOp op,
                                             const dist::Purpose& purpose) {
    return group.reduce_scatter(output, input, op, purpose);
  }
  virtual dist::CompletionPtr all_reduce(dist::Communicator& group,
                                         const at::Tensor& tensor,
                                         dist::ReduceOp op,
                                         const dist::Purpose& purpose) {
    return group.all_reduce(tensor, op, purpose);
  }
};

}  // namespace shardlens::fsdp
