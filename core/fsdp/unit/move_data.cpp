#include "core/fsdp/unit/move_data.h"

#include <mutex>

#include <torch/csrc/autograd/variable.h>

namespace shardlens::fsdp {

// As Tensor::set_data(), but without its check of the type, which is a call of the dispatcher, and
// also for another kind of device.
void move_data(const at::Tensor& tensor, const at::Tensor& data) {
  const bool same = tensor.device() == data.device() && tensor.options().type_equal(data.options());
  if (auto* meta = torch::autograd::impl::get_autograd_meta(tensor); meta != nullptr && !same) {
    const std::lock_guard lock(meta->mutex_);
    meta->grad_accumulator_.reset();  // one for the other type or device
  }
  tensor.unsafeGetTensorImpl()->shallow_copy_from(data.getIntrusivePtr());
}

}  // namespace shardlens::fsdp
