#pragma once

#include <cstdint>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/TensorBody.h>
#include <ATen/ops/randn.h>

namespace shardlens::test {

// Normal values from an own generator: ranks are threads and share the default one.
inline at::Tensor seeded(at::IntArrayRef sizes, uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(sizes, generator);
}

}  // namespace shardlens::test
