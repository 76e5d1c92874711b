#include "core/models/ops.h"

#include <limits>
#include <string>

#include <gtest/gtest.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function.h>

#include "core/models/attention_ops.h"

namespace shardlens::models {
namespace {

// The expected values are the definitions written with aten operators in double precision.

at::Tensor leaf(const at::Tensor& tensor) {
  return tensor.detach().clone().set_requires_grad(true);
}

void expect_close(const at::Tensor& found, const at::Tensor& wanted, const char* what) {
  EXPECT_TRUE(at::allclose(found.to(at::kDouble), wanted, 2e-5, 2e-6))
      << what << ": largest difference " << (found - wanted).abs().max().item<double>();
}

class OpsTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    auto generator = at::globalContext().defaultGenerator(at::kCPU);
    generator.set_current_seed(3);
    at::set_num_threads(GetParam());
  }
  void TearDown() override { at::set_num_threads(1); }
};
INSTANTIATE_TEST_SUITE_P(Threads, OpsTest, ::testing::Values(1, 2), [](const auto& each) {
  return "threads_" + std::to_string(each.param);
});

// Under these names nodes are in traces.
TEST_P(OpsTest, NodesHaveShortNames) {
  const at::Tensor x = leaf(at::randn({3, 12}));
  const at::Tensor weight = leaf(at::randn({20, 12}));
  EXPECT_EQ(project(x, weight, at::Tensor(), /*transposed=*/true).grad_fn()->name(),
            "ProjectBackward");
  EXPECT_EQ(silu_multiply(x, x).grad_fn()->name(), "SiluMultiplyBackward");
}

TEST_P(OpsTest, ProjectAndItsGradients) {
  for (const bool transposed : {true, false}) {
    for (const bool with_bias : {true, false}) {
      const at::Tensor x = leaf(at::randn({3, 17, 12}));
      const at::Tensor weight = leaf(transposed ? at::randn({20, 12}) : at::randn({12, 20}));
      const at::Tensor bias = with_bias ? leaf(at::randn({20})) : at::Tensor();
      const at::Tensor grad = at::randn({17, 3, 20}).transpose(0, 1);
      const at::Tensor out = project(x, weight, bias, transposed);
      out.backward(grad);
      const at::Tensor xd = leaf(x.to(at::kDouble));
      const at::Tensor wd = leaf(weight.to(at::kDouble));
      at::Tensor expected = xd.matmul(transposed ? wd.t() : wd);
      if (with_bias) {
        expected = expected + bias.detach().to(at::kDouble);
      }
      expected.backward(grad.to(at::kDouble));
      expect_close(out, expected, "output");
      expect_close(x.grad(), xd.grad(), "input gradient");
      expect_close(weight.grad(), wd.grad(), "weight gradient");
      EXPECT_TRUE(weight.grad().is_contiguous());
      if (with_bias) {
        expect_close(bias.grad(), grad.to(at::kDouble).sum(at::IntArrayRef({0, 1})),
                     "bias gradient");
      }
    }
  }
}

TEST_P(OpsTest, RmsNormAndItsGradients) {
  for (const int64_t features : {1, 7, 64, 300}) {
    const at::Tensor x = leaf(at::randn({2, 333, features}) * 3);
    const at::Tensor weight = leaf(at::rand({features}));
    const at::Tensor grad = at::randn({2, 333, features});
    const at::Tensor out = rms_norm(x, weight, 1e-6);
    out.backward(grad);
    const at::Tensor xd = leaf(x.to(at::kDouble));
    const at::Tensor wd = leaf(weight.to(at::kDouble));
    const at::Tensor expected = wd * (xd * at::rsqrt(xd.pow(2).mean(-1, true) + 1e-6));
    expected.backward(grad.to(at::kDouble));
    expect_close(out, expected, "output");
    expect_close(x.grad(), xd.grad(), "input gradient");
    EXPECT_TRUE(at::allclose(weight.grad().to(at::kDouble), wd.grad(), 1e-4, 1e-4));
  }
}

TEST_P(OpsTest, RmsNormWithAnOffset) {
  const at::Tensor x = leaf(at::randn({2, 33, 20}) * 3);
  const at::Tensor weight = leaf(at::randn({20}));
  const at::Tensor grad = at::randn({2, 33, 20});
  const at::Tensor out = rms_norm(x, weight, 1e-6, 1.0);
  out.backward(grad);
  const at::Tensor xd = leaf(x.to(at::kDouble));
  const at::Tensor wd = leaf(weight.to(at::kDouble));
  const at::Tensor expected = (1 + wd) * (xd * at::rsqrt(xd.pow(2).mean(-1, true) + 1e-6));
  expected.backward(grad.to(at::kDouble));
  expect_close(out, expected, "output");
  expect_close(x.grad(), xd.grad(), "input gradient");
  EXPECT_TRUE(at::allclose(weight.grad().to(at::kDouble), wd.grad(), 1e-4, 1e-4));
}

