#pragma once

#include <ATen/core/TensorBody.h>

namespace shardlens::fsdp {

// Like set_data(), which refuses to change between the CPU and devices that it does not list.
void move_data(const at::Tensor& tensor, const at::Tensor& data);

}  // namespace shardlens::fsdp
