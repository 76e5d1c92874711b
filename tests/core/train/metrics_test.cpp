#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/train/training_metrics.h"
#include "tests/core/weights/checkpoint_builder.h"

namespace shardlens::train {
namespace {

using models::testing::TemporaryDirectory;
using nlohmann::json;

std::vector<json> lines_of(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::vector<json> out;
  for (std::string line; std::getline(in, line);) {
    out.push_back(json::parse(line));
  }
  return out;
}

TEST(MetricsFileTest, EachStepIsOnDiskAtOnceAndExact) {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "metrics.jsonl";
  MetricsFile metrics(path, /*emulated=*/false);
  metrics.write({.step = 0,
                 .loss = 5.5471873283386233,
                 .grad_norm = 1.0 / 3,
                 .step_ms = 2.5,
                 .tokens_per_s = 1e5});
  ASSERT_EQ(lines_of(path).size(), 1U);
  metrics.write({.step = 1,
                 .loss = 5,
                 .grad_norm = std::numeric_limits<double>::infinity(),
                 .step_ms = 1,
                 .tokens_per_s = 2,
                 .unsharded_bytes = 48,
                 .memory = DeviceMemory{.allocated_bytes = 7, .peak_allocated_bytes = 9}});
  const auto lines = lines_of(path);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0]["loss"].get<double>(), 5.5471873283386233);
  EXPECT_EQ(lines[0]["grad_norm"].get<double>(), 1.0 / 3);
  EXPECT_EQ(lines[1],
            json::parse(R"({"step":1,"loss":5.0,"grad_norm":null,"step_ms":1.0,"tokens_per_s":2.0,
                     "unsharded_bytes":48,"allocated_bytes":7,"peak_allocated_bytes":9})"));
}

TEST(MetricsFileTest, EmulatedRunsHaveNoLoss) {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "metrics.jsonl";
  MetricsFile metrics(path, /*emulated=*/true);
  metrics.write({.step = 0, .loss = 1, .grad_norm = 1, .step_ms = 1, .tokens_per_s = 1});
  const auto lines = lines_of(path);
  EXPECT_EQ(lines[0]["numerics"], "emulated");
  EXPECT_FALSE(lines[0].contains("loss"));
}

TEST(MetricsFileTest, NamesAnUnwritablePath) {
  EXPECT_THROW(MetricsFile("/nonexistent/metrics.jsonl", false), RuntimeFault);
}

}  // namespace
}  // namespace shardlens::train
