// The programs made at random, on a device on which nothing but streams and events orders the work
// (see [Note: Teeth] in fake_device.h): gradients, norms and parameters are those of the CPU's
// executor, whose programs random_programs_test compares with one process. One rank of an emulated
// world. SHARDLENS_PROGRAMS=FIRST:COUNT runs others than the suite's.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <c10/core/StreamGuard.h>

#include "tests/core/fsdp/fake_device.h"
#include "tests/core/fsdp/program_runner.h"

namespace shardlens::fsdp {
namespace {

using test::Mismatch;
using test::RandomProgram;
using test::Tensors;

struct StepOutcome {
  Tensors gradients;  // in fp64, by slice; undefined: none
  Tensors values;
  double norm = 0;
};

at::Tensor on_host(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.detach().cpu().to(at::kDouble, false, true) : tensor;
}

std::vector<StepOutcome> run_on(const RandomProgram& program, c10::Device device) {
  dist::WorldOptions options;
  options.backend = dist::BackendKind::kEmulated;
  options.world_size = program.ranks;
  options.replicate = program.replicate;
  options.rank = static_cast<int>(program.seed / 3) % program.ranks;
  options.device = device;
  const auto world = dist::World::join(options);
  std::vector<StepOutcome> steps;
  test::train_sharded(program, *world, device,
                      [&](size_t i, ShardedModel& sharded, const Tensors& parameters) {
                        StepOutcome& now = steps.emplace_back();
                        for (const ParameterSlice& slice : sharded.slices()) {
                          now.gradients.push_back(on_host(parameters[slice.parameter].grad()));
                          now.values.push_back(on_host(slice.values));
                        }
                        if (program.steps[i].clip > 0) {
                          now.norm = sharded.clip_grad_norm(program.steps[i].clip);
                        }
                      });
  return steps;
}

// Throws if the norm of the differences is more than `share` of that of `expected`.
void compare_with_cpu(const Tensors& seen,
                      const Tensors& expected,
                      double share,
                      const std::string& what) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (seen[i].defined() != expected[i].defined()) {
      throw Mismatch(fmt::format("{}: slice {} has {} on the device only", what, i,
                                 seen[i].defined() ? "one" : "none"));
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

std::string run_device_program(const RandomProgram& program) {
  try {
    const std::vector<StepOutcome> expected = run_on(program, c10::kCPU);
    const test::DeviceScope scope(program.seed);
    c10::OptionalStreamGuard on_stream;
    if (program.seed % 3 == 0) {
      on_stream.reset_stream(test::new_stream_after_current());
    }
    const std::vector<StepOutcome> seen = run_on(program, test::kFakeDevice);
    const double share = program.fp64 && !program.mixed ? 1e-12 : 1e-6;
    for (size_t i = 0; i < expected.size(); ++i) {
      compare_with_cpu(seen[i].gradients, expected[i].gradients, share,
                       fmt::format("step {}: gradients", i));
      compare_with_cpu(seen[i].values, expected[i].values, share,
                       fmt::format("step {}: parameters", i));
      if (!(std::abs(seen[i].norm - expected[i].norm) <= 1e-5 * expected[i].norm)) {
        throw Mismatch(
            fmt::format("step {}: norm {}, expected {}", i, seen[i].norm, expected[i].norm));
      }
    }
  } catch (const std::exception& failure) {
    const std::string message = failure.what();
    return message.substr(0, message.find("\nException raised from"));
  }
  return "";
}

TEST(RandomProgramsTest, ADeviceComputesWhatTheCpuDoes) {
  test::run_programs(test::chosen_programs({0, 50}), run_device_program);
}

}  // namespace
}  // namespace shardlens::fsdp
