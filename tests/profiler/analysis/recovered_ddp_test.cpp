// Plans of DDP's traces, compared with the buckets that DDP reported (<recording>.expected.json).
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/json/json_reader.h"
#include "profiler/analysis/recover/recovered_plan.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/run.h"
#include "tests/support/case_name.h"

namespace shardlens::analysis {
namespace {

using testing::HasSubstr;

const std::filesystem::path kRecordings =
    std::filesystem::path(SHARDLENS_TEST_DATA) / "pytorch_traces";

trace::Run read(const std::filesystem::path& path) {
  trace::ReadOptions options;
  options.keep_args = true;
  return trace::Run::open(path, options);
}

// llama-tiny cut to two layers, as it was recorded.
plan::ModuleTree recorded_model() {
  const std::filesystem::path path =
      std::filesystem::path(SHARDLENS_TEST_DATA) / "llama-tiny" / "config.json";
  nlohmann::json config = nlohmann::json::parse(plan::read_text_file(path));
  config["num_hidden_layers"] = 2;
  return plan::module_tree(plan::parse_model_config(config.dump(), path.string()));
}

class RecoveredDdpTest : public testing::TestWithParam<const char*> {};

TEST_P(RecoveredDdpTest, HasTheBucketsThatDdpHad) {
  const std::filesystem::path folder = kRecordings / GetParam();
  const RecoveredPlan found = recover_plan(read(folder).traces.front());
  const auto said = nlohmann::json::parse(plan::read_text_file(
      std::filesystem::path(SHARDLENS_TEST_DATA) / (std::string(GetParam()) + ".expected.json")));
  const plan::ModuleTree tree = recorded_model();
  ASSERT_EQ(found.buckets.size(), said["bytes"].size());
  for (size_t i = 0; i < found.buckets.size(); ++i) {
    EXPECT_EQ(found.buckets[i].bytes, said["bytes"][i].get<Bytes>()) << i;
    std::vector<int64_t> elements;
    for (const auto& name : said["parameters"][i]) {
      for (const plan::Parameter& parameter : tree.parameters) {
        if (parameter.fqn == name.get<std::string>()) {
          elements.push_back(parameter.numel);
        }
      }
    }
    EXPECT_EQ(found.buckets[i].gradients, elements) << i;
    EXPECT_EQ(found.buckets[i].dtype, DType::kF32);
  }
  EXPECT_EQ(found.world_size, 2);
}

TEST_P(RecoveredDdpTest, IsThePlanThatWasRun) {
  const std::filesystem::path folder = kRecordings / GetParam();
  const plan::Plan found = recover_plan(read(folder).traces.front()).plan;
  const plan::Plan ran = plan::load_plan(folder / "plan.json");
  EXPECT_EQ(found.units, ran.units);
  EXPECT_EQ(found.bucket_cap_mb, ran.bucket_cap_mb);
  EXPECT_EQ(found.gradient_as_bucket_view, ran.gradient_as_bucket_view);
  EXPECT_EQ(found.find_unused_parameters, ran.find_unused_parameters);
}

INSTANTIATE_TEST_SUITE_P(Recorded,
                         RecoveredDdpTest,
                         testing::Values("ddp-buckets", "ddp-accumulate"),
                         [](const auto& each) { return test::case_name(each.param); });

TEST(RecoveredDdp, KnowsMicrobatchesAndModules) {
  const RecoveredPlan one = recover_plan(read(kRecordings / "ddp-buckets").traces.front());
  EXPECT_EQ(one.accumulate, 1);
  EXPECT_TRUE(one.buckets.front().modules.empty());
  const RecoveredPlan two = recover_plan(read(kRecordings / "ddp-accumulate").traces.front());
  EXPECT_EQ(two.accumulate, 2);
  EXPECT_FALSE(two.sync_every_microbatch);
  // lm_head is the model's last Linear: two layers of seven and itself.
  EXPECT_EQ(two.buckets.front().modules.front(), "Linear_14");
  EXPECT_EQ(two.buckets.back().modules.back(), "Embedding_0");
}

TEST(RecoveredDdp, SaysWhatIsNotInTheTrace) {
  const trace::Run run = trace::Run::open(kRecordings / "ddp-buckets");  // without arguments
  const RecoveredPlan found = recover_plan(run.traces.front());
  EXPECT_EQ(found.buckets.size(), 6U);
  std::string notes;
  for (const trace::Diagnostic& each : found.diagnostics) {
    notes += each.message + "\n";
  }
  EXPECT_THAT(notes, HasSubstr("record_shapes=True"));
}

// ResNet-50 has 25,557,032 parameters (He et al. 2015; torchvision's table of models).
TEST(RecoveredDdp, ReadsNcclTraces) {
  const std::filesystem::path path =
      SHARDLENS_OTHER_TRACES "/third_party/nccl_parser_config/nccl_data.json.gz";
  if (!std::filesystem::exists(path)) {
    GTEST_SKIP() << path << " is absent";
  }
  const RecoveredPlan found = recover_plan(read(path).traces.front());
  int64_t parameters = 0;
  for (const RecoveredBucket& each : found.buckets) {
    parameters += each.numel;
  }
  EXPECT_EQ(found.buckets.size(), 5U);
  EXPECT_EQ(parameters, 25'557'032);
  EXPECT_EQ(found.world_size, 2);
}

TEST(DdpAttribution, AllReducesBelongToTheirBuckets) {
  for (const auto& [name, first] :
       {std::pair{"ddp-buckets", "bucket 0"}, {"ddp-accumulate", "bucket 0 (Linear_14"}}) {
    const trace::Run run = read(kRecordings / name);
    const Timeline timeline = make_timeline(run.traces.front());
    std::vector<std::string> units;
    for (const Collective& each : timeline.collectives) {
      if (each.kind == CollectiveKind::kAllReduce) {
        ASSERT_TRUE(each.unit) << name;
        units.push_back(timeline.units[*each.unit]);
        EXPECT_EQ(each.part, UnitPart::kAllReduce);
        EXPECT_TRUE(each.needed_at);
      } else {
        EXPECT_FALSE(each.unit) << name;  // DDP's own broadcast
      }
    }
    ASSERT_FALSE(units.empty());
    EXPECT_THAT(units.front(), HasSubstr(first));
  }
}

// Before torch 2.1 a call had no size; the gradients in the bucket have.
TEST(DdpAttribution, BucketsAreAsLargeAsTheirGradients) {
  trace::Run run = read(kRecordings / "ddp-buckets");
  trace::Trace& trace = run.traces.front();
  const RecoveredPlan expected = recover_plan(trace);
  for (uint32_t i = 0; i < trace.events.size(); ++i) {
    if (parse_collective(trace.name(trace.events[i])) == CollectiveKind::kAllReduce) {
      trace.set_args(i, "{}");
    }
  }
  const Timeline timeline = make_timeline(trace);
  size_t reduced = 0;
  for (const Collective& each : timeline.collectives) {
    if (each.kind == CollectiveKind::kAllReduce && each.unit) {
      const size_t bucket = reduced++ % expected.buckets.size();
      EXPECT_EQ(each.bytes, expected.buckets[bucket].bytes) << bucket;
    }
  }
  EXPECT_GT(reduced, 0U);
}

// Six linear layers of 256 and a loss have nine operators in forward, but twelve gradients:
// 262144 bytes of each weight and 1024 of each bias. Two layers fill a bucket of 0.5 MiB.
TEST(RecoveredDdp, GradientsMayBeMoreThanForwardsOperators) {
  const RecoveredPlan found =
      recover_plan(read(kRecordings.parent_path() / "step_kinds" / "ddp-few-ops").traces.front());
  ASSERT_EQ(found.buckets.size(), 3U);
  for (const RecoveredBucket& bucket : found.buckets) {
    EXPECT_EQ(bucket.bytes, 2 * (262144 + 1024));
    EXPECT_EQ(bucket.gradients.size(), 4U);
  }
  EXPECT_EQ(found.plan.bucket_cap_mb, 0.5);
  EXPECT_LE(found.parameters.size(), 9U);
  int64_t numel = 0;
  for (const RecoveredParameter& each : found.parameters) {
    numel += each.numel;
  }
  EXPECT_EQ(numel, 6 * (65536 + 256));
}

}  // namespace
}  // namespace shardlens::analysis
