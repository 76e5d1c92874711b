#include <cstdlib>
#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "profiler/analysis/figures/exposed_time.h"
#include "profiler/analysis/figures/window_figures.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/kineto/kineto_reader.h"

namespace shardlens {
namespace {

// Three units (two blocks and the root) of full_shard: a step gathers 3 for forward and the blocks
// again for backward, and reduces 3.
TEST(OwnModelTest, IsShardedAndCaptured) {
  const std::filesystem::path out =
      std::filesystem::path(testing::TempDir()) / ("own_model_" + std::to_string(::getpid()));
  ::unsetenv("WORLD_SIZE");
  ASSERT_EQ(std::system((SHARDLENS_BIN_DIR "/own_model " + out.string()).c_str()), 0);
  const trace::Trace trace = trace::read_kineto(out / "rank0.pt.trace.json.gz");
  std::filesystem::remove_all(out);
  EXPECT_THAT(trace.units, testing::ElementsAre("", "blocks.0", "blocks.1"));
  EXPECT_EQ(trace.metadata.world_size, 8);
  const analysis::Timeline timeline = analysis::make_timeline(trace);
  EXPECT_EQ(timeline.steps.size(), 3U);
  const auto kinds = analysis::Partition(timeline).figures(timeline.span).collectives;
  EXPECT_EQ(kinds.at(CollectiveKind::kAllGather).count, 3 * (3 + 2));
  EXPECT_EQ(kinds.at(CollectiveKind::kReduceScatter).count, 3 * 3);
  for (const analysis::Collective& each : timeline.collectives) {
    EXPECT_TRUE(each.unit);
  }
}

}  // namespace
}  // namespace shardlens
