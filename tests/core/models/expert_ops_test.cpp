#include "core/models/expert_ops.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>

namespace shardlens::models {
namespace {

at::Tensor leaf_of(const at::Tensor& tensor, at::ScalarType dtype) {
  return tensor.detach().to(dtype).clone().set_requires_grad(true);
}

struct ExpertCase {
  int threads = 1;
  at::ScalarType dtype = at::kFloat;
  double tolerance = 2e-5;
};

class ExpertOpsTest : public ::testing::TestWithParam<ExpertCase> {
 protected:
  void SetUp() override {
    auto generator = at::globalContext().defaultGenerator(at::kCPU);
    generator.set_current_seed(5);
    at::set_num_threads(GetParam().threads);
  }
  void TearDown() override { at::set_num_threads(1); }
};
INSTANTIATE_TEST_SUITE_P(Experts,
                         ExpertOpsTest,
                         ::testing::Values(ExpertCase{1},
                                           ExpertCase{2},
                                           ExpertCase{1, at::kBFloat16, 4e-2}),
                         [](const auto& each) {
                           return (each.param.dtype == at::kFloat ? "fp32_" : "bf16_") +
                                  std::to_string(each.param.threads);
                         });

// The parameters and inputs of a layer's experts.
struct Layer {
  at::Tensor x, scales, gate_up, down;

  [[nodiscard]] Layer with(at::ScalarType dtype, at::ScalarType scales_dtype) const {
    return {leaf_of(x, dtype), leaf_of(scales, scales_dtype), leaf_of(gate_up, dtype),
            leaf_of(down, dtype)};
  }
};

at::Tensor grouped(const Layer& layer, const at::Tensor& chosen) {
  const Routing routing = route(chosen, layer.gate_up.size(0));
  const at::Tensor rows = gather_rows(layer.x, routing);
  const at::Tensor inner = silu_gate(grouped_mm(rows, layer.gate_up, routing));
  return weighted_sum(grouped_mm(inner, layer.down, routing), layer.scales, routing);
}

// One row and one of its experts after the other, as in the definition.
at::Tensor naive(const Layer& layer, const at::Tensor& chosen) {
  std::vector<at::Tensor> sums;
  for (int64_t row = 0; row < layer.x.size(0); ++row) {
    at::Tensor sum = at::zeros_like(layer.x[row]);
    for (int64_t k = 0; k < chosen.size(1); ++k) {
      const auto expert = chosen[row][k].item<int64_t>();
      const auto halves = layer.gate_up[expert].matmul(layer.x[row]).chunk(2, 0);
      sum = sum + layer.scales[row][k] * layer.down[expert].matmul(at::silu(halves[0]) * halves[1]);
    }
    sums.push_back(sum);
  }
  return at::stack(sums);
}

void expect_like(const at::Tensor& found,
                 const at::Tensor& wanted,
                 double tolerance,
                 const char* what) {
  const double scale = wanted.abs().max().item<double>();
  EXPECT_LE((found.to(at::kDouble) - wanted).abs().max().item<double>(), tolerance * scale) << what;
}

// Expert 2 gets no row, and expert 4 half of them.
TEST_P(ExpertOpsTest, EqualALoopOverRowsAndExperts) {
  const at::Tensor chosen =
      at::tensor({0, 4, 4, 1, 3, 4, 1, 0, 4, 3, 0, 3, 4, 5}, at::kLong).view({7, 2});
  const Layer drawn{at::randn({7, 12}), at::rand({7, 2}), at::randn({6, 20, 12}),
                    at::randn({6, 12, 10})};
  const at::Tensor grad = at::randn({7, 12}).to(GetParam().dtype);
  // In bf16 the weights of the experts are fp32, as mixtral's are.
  const Layer own = drawn.with(GetParam().dtype, at::kFloat);
  const at::Tensor out = grouped(own, chosen);
  EXPECT_EQ(out.scalar_type(), GetParam().dtype);
  out.backward(grad);
  Layer wide = own.with(at::kDouble, at::kDouble);
  const at::Tensor expected = naive(wide, chosen);
  expected.backward(grad.to(at::kDouble));
  const double tolerance = GetParam().tolerance;
  expect_like(out, expected, tolerance, "output");
  expect_like(own.x.grad(), wide.x.grad(), tolerance, "input");
  expect_like(own.scales.grad(), wide.scales.grad(), tolerance, "weights of the experts");
  expect_like(own.gate_up.grad(), wide.gate_up.grad(), tolerance, "gate and up");
  expect_like(own.down.grad(), wide.down.grad(), tolerance, "down");
  EXPECT_EQ(own.down.grad()[2].abs().max().item<double>(), 0.0);
}

TEST_P(ExpertOpsTest, AFrozenWeightGetsNoGradient) {
  const at::Tensor chosen = at::tensor({0, 1, 1, 2}, at::kLong).view({2, 2});
  const Layer layer =
      Layer{at::randn({2, 4}), at::rand({2, 2}), at::randn({3, 6, 4}), at::randn({3, 4, 3})}.with(
          GetParam().dtype, GetParam().dtype);
  layer.gate_up.set_requires_grad(false);
  grouped(layer, chosen).sum().backward();
  EXPECT_FALSE(layer.gate_up.grad().defined());
  EXPECT_TRUE(layer.down.grad().defined() && layer.x.grad().defined());
}

// 4 rows with 2 experts each: by hand.
TEST(RoutingTest, SortsCopiesByExpert) {
  const Routing routing = route(at::tensor({2, 0, 0, 3, 3, 2, 0, 3}, at::kLong).view({4, 2}), 5);
  const auto expect = [](const at::Tensor& found, std::vector<int64_t> wanted) {
    EXPECT_TRUE(at::equal(found, at::tensor(wanted, at::kLong))) << found;
  };
  expect(routing.place, {3, 0, 1, 5, 6, 4, 2, 7});
  expect(routing.copy, {1, 2, 6, 0, 5, 3, 4, 7});
  expect(routing.row, {0, 1, 3, 0, 2, 1, 2, 3});
  EXPECT_EQ(routing.ends, (std::vector<int64_t>{3, 3, 5, 8, 8}));
  EXPECT_EQ(routing.per_row, 2);
}

}  // namespace
}  // namespace shardlens::models
