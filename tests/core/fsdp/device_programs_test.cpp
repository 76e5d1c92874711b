// The programs made at random, on a device on which nothing but streams and events orders the work
// (see [Note: Teeth] in fake_device.h): gradients, norms and parameters are those of the CPU's
// executor, whose programs random_programs_test compares with one process.
// SHARDLENS_PROGRAMS=FIRST:COUNT runs others than the suite's.
#include <c10/core/StreamGuard.h>

#include "tests/core/fsdp/device_cases.h"
#include "tests/core/fsdp/fake_device.h"
#include "tests/core/fsdp/program_cases.h"

namespace shardlens::fsdp {
namespace {

const test::Place kOnDevice{test::kFakeDevice, test::move_to_device};

TEST(RandomProgramsTest, ADeviceComputesWhatTheCpuDoes) {
  test::run_programs([](const test::RandomProgram& program) {
    const test::DeviceScope scope(program.seed);
    c10::OptionalStreamGuard on_stream;
    if (program.seed % 3 == 0) {
      on_stream.reset_stream(test::new_stream_after_current());
    }
    const bool exact = program.fp64 && !program.mixed;
    return test::failure_of(
        [&] { test::compare_with_cpu(program, kOnDevice, exact ? 1e-12 : 1e-6); });
  });
}

// The programs of scripts/gpu_check.
TEST(DeviceCasesTest, ADeviceComputesWhatTheCpuDoes) {
  for (const test::DeviceCase& each : test::device_cases()) {
    for (uint64_t seed = 0; seed < 4; ++seed) {
      const test::DeviceScope scope(seed);
      EXPECT_EQ(test::failure_of([&] { each.run(kOnDevice, 1e-6); }), "")
          << each.name << ", seed " << seed;
    }
    EXPECT_EQ(test::failure_of([&] { each.run({}, 0); }), "") << each.name << " on the CPU";
  }
}

}  // namespace
}  // namespace shardlens::fsdp
