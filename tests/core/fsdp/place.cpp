#include "tests/core/fsdp/place.h"

#include <cmath>

#include <fmt/format.h>

#include <ATen/TensorOperators.h>

namespace shardlens::test {

at::Tensor on_host(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.detach().cpu().to(at::kDouble, false, true) : tensor;
}

void compare(const Tensors& seen, const Tensors& expected, double share, const std::string& what) {
  if (seen.size() != expected.size()) {
    throw Mismatch(fmt::format("{}: {}, the CPU has {}", what, seen.size(), expected.size()));
  }
  double error = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (seen[i].defined() != expected[i].defined()) {
      throw Mismatch(fmt::format("{}: number {} exists {} the CPU", what, i,
                                 seen[i].defined() ? "everywhere but on" : "only on"));
    }
    if (seen[i].defined()) {
      error += (seen[i] - expected[i]).pow(2).sum().item<double>();
      norm += expected[i].pow(2).sum().item<double>();
    }
  }
  if (!(std::sqrt(error) <= share * std::sqrt(norm) + 1e-14)) {
    throw Mismatch(fmt::format("{} differ by {:.3g} of their norm from those of the CPU", what,
                               std::sqrt(error / norm)));
  }
}

std::string failure_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const std::exception& failure) {
    const std::string message = failure.what();
    return message.substr(0, message.find("\nException raised from"));
  }
  return "";
}

}  // namespace shardlens::test