TEST_P(OpsTest, SoftCapAndItsGradient) {
  const at::Tensor x = leaf(at::randn({30, 40}) * 10);
  const at::Tensor grad = at::randn({30, 40});
  const at::Tensor out = soft_cap(x, 5.0);
  out.backward(grad);
  const at::Tensor xd = leaf(x.to(at::kDouble));
  const at::Tensor expected = at::tanh(xd / 5.0) * 5.0;
  expected.backward(grad.to(at::kDouble));
  expect_close(out, expected, "output");
  expect_close(x.grad(), xd.grad(), "gradient");
}

// Two queries share a key; a mask with a window of 6 tokens, and none.
TEST_P(OpsTest, CappedAttentionAndItsGradients) {
  const at::Tensor allowed =
      at::ones({17, 17}, at::kBool).tril().logical_and(at::ones({17, 17}, at::kBool).triu(-5));
  const at::Tensor window = at::zeros({17, 17}).masked_fill(
      allowed.logical_not(), -std::numeric_limits<float>::infinity());
  for (const at::Tensor& mask : {window, at::Tensor()}) {
    const at::Tensor q = leaf(at::randn({3, 17, 4, 8}) * 2);
    const at::Tensor k = leaf(at::randn({3, 17, 2, 8}) * 2);
    const at::Tensor v = leaf(at::randn({3, 17, 2, 8}));
    const at::Tensor grad = at::randn({3, 17, 4, 8});
    const at::Tensor out = capped_attention(q, k, v, mask, 0.3, 2.0);
    out.backward(grad);
    const at::Tensor qd = leaf(q.to(at::kDouble));
    const at::Tensor kd = leaf(k.to(at::kDouble));
    const at::Tensor vd = leaf(v.to(at::kDouble));
    const auto repeated = [](const at::Tensor& x) {
      return x.repeat_interleave(2, 2).transpose(1, 2);
    };
    at::Tensor scores = qd.transpose(1, 2).matmul(repeated(kd).transpose(2, 3)) * 0.3;
    scores = at::tanh(scores / 2.0) * 2.0;
    if (mask.defined()) {
      scores = scores + mask.to(at::kDouble);
    }
    const at::Tensor expected = scores.softmax(-1).matmul(repeated(vd)).transpose(1, 2);
    expected.backward(grad.to(at::kDouble));
    expect_close(out, expected, "output");
    expect_close(q.grad(), qd.grad(), "gradient of queries");
    expect_close(k.grad(), kd.grad(), "gradient of keys");
    expect_close(v.grad(), vd.grad(), "gradient of values");
  }
}

TEST_P(OpsTest, RotaryAndItsGradient) {
  const at::Tensor angle = at::randn({65, 1, 8});
  const at::Tensor cos = at::cat({angle.cos(), angle.cos()}, -1);
  const at::Tensor sin = at::cat({angle.sin(), angle.sin()}, -1);
  const at::Tensor x = leaf(at::randn({3, 65, 5, 16}));
  const at::Tensor grad = at::randn({3, 5, 65, 16}).transpose(1, 2);  // as attention returns it
  const at::Tensor out = rotary(x, cos, sin);
  out.backward(grad);
  const at::Tensor xd = leaf(x.to(at::kDouble));
  const at::Tensor half = at::cat({-xd.narrow(-1, 8, 8), xd.narrow(-1, 0, 8)}, -1);
  const at::Tensor expected = xd * cos.to(at::kDouble) + half * sin.to(at::kDouble);
  expected.backward(grad.to(at::kDouble));
  expect_close(out, expected, "output");
  expect_close(x.grad(), xd.grad(), "gradient");
}

TEST_P(OpsTest, SiluMultiplyAndItsGradients) {
  const at::Tensor gate = leaf(at::randn({300, 301}) * 20);  // into saturation on both sides
  const at::Tensor up = leaf(at::randn({300, 301}));
  const at::Tensor grad = at::randn({300, 301});
  const at::Tensor out = silu_multiply(gate, up);
  out.backward(grad);
  const at::Tensor gd = leaf(gate.to(at::kDouble));
  const at::Tensor ud = leaf(up.to(at::kDouble));
  const at::Tensor expected = at::silu(gd) * ud;
  expected.backward(grad.to(at::kDouble));
  expect_close(out, expected, "output");
  expect_close(gate.grad(), gd.grad(), "gate gradient");
  expect_close(up.grad(), ud.grad(), "up gradient");
}

TEST_P(OpsTest, NotANumberPassesThrough) {
  at::Tensor gate = at::randn({16});
  gate[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(silu_multiply(gate, at::randn({16}))[3].item<float>()));
  EXPECT_TRUE(std::isnan(rms_norm(gate.view({1, 16}), at::rand({16}), 1e-6)[0][0].item<float>()));
}

TEST_P(OpsTest, HalfPrecisionRunsTheDefinition) {
  const at::Tensor x = at::randn({4, 64}).to(at::kBFloat16);
  const at::Tensor weight = at::rand({64}).to(at::kBFloat16);
  const at::Tensor f = x.to(at::kFloat);
  const at::Tensor expected =
      weight * (f * at::rsqrt(f.pow(2).mean(-1, true) + 1e-6)).to(at::kBFloat16);
  EXPECT_TRUE(at::equal(rms_norm(x, weight, 1e-6), expected));
}

}  // namespace
}  // namespace shardlens::models
