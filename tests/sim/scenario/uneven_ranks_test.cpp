// A recorded run over four ranks, experts over efsdp 2 and ep 2: every rank sends 48 of its 64 rows
// of 64 numbers to the first rank of its group along ep, and 16 to the second
// (tests/data/recorded_meshes/experts-uneven, by tests/tools/expert_runs.py). program.json has the
// collectives that PyTorch issued.
#include "sim/scenario/uneven_ranks.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "sim/calibrate/calibration.h"
#include "sim/scenario/other_speeds.h"
#include "sim/scenario/uncertainty.h"

namespace shardlens::sim {
namespace {

std::filesystem::path uneven_directory() {
  return std::filesystem::path(SHARDLENS_TEST_DATA) / "recorded_meshes" / "experts-uneven";
}

const std::shared_ptr<const RecordedRun>& uneven_run() {
  static const std::filesystem::path path = uneven_directory();
  static const auto run = RecordedRun::open(std::span(&path, 1));
  return run;
}

std::vector<std::pair<Bytes, Bytes>> exchanged(const UnevenRank& rank) {
  std::vector<std::pair<Bytes, Bytes>> out;
  for (const Exchange& each : rank.exchanges) {
    out.emplace_back(each.bytes.sent, each.bytes.received);
  }
  return out;
}

TEST(UnevenRanksTest, EachRankHasItsOwnRows) {
  const std::vector<UnevenRank> ranks = uneven_ranks(evaluate(own_scenario(uneven_run())));
  ASSERT_EQ(ranks.size(), 4U);
  constexpr Bytes kCounts = 2 * 8, kRow = 64 * 4, kOwn = 64 * kRow;
  for (size_t rank = 0; rank < 4; ++rank) {
    const Bytes came = 2 * (rank % 2 == 0 ? 48 : 16) * kRow;
    using Sizes = std::vector<std::pair<Bytes, Bytes>>;
    EXPECT_EQ(exchanged(ranks[rank]),
              (Sizes{{kCounts, kCounts}, {kOwn, came}, {came, kOwn}, {kOwn, came}, {came, kOwn}}))
        << rank;
    EXPECT_EQ(ranks[rank].sent(), kCounts + 2 * kOwn + 2 * came);
    ASSERT_TRUE(ranks[rank].measured_wait);
    EXPECT_GT(*ranks[rank].measured_wait, 0);
  }
}

TEST(UnevenRanksTest, AtTheSpeedsOfTheMachineTheStepIsThePredictedOne) {
  const Scenario own = own_scenario(uneven_run());
  const Prediction prediction = evaluate(own);
  EXPECT_EQ(at_speeds(own, prediction, {}).step.duration, prediction.step.duration);
}

TEST(UnevenRanksTest, TwoRecordingsAlikeHaveTheWaitsOfOne) {
  const Observation& of = uneven_run()->observation();
  const std::vector<Observation> twice{of, of};
  const Calibration one = calibrate(std::span(&of, 1)), two = calibrate(twice);
  for (size_t kind = 0; kind < one.peer_wait_us.size(); ++kind) {
    EXPECT_NEAR(two.peer_wait_us[kind], one.peer_wait_us[kind], 1e-6 * one.peer_wait_us[kind])
        << kind;
  }
}

// Kind, size of the group, bytes before and after of every collective of forward and backward.
using Row = std::tuple<std::string, size_t, Bytes, Bytes>;

std::vector<Row> issued_by_pytorch(size_t rank) {
  std::ifstream file(uneven_directory() / "program.json");
  const nlohmann::json program = nlohmann::json::parse(file);
  std::vector<Row> out;
  for (const auto& row : program["collectives"]) {
    const auto of_rank = [rank](const nlohmann::json& bytes) {
      return (bytes.is_array() ? bytes[rank] : bytes).get<Bytes>();
    };
    out.emplace_back(row[0], program["groups"][row[1].get<std::string>()][0].size(),
                     of_rank(row[3]), of_rank(row[4]));
  }
  return out;
}

TEST(UnevenRanksTest, SimulatedTracesHaveTheCollectivesOfPytorch) {
  const Prediction own = evaluate(own_scenario(uneven_run()), {.timeline = true});
  for (size_t rank = 0; rank < 4; ++rank) {
    const trace::Trace trace = predicted_trace(own, static_cast<int64_t>(rank));
    std::map<std::pair<Nanoseconds, size_t>, Row> found;  // by when they were issued
    for (const trace::Event& event : trace.events) {
      const trace::CollectiveArgs* args = trace.collective(event);
      if (args == nullptr) {
        continue;
      }
      const std::string_view dtype = trace.strings.view(args->dtype);
      const Bytes element = dtype == "Float" ? 4 : 1;
      const auto kind = parse_collective(trace.strings.view(args->collective));
      found.emplace(std::pair{args->issued, found.size()},
                    Row{name_of(kind.value()), static_cast<size_t>(args->group_size),
                        args->in_nelems * element, args->out_nelems * element});
    }
    std::vector<Row> rows;
    for (const auto& [at, row] : found) {
      rows.push_back(row);
    }
    EXPECT_EQ(rows, issued_by_pytorch(rank)) << rank;
  }
}

// The step of every rank is as long, and a rank's collectives wait no longer than that.
TEST(UnevenRanksTest, AllRanksEndTogether) {
  const Prediction own = evaluate(own_scenario(uneven_run()));
  EXPECT_LT(std::abs(own.baseline->error()), 0.25);  // recorded on a busy machine
  ASSERT_EQ(own.step.ranks.size(), 4U);
  for (const SimulatedRank& rank : own.step.ranks) {
    EXPECT_EQ(rank.figures.duration(), own.step.ranks.front().figures.duration());
    EXPECT_LE(rank.waited, own.step.duration);
  }
}

// Rows do not change with what FSDP does.
TEST(UnevenRanksTest, OtherPlansHaveTheSameRows) {
  const Scenario own = own_scenario(uneven_run());
  Scenario kept = own;
  kept.plan.reshard_after_forward.kind = plan::Reshard::Kind::kNo;
  for (plan::UnitEntry& unit : kept.plan.units) {
    unit.reshard_after_forward.reset();
  }
  Prediction now = evaluate(own), then = evaluate(kept);
  Uncertainty(uneven_run()).add_to(kept, then);
  ASSERT_TRUE(then.change_interval);
  EXPECT_LT(then.step.duration, now.step.duration);
  const std::vector<UnevenRank> before = uneven_ranks(now), after = uneven_ranks(then);
  ASSERT_EQ(after.size(), 4U);
  for (size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(exchanged(after[rank]), exchanged(before[rank]));
  }
}

TEST(UnevenRanksTest, OtherSequencesAreRefused) {
  Scenario longer = own_scenario(uneven_run());
  longer.step.seq = 64;
  EXPECT_THAT(refusal_of(longer), ::testing::HasSubstr("sequence"));
}

// Of ranks that are taken as alike, waits of all-to-alls are in the step too.
TEST(UnevenRanksTest, WaitsOfAllToAllsAreCalibrated) {
  Observation alike = uneven_run()->observation();
  alike.of_ranks.clear();
  Observation without = alike;
  std::erase_if(without.collectives, [](const ObservedCollective& each) {
    return each.kind == CollectiveKind::kAllToAll;
  });
  const auto gather = static_cast<size_t>(CollectiveKind::kAllGather);
  EXPECT_GT(calibrate(std::span(&alike, 1)).peer_wait_us[gather],
            calibrate(std::span(&without, 1)).peer_wait_us[gather]);
}

// Ranks with the same rows are one.
TEST(UnevenRanksTest, EqualRanksAreAlike) {
  const std::filesystem::path path =
      std::filesystem::path(SHARDLENS_TEST_DATA) / "pytorch_traces" / "fsdp2-tensor";
  const Prediction own = evaluate(own_scenario(RecordedRun::open(std::span(&path, 1))));
  EXPECT_TRUE(uneven_ranks(own).empty());
  EXPECT_EQ(own.step.ranks.size(), 1U);
}

}  // namespace
}  // namespace shardlens::sim
