// Host time of sharding: one process, rank 0 of an emulated world of 8 whose collectives take no
// time, and a chain of units of two Linear(16, 16) each. Prints the median time of a step (forward
// and backward of a batch of 4), sharded and not sharded, as JSON. bench/host_cost.py compares it
// with PyTorch FSDP2 on PyTorch's fake process group.

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <ATen/Parallel.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>

#include "core/base/median.h"
#include "core/dist/world.h"
#include "core/fsdp/apply/fully_shard.h"
#include "core/module/hookable.h"
#include "core/plan/plan.h"
#include "sim/cost/alpha_beta_timer.h"

namespace {

constexpr int64_t kFeatures = 16;

struct PairImpl : torch::nn::Module {
  PairImpl() {
    first = register_module("first", torch::nn::Linear(kFeatures, kFeatures));
    second = register_module("second", torch::nn::Linear(kFeatures, kFeatures));
  }
  at::Tensor forward(const at::Tensor& x) { return second(first(x)); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};
SHARDLENS_MODULE(Pair);

struct ChainImpl : torch::nn::Module {
  explicit ChainImpl(int64_t units) {
    auto list = register_module("units", torch::nn::ModuleList());
    for (int64_t i = 0; i < units; ++i) {
      pairs.emplace_back();
      list->push_back(pairs.back());
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor out = x;
    for (Pair& pair : pairs) {
      out = pair(out);
    }
    return out;
  }
  std::vector<Pair> pairs;
};
SHARDLENS_MODULE(Chain);

double median_ms(int64_t steps, const std::function<void()>& step) {
  std::vector<double> times;
  for (int64_t i = -10; i < steps; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    step();
    const std::chrono::duration<double, std::milli> elapsed =
        std::chrono::steady_clock::now() - begin;
    if (i >= 0) {  // the first ten warm up
      times.push_back(elapsed.count());
    }
  }
  return shardlens::upper_median(times);
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t units = argc > 1 ? std::atoll(argv[1]) : 32;
  const int64_t steps = argc > 2 ? std::atoll(argv[2]) : 200;
  const std::string layout = argc > 3 ? argv[3] : "flat";
  at::set_num_threads(1);
  const at::Tensor input = at::randn({4, kFeatures});

  Chain plain(units);
  const double plain_ms = median_ms(steps, [&] {
    plain(input).sum().backward();
    plain->zero_grad();
  });

  using namespace shardlens;  // NOLINT(google-build-using-namespace): one function of a benchmark
  dist::WorldOptions world_options;
  world_options.backend = dist::BackendKind::kEmulated;
  world_options.world_size = 8;
  world_options.timer =
      std::make_shared<sim::AlphaBetaTimer>(sim::AlphaBetaTimer::parse("ab:0:inf"));
  const auto world = dist::World::join(world_options);
  Chain chain(units);
  fsdp::Options options;
  options.world = world.get();
  const auto sharded = fsdp::fully_shard(
      chain.ptr(),
      plan::parse_plan(
          R"({"version": 1, "units": [{"modules": "units.*"}, {"modules": ""}], "layout": ")" +
              layout + "\"}",
          "host_cost"),
      options);
  const double sharded_ms = median_ms(steps, [&] {
    chain(input).sum().backward();
    sharded->zero_grad();
  });
  fmt::print(R"({{"units": {}, "plain_ms": {}, "sharded_ms": {}}})"
             "\n",
             units, plain_ms, sharded_ms);
  return 0;
}
