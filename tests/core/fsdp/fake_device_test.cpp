// The fake device itself: its work runs late, and what no event orders goes wrong.
#include "tests/core/fsdp/fake_device.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "tests/core/fsdp/seeded.h"

namespace shardlens {
namespace {

using test::kFakeDevice;

const at::TensorOptions kOnDevice = at::TensorOptions().dtype(at::kFloat).device(kFakeDevice);

c10::Stream new_stream() {
  return c10::impl::VirtualGuardImpl(kFakeDevice.type()).getStreamFromGlobalPool(kFakeDevice, true);
}

class FakeDeviceTest : public testing::Test {
 protected:
  void SetUp() override { test::start_device(1); }
  void TearDown() override { test::stop_device(); }
};

TEST_F(FakeDeviceTest, WorkRunsWhenTheHostWaits) {
  const c10::StreamGuard guard(new_stream());
  test::stall(guard.current_stream());
  at::Tensor sum = at::ones({3}, kOnDevice);
  sum.add_(2).mul_(2);
  EXPECT_GE(test::queued(), 3);
  EXPECT_TRUE(test::host_waits().empty());
  EXPECT_EQ(sum.sum().item<float>(), 18);
  ASSERT_EQ(test::host_waits().size(), 1);
  EXPECT_EQ(test::host_waits()[0].what, "item");
}

// The gradients of a small model, forward and backward on the device, are those of the CPU.
TEST_F(FakeDeviceTest, AModelHasTheCpusGradients) {
  const auto gradients = [](c10::Device device) {
    const at::Tensor x = test::seeded({4, 3}, 1).to(device);
    const at::Tensor w = test::seeded({5, 3}, 2).to(device).requires_grad_();
    const at::Tensor b = test::seeded({5}, 3).to(device).requires_grad_();
    const at::Tensor target = at::arange(4, at::kLong).to(device);
    at::cross_entropy_loss(at::linear(x, w, b).relu().pow(2).softmax(-1).log(), target).backward();
    return std::pair(w.grad().cpu(), b.grad().cpu());
  };
  for (uint64_t seed = 0; seed < 10; ++seed) {
    test::start_device(seed);
    const auto [w, b] = gradients(kFakeDevice);
    EXPECT_TRUE(at::equal(w, gradients(c10::kCPU).first)) << seed;
    EXPECT_TRUE(at::equal(b, gradients(c10::kCPU).second)) << seed;
  }
}

// `ordered`: an event makes the reader wait for the writer. Returns how many seeds read a wrong
// value.
int wrong_reads(bool ordered) {
  int wrong = 0;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    test::start_device(seed);
    const c10::Stream writes = new_stream();
    const c10::Stream reads = new_stream();
    at::Tensor value, copy;
    {
      const c10::StreamGuard guard(writes);
      value = at::full({4}, 3.0, kOnDevice);
    }
    if (ordered) {
      c10::Event event(kFakeDevice.type());
      event.record(writes);
      event.block(reads);
    }
    const c10::StreamGuard guard(reads);
    copy = value.clone();
    wrong += copy.sum().item<float>() == 12 ? 0 : 1;
  }
  return wrong;
}

TEST_F(FakeDeviceTest, StreamsAreOrderedByEventsOnly) {
  EXPECT_EQ(wrong_reads(/*ordered=*/true), 0);
  EXPECT_GT(wrong_reads(/*ordered=*/false), 3);
}

// `recorded`: the reader's stream is recorded with the tensor, which is freed when it was issued.
int wrong_after_free(bool recorded) {
  int wrong = 0;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    test::start_device(seed);
    const c10::Stream reads = new_stream();
    at::Tensor value = at::full({4}, 3.0, kOnDevice);
    c10::Event event(kFakeDevice.type());
    event.record(c10::impl::VirtualGuardImpl(kFakeDevice.type()).getStream(kFakeDevice));
    event.block(reads);
    const c10::StreamGuard guard(reads);
    const at::Tensor copy = value.clone();
    if (recorded) {
      value.record_stream(reads);
    }
    value = at::Tensor();
    {
      const c10::StreamGuard first(c10::Stream(c10::Stream::UNSAFE, kFakeDevice, 0));
      static_cast<void>(at::empty({4}, kOnDevice));  // reuses the memory if it can
    }
    wrong += copy.sum().item<float>() == 12 ? 0 : 1;
  }
  return wrong;
}

TEST_F(FakeDeviceTest, MemoryIsFreedOnItsOwnStream) {
  EXPECT_EQ(wrong_after_free(/*recorded=*/true), 0);
  EXPECT_GT(wrong_after_free(/*recorded=*/false), 3);
}

TEST_F(FakeDeviceTest, FreedMemoryIsPoisonedAndGivenOutAgain) {
  at::Tensor first = at::ones({8}, kOnDevice);
  const void* place = first.data_ptr();
  first = at::Tensor();
  const at::Tensor second = at::empty({8}, kOnDevice);
  EXPECT_EQ(second.data_ptr(), place);
  EXPECT_TRUE(std::isnan(second[0].item<float>()));
  const c10::StreamGuard guard(new_stream());
  EXPECT_NE(at::empty({8}, kOnDevice).data_ptr(), place);
}

TEST_F(FakeDeviceTest, OnlyCopiesOfPinnedMemoryDoNotWait) {
  const at::Tensor host = at::ones({4});
  const at::Tensor pinned = host.pin_memory();
  EXPECT_TRUE(pinned.is_pinned());
  const at::Tensor there = pinned.to(kFakeDevice, /*non_blocking=*/true);
  at::Tensor back = at::empty({4}, at::TensorOptions().pinned_memory(true));
  back.copy_(there * 2, /*non_blocking=*/true);
  EXPECT_EQ(test::host_waits().size(), 0);
  static_cast<void>(host.to(kFakeDevice, /*non_blocking=*/true));
  EXPECT_EQ(test::host_waits().size(), 1);
  EXPECT_TRUE(at::equal(back, host * 2));  // of the same stream
  static_cast<void>(pinned.to(kFakeDevice));
  static_cast<void>(there.cpu());
  EXPECT_EQ(test::host_waits().size(), 3);
}

TEST_F(FakeDeviceTest, RandomNumbersFollowTheHostsOrder) {
  at::Generator generator = at::globalContext().defaultGenerator(kFakeDevice);
  const at::Tensor state = generator.get_state();
  const auto draw = [&](uint64_t seed) {
    test::start_device(seed);
    generator.set_state(state);
    const at::Tensor half = at::full({64}, 0.5, kOnDevice);
    const at::Tensor first = at::bernoulli(half);
    at::Tensor second;
    {
      const c10::StreamGuard guard(new_stream());
      second = at::bernoulli(at::full({64}, 0.5, kOnDevice)).cpu();
    }
    return std::pair(first.cpu(), second);
  };
  const auto [first, second] = draw(0);
  EXPECT_FALSE(at::equal(first, second));
  for (uint64_t seed = 1; seed < 6; ++seed) {
    EXPECT_TRUE(at::equal(draw(seed).first, first));
    EXPECT_TRUE(at::equal(draw(seed).second, second));
  }
}

TEST_F(FakeDeviceTest, CountsBlocksByStream) {
  const c10::Stream stream = new_stream();
  const c10::StreamGuard guard(stream);
  {
    const at::Tensor a = at::empty({8}, kOnDevice);
    const at::Tensor b = at::empty({8}, kOnDevice);
  }
  const at::Tensor c = at::empty({8}, kOnDevice);
  EXPECT_EQ(test::most_blocks(stream.id()), 2);
}

}  // namespace
}  // namespace shardlens
