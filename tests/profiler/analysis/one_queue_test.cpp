// Devices that run all streams as one queue.
#include <filesystem>
#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "profiler/analysis/analysis.h"
#include "profiler/report/analysis_report.h"
#include "profiler/trace/run.h"

namespace shardlens::analysis {
namespace {

using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;

// FSDP2 with 4 layers and 3 steps on a machine of which all is known: launches take 3 us, gathers
// 800 us, reductions 900 us, a layer's compute 1000 us forward and 2000 us backward.
// overlap_rank0: each stream runs when its work is ready. rank0: all streams run in the order of
// the launches.
Analysis analyzed(const char* name) {
  return analyze(trace::Run::open(fs::path(SHARDLENS_TEST_DATA) / "one_queue" / name));
}

// The cause of each part of each unit, by "layers.0 reduce_scatter".
std::map<std::string, ExposedCause> causes(const Analysis& analysis) {
  std::map<std::string, ExposedCause> out;
  for (const UnitFigures& unit : analysis.ranks.at(0).units) {
    for (size_t i = 0; i < unit.parts.size(); ++i) {
      if (unit.parts[i] && unit.parts[i]->cause) {
        out.emplace(unit.fqn + " " + std::string(name_of(static_cast<UnitPart>(i))),
                    *unit.parts[i]->cause);
      }
    }
  }
  return out;
}

TEST(OneQueueTest, NothingRunsBesideACollectiveBecauseOfTheQueue) {
  const Analysis analysis = analyzed("rank0.json.gz");
  EXPECT_EQ(analysis.ranks.at(0).figures.overlap, 0);
  const auto found = causes(analysis);
  // All 12 parts are exposed. The first gather and the last reduction have nothing to run
  // concurrently with.
  ASSERT_EQ(found.size(), 12U);
  for (const auto& [part, cause] : found) {
    const ExposedCause expected = part == "layers.0 all_gather_forward" ? ExposedCause::kFirst
                                  : part == "layers.0 reduce_scatter"   ? ExposedCause::kLast
                                                                        : ExposedCause::kOneQueue;
    EXPECT_EQ(cause, expected) << part;
  }
  const std::string text = report::analysis_text(analysis, {});
  EXPECT_THAT(text, HasSubstr("one hardware queue"));
  EXPECT_THAT(text, HasSubstr("CUDA_DEVICE_MAX_CONNECTIONS"));
  EXPECT_THAT(report::analysis_json(analysis), HasSubstr(R"("cause":"one_hardware_queue")"));
}

TEST(OneQueueTest, TheSameProgramWithAQueueForEachStreamHasOtherCauses) {
  const Analysis analysis = analyzed("overlap_rank0.json.gz");
  EXPECT_GT(analysis.ranks.at(0).figures.overlap, 0);
  for (const auto& [part, cause] : causes(analysis)) {
    EXPECT_NE(cause, ExposedCause::kOneQueue) << part;
  }
  EXPECT_THAT(report::analysis_text(analysis, {}), Not(HasSubstr("one hardware queue")));
}

}  // namespace
}  // namespace shardlens::analysis
