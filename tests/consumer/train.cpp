// train OUT: three steps of a small model as rank 0 of an emulated world of eight, recorded in OUT.
#include <shardlens/core/dist/world.h>
#include <shardlens/core/fsdp/apply/fully_shard.h>
#include <shardlens/core/module/hookable.h>
#include <shardlens/profiler/record/session.h>

#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width)
      : linear(register_module("linear", torch::nn::Linear(width, width))) {}
  at::Tensor forward(const at::Tensor& x) { return x + at::relu(linear(x)); }
  torch::nn::Linear linear;
};
SHARDLENS_MODULE(Block);

struct NetImpl : torch::nn::Module {
  explicit NetImpl(int64_t width)
      : blocks(register_module("blocks", torch::nn::Sequential(Block(width), Block(width)))) {}
  at::Tensor forward(const at::Tensor& x) { return blocks->forward(x); }
  torch::nn::Sequential blocks;
};
SHARDLENS_MODULE(Net);

int main(int argc, char** argv) {
  using namespace shardlens;
  record::Session session({.spool = {.directory = argc > 1 ? argv[1] : "out", .world_size = 8}});
  const auto world = dist::World::join(
      {.backend = dist::BackendKind::kEmulated, .world_size = 8, .recorder = &session.recorder()});
  Net net(32);
  const auto plan = plan::parse_plan(
      R"({"version": 1, "units": [{"modules": "blocks.*"}, {"modules": ""}]})", "plan");
  const auto sharded =
      fsdp::fully_shard(net.ptr(), plan, {.world = world.get(), .recorder = &session.recorder()});
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  for (int k = 0; k < 3; ++k) {
    const auto step = session.step();
    net(at::randn({4, 32})).pow(2).mean().backward();
    optimizer.step();
    sharded->optimizer_done();
    sharded->zero_grad();
  }
}
