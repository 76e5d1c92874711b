// Measures how much of collectives of a known duration stays exposed when layers compute for a
// known time: three layers, the root owns no parameters, one communicator (the setting of PyTorch's
// test_fully_shard_overlap). With forward c, backward b, all-gather a, reduce-scatter r of a layer
// and N layers:
//
//   a <= c, gathered ahead             forward a + N c        (85 ms at 25 and 10)
//   a >= c, gathered ahead             forward N a + c
//   a + r <= b, gathered ahead         backward a + N b + r   (170 ms at 50 and 10)
//   no backward prefetch               backward N (a + b + r): after the previous reduction
//   optimizer_done() was called        an all-gather overlaps the compute that follows the call
//
//   overlap_times cpu|cuda      prints one line of JSON; exit 0: passed, 1: failed, 77: no GPU
//
// On a CPU layers sleep and the host is the compute stream; on a GPU the host runs ahead, and a
// layer is a kernel that lasts as long, like a collective's. (Matrix products would not do: a
// collective occupies 16 multiprocessors, and with 116 instead of 132 of them a product of 2048²
// took twice as long on an H200.) Each figure is the least of several measurements: the question is
// what the schedule allows, not how busy the machine is.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "core/base/error.h"
#include "core/dist/cuda_backends.h"
#include "core/dist/world.h"
#include "core/fsdp/apply/fully_shard.h"
#include "core/module/hookable.h"

namespace shardlens {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLayers = 3, kRounds = 7;
constexpr double kForwardMs = 25, kDelayMs = 10, kLongDelayMs = 40;

struct FixedTimer : CollectiveTimer {
  explicit FixedTimer(double each_ms) : ms(each_ms) {}
  [[nodiscard]] Nanoseconds duration(CollectiveKind, int, Bytes) const override {
    return std::llround(ms * 1e6);
  }
  double ms;
};

std::unique_ptr<dist::World> emulated_world(c10::Device device, double each_ms) {
  dist::WorldOptions options;
  options.backend = dist::BackendKind::kEmulated;
  options.world_size = 2;
  options.timer = std::make_shared<FixedTimer>(each_ms);
  options.device = device;
  return dist::World::join(options);
}

// Compute of a known length on the current stream, in units of a layer's forward.
class Work {
 public:
  static Work& of_program() {
    static Work work;
    return work;
  }
  void prepare(c10::Device device) {
    device_ = device;
    if (device.is_cpu()) {
      return;
    }
    world_ = emulated_world(device, kForwardMs);
    value_ = at::ones({4}, at::TensorOptions(at::kFloat).device(device));
  }
  void run(int units) {
    if (device_.is_cpu()) {
      std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(units * kForwardMs));
      return;
    }
    for (int i = 0; i < units; ++i) {
      static_cast<void>(
          world_->world().all_reduce(value_, dist::ReduceOp::kSum, {kNoUnit, "compute", 0}));
    }
  }
  // Milliseconds until the device has finished `work`.
  [[nodiscard]] double timed(const std::function<void()>& work) const {
    synchronize();
    const auto begin = Clock::now();
    work();
    synchronize();
    return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  }

 private:
  void synchronize() const {
    if (!device_.is_cpu()) {
      at::accelerator::synchronizeDevice(device_.index());
    }
  }

  c10::Device device_{c10::kCPU};
  std::unique_ptr<dist::World> world_;  // on a GPU: its collectives are the compute
  at::Tensor value_;
};

struct Slow : torch::autograd::Function<Slow> {
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& x) {
    Work::of_program().run(1);
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 const torch::autograd::variable_list& grads) {
    Work::of_program().run(2);
    return grads;
  }
};

struct LayerImpl : torch::nn::Module {
  LayerImpl()
      : linear(register_module("linear",
                               torch::nn::Linear(torch::nn::LinearOptions(4, 4).bias(false)))) {}
  at::Tensor forward(const at::Tensor& x) { return Slow::apply(linear(x)); }
  torch::nn::Linear linear;
};
SHARDLENS_MODULE(Layer);

struct NetImpl : torch::nn::Module {
  NetImpl() : layers(register_module("layers", torch::nn::Sequential(Layer(), Layer(), Layer()))) {}
  at::Tensor forward(const at::Tensor& x) { return layers->forward(x); }
  torch::nn::Sequential layers;
};
SHARDLENS_MODULE(Net);

struct Times {
  double forward_ms = 1e9, backward_ms = 1e9;
};

// A model sharded over two ranks with collectives of `delay_ms`; negative: not sharded.
class Trained {
 public:
  Trained(c10::Device device, double delay_ms, std::string_view plan_keys)
      : input_(at::ones({2, 4}, at::TensorOptions(at::kFloat).device(device))) {
    net_->to(device);
    if (delay_ms >= 0) {
      world_ = emulated_world(device, delay_ms);
      const std::string plan = fmt::format(
          R"({{"version": 1, "units": [{{"modules": "layers.*"}}, {{"modules": ""}}]{}}})",
          plan_keys);
      sharded_ =
          fsdp::fully_shard(net_.ptr(), plan::parse_plan(plan, "plan"), {.world = world_.get()});
    }
  }

