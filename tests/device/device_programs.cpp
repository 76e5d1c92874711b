// What users do (tests/core/fsdp/device_cases.h), and training programs made at random
// (tests/core/fsdp/random_program.h), on a device and on the CPU: plans of both dialects and
// layouts, exceptions, evaluations, accumulation, frozen parameters, two optimizers, several
// dtypes. Gradients, norms and parameters of each step must agree. One rank of an emulated world.
//
//   device_programs cpu|cuda FIRST:COUNT   prints one line of JSON; exit 0: passed, 1: failed, 77:
//                                          no GPU
#include <cstdio>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/nn/module.h>

#include "core/base/error.h"
#include "core/dist/cuda_backends.h"
#include "tests/core/fsdp/device_cases.h"
#include "tests/core/fsdp/program_runner.h"

namespace shardlens::test {
namespace {

// Kernels of a GPU add in another order than those of the CPU, which later steps can amplify.
double share_of(const RandomProgram& program, c10::Device device) {
  const bool exact = program.fp64 && !program.mixed;
  return device.is_cpu() ? 0 : exact ? 1e-10 : 1e-4;
}

int run(c10::Device device, ProgramRange range) {
  const Place place{device, [device](torch::nn::Module& model) { model.to(device); }};
  nlohmann::json failed = nlohmann::json::array(), cases = nlohmann::json::array();
  for (const DeviceCase& each : device_cases()) {
    cases.push_back(each.name);
    const std::string wrong = failure_of([&] { each.run(place, device.is_cpu() ? 0 : 1e-4); });
    if (!wrong.empty()) {
      failed.push_back({{"case", each.name}, {"wrong", wrong}});
    }
  }
  for (uint64_t seed = range.first; seed < range.first + range.count; ++seed) {
    const RandomProgram program = RandomProgram::make(seed);
    c10::OptionalStreamGuard on_stream;
    if (!device.is_cpu() && seed % 3 == 0) {  // trains on another stream than the default one
      on_stream.reset_stream(c10::impl::VirtualGuardImpl(device.type())
                                 .getStreamFromGlobalPool(device, /*isHighPriority=*/false));
    }
    const std::string wrong =
        failure_of([&] { compare_with_cpu(program, place, share_of(program, device)); });
    if (!wrong.empty()) {
      failed.push_back({{"seed", seed}, {"wrong", wrong}, {"program", program.described()}});
    }
  }
  fmt::print(
      "{}\n",
      nlohmann::json{{"programs", range.count}, {"cases", cases}, {"failed", failed}}.dump());
  return failed.empty() ? 0 : 1;
}

}  // namespace
}  // namespace shardlens::test

int main(int argc, char** argv) {
  const std::string_view where = argc > 1 ? argv[1] : "";
  const auto range = shardlens::test::ProgramRange::parse(argc > 2 ? argv[2] : "");
  if (argc != 3 || (where != "cpu" && where != "cuda") || !range.has_value()) {
    fmt::print(stderr, "Usage: device_programs cpu|cuda FIRST:COUNT\n");
    return 2;
  }
  const c10::Device device = where == "cpu" ? c10::Device(c10::kCPU) : c10::Device(c10::kCUDA, 0);
  try {
    if (!device.is_cpu()) {
      shardlens::dist::use_cuda(device);
    }
  } catch (const shardlens::InputError& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 77;
  }
  return shardlens::test::run(device, *range);
}
