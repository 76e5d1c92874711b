#pragma once

#include <cstddef>

#include <ATen/core/TensorBody.h>

namespace shardlens::fsdp {

[[nodiscard]] inline bool has_storage(const at::Tensor& tensor) {
  return tensor.numel() == 0 || tensor.storage().nbytes() > 0;
}

// Like at::native::resize_bytes_cpu() and _cuda(), but without libtorch_cuda, which the latter
// needs. The new storage is not initialized. Returns the old one.
inline c10::DataPtr resize_storage(const at::Tensor& tensor, size_t bytes) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  c10::DataPtr before = storage->set_data_ptr(bytes == 0 ? c10::DataPtr(nullptr, tensor.device())
                                                         : storage->allocator()->allocate(bytes));
  storage->set_nbytes(bytes);
  return before;
}

// Exchanges the memory of two tensors of equal size; their views follow.
inline void swap_storage(const at::Tensor& one, const at::Tensor& other) {
  c10::StorageImpl* storage = other.storage().unsafeGetStorageImpl();
  storage->set_data_ptr(
      one.storage().unsafeGetStorageImpl()->set_data_ptr(storage->set_data_ptr({})));
}

}  // namespace shardlens::fsdp