  Times times() {
    Times least;
    for (int round = 0; round < kRounds; ++round) {
      at::Tensor loss;
      const double forward = Work::of_program().timed([&] { loss = net_(input_).sum(); });
      const double backward = Work::of_program().timed([&] { loss.backward(); });
      finish_step();
      if (round > 0) {  // the first round records the order of units
        least.forward_ms = std::min(least.forward_ms, forward);
        least.backward_ms = std::min(least.backward_ms, backward);
      }
    }
    return least;
  }

  // Milliseconds of a step after whose optimizer compute continues for a layer's forward. `tells`:
  // whether optimizer_done() is called before that compute.
  double busy_step_ms(bool tells) {
    double least = 1e9;
    for (int round = 0; round < kRounds; ++round) {
      net_(input_).sum().backward();
      least = std::min(least, Work::of_program().timed([&] {
        if (tells) {
          finish_step();
        }
        Work::of_program().run(1);
        net_(input_).sum().backward();
      }));
      finish_step();
    }
    return least;
  }

 private:
  void finish_step() {
    if (sharded_ != nullptr) {
      sharded_->optimizer_done();
      sharded_->zero_grad();
    }
  }

  at::Tensor input_;
  std::unique_ptr<dist::World> world_;
  Net net_;
  std::shared_ptr<fsdp::ShardedModel> sharded_;
};

class Identities {
 public:
  explicit Identities(c10::Device device) : device_(device) {}

  void check() {
    const Times plain = Trained(device_, -1, "").times();
    const double c = plain.forward_ms / kLayers, b = plain.backward_ms / kLayers, a = kDelayMs;
    const auto sharded = [this](double delay_ms, std::string_view keys) {
      return Trained(device_, delay_ms, keys).times();
    };
    constexpr std::string_view kAhead = R"(, "forward_prefetch": 1)";
    const Times ahead = sharded(a, kAhead);
    expect("forward, a <= c", ahead.forward_ms, a + kLayers * c);
    expect("backward, a + r <= b", ahead.backward_ms, a + kLayers * b + a);
    const Times behind = sharded(a, R"(, "backward_prefetch": "none")");
    expect("backward without prefetch", behind.backward_ms, kLayers * (a + b + a));
    const Times slow = sharded(kLongDelayMs, kAhead);
    expect("forward, a >= c", slow.forward_ms, kLayers * kLongDelayMs + c);
    if (!device_.is_cpu()) {  // on a CPU, the host computes and issues the all-gather too late
      Trained net(device_, a, kAhead);
      const double untold = net.busy_step_ms(false), told = net.busy_step_ms(true);
      expect("saved by the optimizer's event", untold - told, a);
    }
  }

  [[nodiscard]] bool good() const { return good_; }
  [[nodiscard]] const nlohmann::ordered_json& rows() const { return rows_; }

 private:
  // Some slack above the identity: hooks, launches, and threads that wake late.
  void expect(std::string_view what, double measured_ms, double identity_ms) {
    const bool holds =
        measured_ms >= 0.97 * identity_ms - 1 && measured_ms <= 1.05 * identity_ms + 4;
    rows_.push_back({{"what", what},
                     {"measured_ms", measured_ms},
                     {"identity_ms", identity_ms},
                     {"holds", holds}});
    good_ = good_ && holds;
  }

  c10::Device device_;
  nlohmann::ordered_json rows_ = nlohmann::ordered_json::array();
  bool good_ = true;
};

int main(std::string_view name) {
  if (name != "cpu" && name != "cuda") {
    fmt::print(stderr, "overlap_times: expected cpu or cuda, found \"{}\"\n", name);
    return 2;
  }
  const c10::Device device = name == "cpu" ? c10::Device(c10::kCPU) : c10::Device(c10::kCUDA, 0);
  if (!device.is_cpu()) {
    try {
      dist::use_cuda(device);
    } catch (const InputError& error) {
      fmt::print(stderr, "overlap_times: {}\n", error.what());
      return 77;
    }
  }
  Work::of_program().prepare(device);
  Identities identities(device);
  identities.check();
  fmt::print("{}\n", identities.rows().dump());
  return identities.good() ? 0 : 1;
}

}  // namespace
}  // namespace shardlens

int main(int argc, char** argv) {
  try {
    return shardlens::main(argc > 1 ? argv[1] : "cuda");
  } catch (const std::exception& error) {
    fmt::print(stderr, "overlap_times: {}\n", error.what());
    return 1;
  }
}
