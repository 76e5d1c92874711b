// What a device shows besides wrong numbers: memory that is held too long, and work on the wrong
// thread.
#include <chrono>
#include <cmath>
#include <stdexcept>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/dropout.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/optim/sgd.h>

#include "core/base/error.h"
#include "core/dist/world.h"
#include "core/fsdp/apply/fully_shard.h"
#include "core/module/activation_checkpoint.h"
#include "tests/core/fsdp/emulated_world.h"
#include "tests/core/fsdp/fake_device.h"
#include "tests/core/fsdp/mlp.h"
#include "tests/core/fsdp/seeded.h"
#include "tests/support/message_of.h"

namespace shardlens::fsdp {
namespace {

using test::kFakeDevice;

// PyTorch holds two: the one that is copied out and the one that is gathered.
TEST(DeviceFaultsTest, TwoGatheredBuffersAreAlive) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const test::DeviceScope scope(seed);
    const auto world = test::emulated_world(2, kFakeDevice);
    test::Mlp model = test::make_mlp(5, 6);
    test::move_to_device(*model);
    const c10::StreamId copy_in = test::fake.next;  // the first stream that the engine takes
    const auto sharded =
        fully_shard(model.ptr(), test::mlp_plan("true", R"(, "layout": "per_parameter")"),
                    {.world = world.get(), .check_ledger = true});
    test::stall(c10::Stream(c10::Stream::UNSAFE, kFakeDevice, 0));  // compute is behind
    const at::Tensor batch = test::seeded({4, 5}, 1).to(kFakeDevice);
    for (int step = 0; step < 2; ++step) {
      model(batch).sum().backward();
      sharded->optimizer_done();
      sharded->zero_grad();
    }
    EXPECT_EQ(test::most_blocks(copy_in), 2) << "seed " << seed;
  }
}

struct ThrowInBackward : torch::autograd::Function<ThrowInBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext* /*ctx*/, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*ctx*/,
                                                 torch::autograd::variable_list /*grads*/) {
    throw std::runtime_error("thrown in backward");
  }
};

// One good step after `failures` backwards that throw. `elsewhere`: they run on another thread,
// which then holds the last reference to autograd's graph task.
at::Tensor train_after_failures(c10::Device device, int failures, bool elsewhere) {
  const auto world = test::emulated_world(2, device);
  test::Mlp model = test::make_mlp(5, 3);
  if (!device.is_cpu()) {
    test::move_to_device(*model);
  }
  const auto sharded = fully_shard(model.ptr(), test::mlp_plan("true"),
                                   {.world = world.get(), .check_ledger = true});
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
  const at::Tensor batch = test::seeded({4, 5}, 1).to(device);
  for (int i = 0; i < failures; ++i) {
    const at::Tensor in = ThrowInBackward::apply(batch.clone().requires_grad_());
    const at::Tensor loss = model(in).pow(2).mean();
    test::forget_host_waits();
    const auto fail = [&] { EXPECT_THROW(loss.backward(), std::runtime_error); };
    if (elsewhere) {
      std::thread(fail).join();
    } else {
      fail();
    }
    // The cleanup waits for the device, so a wait shows where it ran.
    for (const test::HostWait& wait : test::host_waits()) {
      EXPECT_EQ(wait.thread, std::this_thread::get_id()) << wait.what;
    }
    optimizer.zero_grad();
  }
  model(batch).pow(2).mean().backward();
  optimizer.step();
  sharded->optimizer_done();
  EXPECT_EQ(sharded->unsharded_bytes(), 0);
  return sharded->flat_shards()[0].detach().cpu().clone();
}

TEST(DeviceFaultsTest, TheTrainingThreadCleansUpAfterAFailedBackward) {
  const at::Tensor expected = train_after_failures(c10::kCPU, 0, false);
  EXPECT_TRUE(at::allclose(train_after_failures(c10::kCPU, 2, true), expected, 1e-5, 1e-6));
  for (uint64_t seed = 0; seed < 6; ++seed) {
    for (const bool elsewhere : {false, true}) {
      const test::DeviceScope scope(seed);
      const at::Tensor shard = train_after_failures(kFakeDevice, 2, elsewhere);
      EXPECT_TRUE(at::allclose(shard, expected, 1e-5, 1e-6)) << "seed " << seed;
    }
  }
}

struct NoisyImpl : torch::nn::Module {
  NoisyImpl() : linear(register_module("linear", torch::nn::Linear(5, 5))) {}
  at::Tensor forward(const at::Tensor& x) {
    return at::dropout(at::relu(linear(x)), 0.5, /*train=*/true);
  }
  torch::nn::Linear linear;
};
SHARDLENS_MODULE(Noisy);

