// Shards and records a user-defined model. docs/reference/library.md explains the code.
//
//   own_model OUT      trains three steps as rank 0 of an emulated world of 8 ranks and writes the
//                      recording to folder OUT

#include <shardlens/core/dist/world.h>
#include <shardlens/core/fsdp/apply/fully_shard.h>
#include <shardlens/core/module/hookable.h>
#include <shardlens/profiler/record/session.h>

#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width)
      : linear(register_module("linear", torch::nn::Linear(width, width))) {}
  at::Tensor forward(const at::Tensor& x) { return x + at::relu(linear(x)); }
  torch::nn::Linear linear;
};
SHARDLENS_MODULE(Block);  // instead of TORCH_MODULE: a module that can be a unit

struct NetImpl : torch::nn::Module {
  explicit NetImpl(int64_t width)
      : blocks(register_module("blocks", torch::nn::Sequential(Block(width), Block(width)))),
        head(register_module("head", torch::nn::Linear(width, 1))) {}
  at::Tensor forward(const at::Tensor& x) { return head(blocks->forward(x)); }
  torch::nn::Sequential blocks;
  torch::nn::Linear head;
};
SHARDLENS_MODULE(Net);

int main(int argc, char** argv) {
  using namespace shardlens;
  record::Session session(
      {.spool = {.directory = argc > 1 ? argv[1] : "capture", .world_size = 8}});
  const auto world = dist::World::join(
      {.backend = dist::BackendKind::kEmulated, .world_size = 8, .recorder = &session.recorder()});
  Net net(64);
  const auto plan = plan::parse_plan(
      R"({"version": 1, "units": [{"modules": "blocks.*"}, {"modules": ""}]})", "plan");
  const auto sharded =
      fsdp::fully_shard(net.ptr(), plan, {.world = world.get(), .recorder = &session.recorder()});
  torch::optim::AdamW optimizer(net->parameters());
  for (int k = 0; k < 3; ++k) {
    const auto step = session.step();
    net(at::randn({16, 64})).pow(2).mean().backward();
    optimizer.step();
    sharded->optimizer_done();
    sharded->zero_grad();
  }
}
