#include "core/fsdp/unit/move_data.h"

#include <mutex>

#include <torch/csrc/autograd/variable.h>

namespace shardlens::fsdp {

void move_data(const at::Tensor& tensor, const at::Tensor& data) {
  if (tensor.device().type() == data.device().type()) {
    tensor.set_data(data);
    return;
  }
  if (auto* meta = torch::autograd::impl::get_autograd_meta(tensor); meta != nullptr) {
    const std::lock_guard lock(meta->mutex_);
    meta->grad_accumulator_.reset();  // one for the other device
  }
  tensor.unsafeGetTensorImpl()->shallow_copy_from(data.getIntrusivePtr());
}

}  // namespace shardlens::fsdp
