#include "sim/hardware/stacks.h"

#include <cmath>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "sim/hardware/power_limit.h"

namespace shardlens::sim::test {
namespace {

std::string default_of(const std::string& hardware, bool pytorch = false) {
  const Stack* stack = default_stack(hardware, pytorch);
  return stack == nullptr ? "none" : stack->name;
}

TEST(StacksTest, AGpuWithoutRunsHasTheStackOfTheNearestOne) {
  EXPECT_EQ(default_of("8xH100"), "llm-foundry H100-SXM-80GB");
  EXPECT_EQ(default_of("8xA100-40"), "llm-foundry A100-SXM-40GB");
  for (const auto& [newer, pytorch] : {std::pair{"8xH200", "PyTorch H100-80GB"},
                                       {"8xB200", "PyTorch B200"},
                                       {"8xB300", "PyTorch B200"},
                                       {"4xGB200", "PyTorch GB200"},
                                       {"4xGB300", "PyTorch GB200"}}) {
    EXPECT_EQ(default_of(newer), "llm-foundry H100-SXM-80GB") << newer;
    EXPECT_EQ(default_of(newer, true), pytorch) << newer;
  }
  EXPECT_EQ(default_of("2x8xH100", true), "PyTorch H100-80GB");
  EXPECT_EQ(default_of("8xL40S"), "llm-foundry A100-SXM-40GB");
  EXPECT_EQ(default_of("a/file.json"), "none");
}

TEST(StacksTest, RangesGrowWithoutRunsOfTheGpu) {
  const FittedStacks& stacks = builtin_stacks();
  const Stack& stack = stack_named("llm-foundry H100-SXM-80GB");
  const HardwareSpec own = under_stack(load_hardware("8xH100"), stack),
                     nearest = under_stack(load_hardware("8xB200"), stack);
  // 18 runs: the root of 19.
  EXPECT_NEAR(own.ranges.products.slower, stacks.borrowed.products.slower / std::sqrt(19), 1e-12);
  EXPECT_GT(nearest.ranges.products.slower, stacks.borrowed.products.slower);
  // Its one run determines the clock of products: the root of 2. Attention is as on another GPU.
  const HardwareSpec clock =
      under_stack(load_hardware("8xH100-96"), stack_named("PyTorch H100-96GB"));
  EXPECT_NEAR(clock.ranges.products.slower, stacks.borrowed.products.slower / std::sqrt(2), 1e-12);
  EXPECT_GE(clock.ranges.attention.slower, stacks.borrowed.attention.slower);
  EXPECT_GT(nearest.ranges.memory.faster, own.ranges.memory.faster);
  EXPECT_EQ(nearest.software.matrix_rate, own.software.matrix_rate);
  // Real software is never faster than ideal software.
  const HardwareSpec bare = as_bare(load_hardware("8xB200"));
  EXPECT_EQ(bare.software.matrix_rate, 1);
  EXPECT_GT(bare.ranges.products.slower, bare.ranges.products.faster);
}

// By hand: at half the bandwidth of a ring of 100 GB/s, a byte takes 10 ps more than its links
// need. Links of 25 GB/s need 40 ps, so with the same program they reach 40 / 50.
TEST(StacksTest, AStackKeepsItsTimePerByteOnOtherLinks) {
  Stack stack = stack_named("llm-foundry A100-SXM-40GB");
  stack.hardware.fabric.ring_gbps = 100;
  stack.hardware.software.collective_rate = 0.5;
  HardwareSpec node = load_hardware("8xL40S");
  node.fabric.ring_gbps = 25;
  EXPECT_NEAR(under_stack(node, stack).software.collective_rate, 0.8, 1e-12);
  node.fabric.link = Link::kNvlink;
  EXPECT_EQ(under_stack(node, stack).software.collective_rate, 0.5);
}

// cuDNN's attention, at the clock at which it was measured if products are as fast as then.
TEST(StacksTest, ProgramsOfPyTorchCallTheirKernelOfAttention) {
  const auto rate = [](const char* hardware, std::string_view stack, bool pytorch) {
    return hardware_under(hardware, stack, pytorch).gpu.attention_tflops;
  };
  EXPECT_EQ(rate("8xH100", "torchtitan", true), 616);
  EXPECT_EQ(rate("8xH200", "transformers", true), 616);
  EXPECT_EQ(rate("2x8xH100", "transformers-flash-2", true), 328);
  EXPECT_EQ(rate("8xH100-96", "torchtitan-2024", true), 328);
  EXPECT_EQ(rate("8xH100-96", "torchtitan-2025", true), 328);
  EXPECT_EQ(rate("8xB200", "torchtitan-2025", true), rate("8xB200", "torchtitan", true));
  EXPECT_EQ(rate("8xH100", "", false), 328);
  EXPECT_EQ(rate("8xA100-80", "torchtitan", true), 180);
  const HardwareSpec spec = hardware_under("8xH100", "torchtitan", true);
  EXPECT_NEAR(spec.software.attention_rate, spec.software.matrix_rate / 0.934, 1e-12);
  EXPECT_EQ(hardware_under("8xA100-80", "torchtitan", true).software.attention_rate, 1);
}

// The two H100 are one GPU under two limits, of which one has a published run.
TEST(StacksTest, TheClockOfAGpuWithoutRunsFollowsItsPower) {
  const auto clock = [](const HardwareSpec& spec) { return spec.software.matrix_rate; };
  const HardwareSpec h100 = hardware_under("8xH100", "torchtitan", true);
  EXPECT_NEAR(clock(with_power_limit(h100, 500)),
              clock(hardware_under("8xH100-96", "torchtitan", true)), 0.002);
  for (const char* newer : {"8xB200", "4xGB200"}) {
    const HardwareSpec spec = hardware_under(newer, "torchtitan", true);
    const auto watts = [](const GpuSpec& gpu) { return gpu.power_watts / gpu.half_tflops; };
    EXPECT_NEAR(clock(spec) / clock(h100), std::cbrt(watts(spec.gpu) / watts(h100.gpu)), 0.002);
  }
}

TEST(StacksTest, AnUnknownStackSuggestsTheNearest) {
  try {
    (void)stack_named("torchtitan-20244");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean 'torchtitan-2024'?"), std::string::npos);
  }
}

}  // namespace
}  // namespace shardlens::sim::test
