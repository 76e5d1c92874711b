// Closed forms and recorded facts beyond the sizes of orders.json: any number of blocks,
// accumulation modes, limiter, queries.
#include <fstream>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/schedule/torch_program.h"

namespace shardlens::schedule::test {
namespace {

using Counts =
    std::array<int64_t, 4>;  // all-gathers forward, backward, reduce-scatters, all-reduces

OrdersCase fsdp2(int64_t blocks, bool root, const nlohmann::json& raf) {
  OrdersCase test;
  test.api = "fsdp2";
  test.blocks = blocks;
  test.root = root;
  test.raf = raf;
  test.world = test.shard = raf.is_number() ? 4 : 2;
  for (int64_t i = 0; i < blocks; ++i) {
    test.calls.push_back(i);
  }
  return test;
}

OrdersCase fsdp1(int64_t blocks, bool root, const std::string& strategy) {
  OrdersCase test = fsdp2(blocks, root, nullptr);
  test.api = "fsdp1";
  test.strategy = strategy;
  test.bp = "PRE";
  if (strategy == "NO_SHARD") {
    test.shard = 1;
    test.replicate = 2;
  } else if (strategy.find("HYBRID") != std::string::npos) {
    test.replicate = 2;
  }
  return test;
}

class Runner : public TorchProgram {
 public:
  explicit Runner(const OrdersCase& test)
      : TorchProgram(test, plan::Layout::kFlat, FinalCallback::kPerUnit) {}
  Counts counts_of(const std::string& label) {
    run(label);
    EXPECT_EQ(failure(), "");
    return counts();
  }
};

class CountsTest : public ::testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  int64_t n = std::get<0>(GetParam());
  bool root = std::get<1>(GetParam());
  int64_t g = n + (root ? 1 : 0);
};
INSTANTIATE_TEST_SUITE_P(Blocks,
                         CountsTest,
                         ::testing::Combine(::testing::Values(2, 5, 16, 64), ::testing::Bool()),
                         [](const auto& each) {
                           const std::string blocks = std::to_string(std::get<0>(each.param));
                           return "blocks_" + blocks +
                                  (std::get<1>(each.param) ? "_with_root" : "_without_root");
                         });

TEST_P(CountsTest, PerIteration) {
  const int64_t kept = root ? g - 1 : n;
  struct Row {
    OrdersCase test;
    Counts counts;
  };
  const std::vector<Row> rows{{fsdp1(n, root, "FULL_SHARD"), {g, kept, g, 0}},
                              {fsdp1(n, root, "SHARD_GRAD_OP"), {g, 0, g, 0}},
                              {fsdp1(n, root, "NO_SHARD"), {0, 0, 0, g}},
                              {fsdp1(n, root, "HYBRID_SHARD"), {g, kept, g, g}},
                              {fsdp1(n, root, "_HYBRID_SHARD_ZERO2"), {g, 0, g, g}},
                              {fsdp2(n, root, nullptr), {g, kept, g, 0}},
                              {fsdp2(n, root, true), {g, g, g, 0}},
                              {fsdp2(n, root, 2), {g, g, g, 0}},
                              {fsdp2(n, root, false), {g, 0, g, 0}}};
  for (const Row& row : rows) {
    Runner run(row.test);
    for (int iteration = 0; iteration < 3; ++iteration) {
      EXPECT_EQ(run.counts_of("sync"), row.counts) << row.test.strategy << row.test.raf;
    }
  }
}

TEST_P(CountsTest, ABlockUsedThreeTimes) {
  for (const bool first : {true, false}) {
    OrdersCase test = first ? fsdp1(n, root, "FULL_SHARD") : fsdp2(n, root, true);
    test.calls.insert(test.calls.begin() + 1, {1, 1});  // 0 1 1 1 2 ...
    const Counts counts = Runner(test).counts_of("sync");
    const int64_t backward = first ? (root ? g - 1 : n) : g + 2;
    EXPECT_EQ(counts, (Counts{g + 2, backward, g, 0}));
  }
}

TEST_P(CountsTest, TwoForwardsOneBackward) {
  if (root) {
    EXPECT_EQ(Runner(fsdp2(n, root, nullptr)).counts_of("two"), (Counts{g + n, 2 * n, g, 0}));
    EXPECT_EQ(Runner(fsdp2(n, root, true)).counts_of("two"), (Counts{2 * g, 2 * n + 1, g, 0}));
    EXPECT_EQ(Runner(fsdp2(n, root, false)).counts_of("two"), (Counts{g, n, g, 0}));
    EXPECT_EQ(Runner(fsdp1(n, root, "FULL_SHARD")).counts_of("two"), (Counts{g + n, n, g, 0}));
    EXPECT_EQ(Runner(fsdp1(n, root, "SHARD_GRAD_OP")).counts_of("two"), (Counts{g, 0, g, 0}));
  } else {
    EXPECT_EQ(Runner(fsdp2(n, root, nullptr)).counts_of("two"), (Counts{2 * n, 2 * n - 1, n, 0}));
    EXPECT_EQ(Runner(fsdp2(n, root, false)).counts_of("two"), (Counts{n, n - 1, n, 0}));
  }
}

TEST_P(CountsTest, ForwardBeforeTrainingLeavesUnshardedWhatItKeeps) {
  for (const char* label : {"eval", "fwd"}) {
    const auto next = [&](const OrdersCase& test) {
      Runner run(test);
      run.counts_of("sync");
      run.counts_of(label);
      return run.counts_of("sync")[0];
    };
    EXPECT_EQ(next(fsdp2(n, root, nullptr)), n);
    EXPECT_EQ(next(fsdp2(n, root, true)), g);
    EXPECT_EQ(next(fsdp2(n, root, false)), 0);
    EXPECT_EQ(next(fsdp1(n, root, "FULL_SHARD")), n);
    EXPECT_EQ(next(fsdp1(n, root, "SHARD_GRAD_OP")), 0);
  }
}

TEST_P(CountsTest, InsideNoSync) {
  Runner full(fsdp1(n, root, "FULL_SHARD"));
  Runner kept(fsdp1(n, root, "SHARD_GRAD_OP"));
  const int64_t backward = root ? g - 1 : n;
  EXPECT_EQ(full.counts_of("acc"), (Counts{g, backward, 0, 0}));
  EXPECT_EQ(full.counts_of("acc"), (Counts{g, backward, 0, 0}));
  EXPECT_EQ(kept.counts_of("acc"), (Counts{g, 0, 0, 0}));
  EXPECT_EQ(kept.counts_of("acc"), (Counts{0, 0, 0, 0}));
  EXPECT_EQ(kept.counts_of("sync"), (Counts{0, 0, g, 0}));
  EXPECT_EQ(kept.counts_of("sync"), (Counts{g, 0, g, 0}));
}

// Only the unshards and post-backwards, "A" and "P" events.
std::string gathers_and_post_backwards(const std::string& events) {
  std::istringstream in(events.substr(events.find('|') + 1));
  std::string out;
  for (std::string token; in >> token;) {
    if (token[0] == 'A' || token[0] == 'P') {
      out += (out.empty() ? "" : " ") + token;
    }
  }
  return out;
}

TEST_P(CountsTest, DefaultBackwardOrder) {
  // u N-1, then for i = N-1 … 1: u i-1, p i; then p 0, p root.
  std::string expected = "A" + std::to_string(n - 1);
  for (int64_t i = n - 1; i >= 1; --i) {
    expected += " A" + std::to_string(i - 1) + " P" + std::to_string(i);
  }
  expected += root ? " P0 Pr" : " P0";
  Runner run(fsdp2(n, root, nullptr));
  EXPECT_EQ(gathers_and_post_backwards(run.run("sync")), expected);
}

TEST_P(CountsTest, TheLimiterIsSteadyFromTheSecondIteration) {
  Runner run(fsdp1(n, root, "FULL_SHARD"));
  const std::string first = run.run("sync");
  const std::string second = run.run("sync");
  EXPECT_NE(first, second);
  for (int iteration = 0; iteration < 4; ++iteration) {
    EXPECT_EQ(run.run("sync"), second);
  }
}

nlohmann::json facts() {
  std::ifstream in(std::string(SHARDLENS_TEST_DATA) + "/orders.json");
  return nlohmann::json::parse(in).at("facts");
}

void set(Schedule& schedule, Setting::Kind kind, bool flag, UnitId unit, Recurse recurse) {
  Setting setting;
  setting.kind = kind;
  setting.flag = flag;
  ASSERT_TRUE(schedule.set(unit, setting, recurse).ok());
}

TEST(FactsTest, AccumulationModes) {
  const nlohmann::json rows = facts().at("fsdp2_accumulation_M3_N3");
  for (const nlohmann::json& row : rows) {
    OrdersCase test = fsdp2(3, true, row[0]);
    const std::string mode = row[1];
    const bool reshards = row[2] == 1;
    test.world = 4;
    test.replicate = row[3] == 1 ? 2 : 1;
    test.shard = row[3] == 1 ? 2 : 4;
    Runner run(test);
    Counts total{};
    for (int microbatch = 0; microbatch < 3; ++microbatch) {
      const bool last = microbatch == 2;
      const auto both = [&](Setting::Kind sync, UnitId unit, Recurse recurse) {
        set(run.schedule(), sync, last, unit, recurse);
        set(run.schedule(), Setting::Kind::kReshardAfterBackward, last || reshards, unit, recurse);
      };
      if (mode == "all") {
        both(Setting::Kind::kGradientSync, 0, Recurse::kYes);
      } else if (mode == "some_mlps") {
        both(Setting::Kind::kGradientSync, 1, Recurse::kYes);
        both(Setting::Kind::kGradientSync, 2, Recurse::kYes);
      } else if (mode == "root_only") {
        both(Setting::Kind::kGradientSync, 0, Recurse::kNo);
      } else {
        both(Setting::Kind::kAllReduce, 0, Recurse::kYes);
      }
      const Counts counts = run.counts_of("micro");
      for (size_t i = 0; i < counts.size(); ++i) {
        total[i] += counts[i];
      }
    }
    EXPECT_EQ(nlohmann::json(total), row[4]) << row;
  }
  EXPECT_EQ(rows.size(), 48U);
}

TEST(FactsTest, RegisteredParameters) {
  const nlohmann::json kinds = facts().at("fsdp2_registered_params");
  for (const auto& [raf, expected] : kinds.items()) {
    Runner run(fsdp2(2, true, nlohmann::json::parse(raf)));
    const auto kind = [&run](UnitId unit) {
      return run.schedule().state(unit) == UnitState::kUnsharded ? "full" : "sharded";
    };
    run.run("fwd");
    EXPECT_EQ(kind(1), expected["after_forward"]["block"]) << raf;
    EXPECT_EQ(kind(0), expected["after_forward"]["root"]) << raf;
    run.run("sync");
    EXPECT_EQ(kind(1), expected["after_backward"]["block"]) << raf;
    EXPECT_EQ(kind(0), expected["after_backward"]["root"]) << raf;
  }
}

// nn.Transformer, six encoder and six decoder layers, root last: what each backward prefetched.
TEST(FactsTest, TransformerPrefetchTargets) {
  const nlohmann::json queries = facts().at("fsdp1_transformer_prefetch_queries");
  for (const auto& [prefetch, rows] : queries.items()) {
    std::vector<std::string> expected, found;
    for (const nlohmann::json& row : rows) {
      if (!row[2].is_null()) {
        expected.push_back(row[2]);
      }
    }
    OrdersCase test = fsdp1(12, true, "FULL_SHARD");
    test.bp = prefetch == "None" ? nlohmann::json() : nlohmann::json(prefetch);
    Runner run(test);
    run.run("sync");
    for (const Action& action : run.actions()) {
      if (action.op == Op::kAllGather && action.cause == Cause::kBackwardPrefetch) {
        const UnitId layer = action.unit - 1;
        found.push_back((layer < 6 ? "enc" : "dec") + std::to_string(layer % 6));
      }
    }
    EXPECT_EQ(found, expected) << prefetch;
  }
}

}  // namespace
}  // namespace shardlens::schedule::test
