// Gradients of many microbatches without sync.
#include <string>

#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <torch/nn/module.h>

#include "core/fsdp/apply/fully_shard.h"
#include "core/module/hookable.h"
#include "tests/support/ranks.h"

namespace shardlens::fsdp {
namespace {

// The sum of its input scaled by `a` or, if `both`, by `a` and `b`: the gradient is the input.
struct ScaledImpl : torch::nn::Module {
  ScaledImpl()
      : a(register_parameter("a", at::ones({5}))), b(register_parameter("b", at::ones({3, 2}))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor first = (x.narrow(0, 0, 5) * a).sum();
    return both ? first + (x.view({3, 2}) * b).sum() : first;
  }
  at::Tensor a, b;
  bool both = true;
};
SHARDLENS_MODULE(Scaled);

// In bf16, 256 + 1 = 256.
TEST(AccumulationTest, ManyMicrobatchesAddUpInReduceDtype) {
  for (const std::string layout : {"flat", "per_parameter"}) {
    test::run_ranks(2, [&](dist::World& world) {
      SCOPED_TRACE(layout);
      Scaled model;
      const auto sharded = fully_shard(
          model.ptr(),
          plan::parse_plan(R"({"version": 1, "units": [{"modules": ""}], "layout": ")" + layout +
                               R"(", "mixed_precision": {"param_dtype": "bf16",
                               "reduce_dtype": "fp32"}})",
                           "test"),
          {.world = &world, .check_ledger = true});
      for (int step = 0; step < 2; ++step) {
        const int microbatches = 500;
        for (int i = 0; i < microbatches; ++i) {
          model->both = i >= 100;  // `b` joins the sum late
          sharded->set_requires_gradient_sync(i + 1 == microbatches);
          model(at::ones({6})).backward();
        }
        const at::Tensor a = model->a.grad(), b = model->b.grad();
        EXPECT_TRUE(a.equal(at::full_like(a, 500))) << a;
        EXPECT_TRUE(b.equal(at::full_like(b, 400))) << b;
        sharded->zero_grad();
        sharded->optimizer_done();
      }
    });
  }
}

}  // namespace
}  // namespace shardlens::fsdp
