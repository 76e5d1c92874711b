#include "sim/cost/gpu_cost_model.h"

#include <cmath>

#include <gtest/gtest.h>

namespace shardlens::sim::test {
namespace {

plan::Operator elementwise(Bytes read, Bytes written) {
  plan::Operator op;
  op.kind = plan::OperatorKind::kElementwise;
  op.dtype = DType::kBF16;
  op.read = read;
  op.written = written;
  return op;
}

// Azure/AI-benchmarking-guide@8fd0c6e: copies at 1.61, 2.90 and 4.01 TB/s.
TEST(GpuCostModelTest, CopiesAtTheMeasuredBandwidth) {
  const Bytes gigabyte = 1'000'000'000;
  for (const auto& [spec, tbps] :
       {std::pair{"8xA100-80", 1.61}, {"8xH100", 2.90}, {"8xH200", 4.01}}) {
    const GpuCostModel model(load_hardware(spec));
    const double us = 2e9 / (tbps * 1e6);
    EXPECT_NEAR(static_cast<double>(model.copy(gigabyte, gigabyte)) / 1e3, us, 0.01 * us);
    EXPECT_EQ(model.compute(elementwise(gigabyte, gigabyte)).alone, model.copy(gigabyte, gigabyte));
  }
}

TEST(GpuCostModelTest, CommunicationBesideSlowsEverythingDown) {
  const GpuCostModel model(load_hardware("8xH100"));
  plan::Operator gemm = elementwise(0, 0);
  gemm.kind = plan::OperatorKind::kGemm;
  gemm.m = gemm.n = gemm.k = 8192;
  gemm.flops = 2LL * 8192 * 8192 * 8192;
  plan::Operator attention = gemm;
  attention.kind = plan::OperatorKind::kAttention;
  for (const plan::Operator& op : {gemm, attention, elementwise(1 << 30, 1 << 30)}) {
    const WorkTime time = model.compute(op);
    EXPECT_GT(time.alone, 0);
    EXPECT_GT(time.beside, time.alone);
    EXPECT_LT(static_cast<double>(time.beside), 2.0 * static_cast<double>(time.alone));
  }
}

// Half of the square at 328 TFLOP/s.
TEST(GpuCostModelTest, Attention) {
  const GpuCostModel model(load_hardware("8xH100"));
  plan::Operator op = elementwise(1, 1);
  op.kind = plan::OperatorKind::kAttention;
  op.flops = 656'000'000'000;
  EXPECT_EQ(model.compute(op).alone, 1'000'000);
  op.phase = plan::Phase::kBackward;
  EXPECT_EQ(model.compute(op).alone, std::llround(1e6 / 0.86));
}

TEST(GpuCostModelTest, AViewCostsNothing) {
  const GpuCostModel model(load_hardware("8xH100"));
  EXPECT_EQ(model.compute(elementwise(0, 0)), WorkTime());
  EXPECT_EQ(model.issue(elementwise(0, 0)), 0);
  EXPECT_EQ(model.compute(elementwise(4, 4)).alone, 2000);  // no kernel is shorter
}

}  // namespace
}  // namespace shardlens::sim::test
