#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/TensorBody.h>
#include <torch/csrc/autograd/variable.h>

namespace shardlens::fsdp {

// The gradients of one unit's parameters from when autograd has made them until their reduction,
// which wants them in one tensor. They stay as they came until then, so that this tensor is made
// after the unit's parameters and the last reduction's input are gone.
//
// Layout   `pieces` cover the tensor: parts of the parameters, and padding, which becomes zeros as
// do
//          parameters without a gradient.
// Threads  the thread that trains.
class UnshardedGradients {
 public:
  struct Piece {
    int64_t offset = 0, numel = 0;
    int32_t parameter = -1;  // -1: padding
    int64_t start = 0;       // first element of the parameter that goes there; begins a row
  };

  UnshardedGradients(std::vector<Piece> pieces, size_t parameters, at::TensorOptions options);

  // One per parameter, undefined where it was not used; added to those that wait already.
  void add(torch::autograd::variable_list&& gradients);
  [[nodiscard]] bool empty() const;
  void clear();
  // All in one new tensor; then there are none. Recorded as "fsdp::flatten_gradients".
  [[nodiscard]] at::Tensor take();
  // The same in `flat`, whose dtype may be another, instead of its values or added to them.
  void take_into(const at::Tensor& flat, bool add);

 private:
  std::vector<Piece> pieces_;
  at::TensorOptions options_;
  std::vector<at::Tensor> waiting_;
};

}  // namespace shardlens::fsdp
