#include "sim/cost/gemm_model.h"

#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

namespace shardlens::sim::test {
namespace {

// 132 blocks fill the 132 SMs of an H100 in one wave; with 24 taken by an all-gather they need two,
// and one block more needs two anyway. Source: NVIDIA developer forum 337991 (132 blocks: 80 % to
// 47 % of peak, a factor of 1.7).
TEST(GemmModelTest, AWaveMoreWhenCommunicationTakesSms) {
  const GpuSpec gpu = load_hardware("8xH100").gpu;
  // 12 x 11 tiles of 256 x 128, and k so long that no other tiling is faster.
  const auto us = [&gpu](int64_t rows, int64_t sms) {
    return gemm_us(gpu, DType::kBF16, 1, rows, 11 * 256, 8192, sms);
  };
  const double alone = us(12 * 128, 132), beside = us(12 * 128, 108);
  EXPECT_GT(beside / alone, 1.25);
  EXPECT_LT(beside / alone, 2.0);
  EXPECT_EQ(us(12 * 128, 132), us(12 * 128 - 100, 132));  // the last row of tiles is not full
}

// The measured products to which the constants were fitted: the model must follow all of them with
// four constants.
TEST(GemmModelTest, FollowsTheMeasuredTables) {
  std::ifstream in(std::string(SHARDLENS_TEST_DATA) + "/measured/gemm_bf16.csv");
  const std::map<std::string, GpuSpec> gpus{{"sm_90", load_hardware("8xH100").gpu},
                                            {"sm_100_B200", load_hardware("8xB200").gpu}};
  std::map<std::string, std::pair<double, int>> errors, large;
  std::string line;
  while (std::getline(in, line)) {
    std::istringstream fields(line);
    std::string device, cell;
    std::getline(fields, device, ',');
    const auto gpu = gpus.find(device);
    if (gpu == gpus.end()) {
      continue;  // the heading
    }
    double value[5];
    for (double& each : value) {
      std::getline(fields, cell, ',');
      each = std::stod(cell);
    }
    const double operations = 2 * value[0] * value[1] * value[2] * value[3];
    const double us =
        gemm_us(gpu->second, DType::kBF16, std::llround(value[0]), std::llround(value[1]),
                std::llround(value[2]), std::llround(value[3]), gpu->second.sms);
    const double error = std::abs(us / (operations / value[4] / 1e6) - 1);
    errors[device].first += error;
    ++errors[device].second;
    if (operations >= 2e9) {
      large[device].first += error;
      ++large[device].second;
    }
  }
  for (const auto& [device, sum] : errors) {
    EXPECT_EQ(sum.second, 375) << device;
    EXPECT_LT(sum.first / sum.second, 0.07) << device;
    EXPECT_LT(large[device].first / large[device].second, 0.06) << device;
  }
  EXPECT_EQ(errors.size(), 2U);
}

// Azure/AI-benchmarking-guide@8fd0c6e, fp16 products on A100, from which only the efficiency was
// taken.
TEST(GemmModelTest, A100) {
  const GpuSpec gpu = load_hardware("8xA100-80").gpu;
  for (const auto& [n, tflops] : {std::pair{4096, 228.0}, {8192, 254.0}, {16384, 257.0}}) {
    const double us = gemm_us(gpu, DType::kF16, 1, n, n, n, gpu.sms);
    EXPECT_NEAR(2.0 * n * n * n / us / 1e6, tflops, 0.05 * tflops) << n;
  }
}

}  // namespace
}  // namespace shardlens::sim::test