// The recomputation draws the device's random numbers of the first forward, and later forwards
// those that they would have drawn without it.
TEST(DeviceFaultsTest, ACheckpointRepeatsTheDevicesRandomNumbers) {
  at::Generator generator = at::globalContext().defaultGenerator(kFakeDevice);
  const at::Tensor state = generator.get_state();
  const auto gradient = [&](bool checkpointed) {
    generator.set_state(state);
    Noisy first, second;
    const at::NoGradGuard no_grad;
    first->linear->weight.copy_(test::seeded({5, 5}, 1));
    second->linear->weight.copy_(test::seeded({5, 5}, 2));
    for (Noisy* each : {&first, &second}) {
      (*each)->linear->bias.zero_();
      test::move_to_device(**each);
      if (checkpointed) {
        module::checkpoint(each->ptr());
      }
    }
    const at::AutoGradMode grad(true);
    const at::Tensor x = test::seeded({16, 5}, 3).to(kFakeDevice);
    for (int step = 0; step < 2; ++step) {
      second(first(x)).pow(2).sum().backward();
    }
    return first->linear->weight.grad().cpu();
  };
  const test::DeviceScope scope(3);
  EXPECT_TRUE(at::allclose(gradient(true), gradient(false)));
}

// FSDP2's chunk_cat: the gradients of a unit are packed and cast in one operator.
TEST(DeviceFaultsTest, OneOperatorPacksAndCastsAUnitsGradients) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const test::DeviceScope scope(seed);
    const auto world = test::emulated_world(2, kFakeDevice);
    test::Mlp model = test::make_mlp(5, 3);
    test::move_to_device(*model);
    const auto sharded = fully_shard(
        model.ptr(), test::mlp_plan("true", R"(, "layout": "per_parameter", "mixed_precision":
                                  {"param_dtype": "bf16", "reduce_dtype": "fp32"})"),
        {.world = world.get(), .check_ledger = true});
    model(test::seeded({4, 5}, 1).to(kFakeDevice)).sum().backward();
    EXPECT_TRUE(std::isfinite(sharded->clip_grad_norm(1)));
    EXPECT_EQ(test::operators()["aten::_chunk_cat"], 4);  // three blocks and the root
  }
}

class ClosedBackend final : public c10d::Backend {
 public:
  explicit ClosedBackend(std::string& log) : Backend(0, 1), log_(log) {}
  void shutdown() override { log_ += "shutdown"; }
  void abort() override { log_ += "abort"; }

 private:
  std::string& log_;
};

// As NCCL asks for: closed at the end, aborted if something failed before.
TEST(DeviceFaultsTest, GroupsOnADeviceAreClosedAtTheEnd) {
  const test::DeviceScope scope(0);
  for (const bool failed : {false, true}) {
    std::string log;
    {
      dist::Communicator on(c10::make_intrusive<ClosedBackend>(log), {.device = kFakeDevice});
      if (failed) {
        on.abort("a test");
      }
    }
    EXPECT_EQ(log, failed ? "abort" : "shutdown");
  }
}

// A copy to the host would wait without end.
TEST(DeviceFaultsTest, TheHostStopsWaitingWithAMessageOfItsOwn) {
  test::fake = {};  // without teeth: nothing completes
  std::string log;
  dist::Communicator on(c10::make_intrusive<ClosedBackend>(log),
                        {.timeout = std::chrono::milliseconds(20),
                         .device = kFakeDevice,
                         .peers = [] { return std::string("rank 1 is not waiting"); }});
  try {
    on.wait_for_device();
    FAIL() << "wait_for_device() returned";
  } catch (const RuntimeFault& fault) {
    EXPECT_THAT(fault.what(), testing::HasSubstr("did not finish within"));
    EXPECT_THAT(fault.what(), testing::HasSubstr("; rank 1 is not waiting"));
  }
}

TEST(DeviceFaultsTest, ReadingTheNormEndsAfterTheTimeout) {
  test::fake = {};
  test::fake.finished = true;  // without teeth, and all events are complete
  dist::WorldOptions options;
  options.backend = dist::BackendKind::kEmulated;
  options.world_size = 2;
  options.device = kFakeDevice;
  options.timeout = std::chrono::milliseconds(20);
  const auto world = dist::World::join(options);
  test::Mlp model = test::make_mlp(5, 2);
  test::move_to_device(*model);
  const auto sharded = fully_shard(model.ptr(), test::mlp_plan("true"), {.world = world.get()});
  model(test::seeded({4, 5}, 1).to(kFakeDevice)).sum().backward();
  test::fake.finished = false;  // the device stops
  EXPECT_THAT(
      test::message_of<RuntimeFault>([&] { static_cast<void>(sharded->clip_grad_norm(1)); }),
      testing::HasSubstr("the device did not finish within"));
  test::fake.finished = true;
}

TEST(DeviceFaultsTest, ParametersOnAnotherDeviceThanTheWorldsAreNamed) {
  const test::DeviceScope scope(0);
  const auto world = test::emulated_world(2, kFakeDevice);
  test::Mlp model = test::make_mlp(5, 2);
  EXPECT_THAT(
      test::message_of<UsageError>([&] {
        static_cast<void>(fully_shard(model.ptr(), test::mlp_plan("true"), {.world = world.get()}));
      }),
      testing::AllOf(testing::HasSubstr("is on cpu, and the ranks communicate on fake:0"),
                     testing::HasSubstr("move the model")));
}

}  // namespace
}  // namespace shardlens::fsdp
