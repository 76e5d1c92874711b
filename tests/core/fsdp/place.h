#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/core/TensorBody.h>

namespace torch::nn {
class Module;
}

namespace shardlens::test {

using Tensors = std::vector<at::Tensor>;

// Where a program runs. `move` brings a model to the device.
struct Place {
  c10::Device device{c10::kCPU};
  std::function<void(torch::nn::Module&)> move = {};

  void bring(torch::nn::Module& model) const {
    if (move) {
      move(model);
    }
  }
};

// A program did not do what it should.
class Mismatch : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// In fp64; undefined stays undefined.
at::Tensor on_host(const at::Tensor& tensor);
// Errors  Mismatch if one tensor is defined and its counterpart is not, or if the norm of the
//         differences is more than `share` of that of `expected`, which the CPU has computed.
void compare(const Tensors& seen, const Tensors& expected, double share, const std::string& what);
// "", or the first line of the exception that `act` throws.
std::string failure_of(const std::function<void()>& act);

}  // namespace shardlens::test
