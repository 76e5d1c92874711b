// A user's collectives in place of those of the process groups.
#include "core/fsdp/run/collectives.h"

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <torch/optim/adamw.h>

#include "core/dist/world.h"
#include "core/fsdp/apply/fully_shard.h"
#include "tests/core/fsdp/mlp.h"
#include "tests/core/fsdp/seeded.h"
#include "tests/support/ranks.h"

namespace shardlens::fsdp {
namespace {

// A reduce-scatter made of an all-reduce and a copy, and an all-gather made of an all-reduce.
class ByAllReduce final : public Collectives {
 public:
  dist::CompletionPtr all_gather(dist::Communicator& group,
                                 const at::Tensor& output,
                                 const at::Tensor& input,
                                 const dist::Purpose& purpose) override {
    ++gathers;
    static_cast<void>(group.run(
        [output, input, rank = group.rank()] {
          const at::NoGradGuard no_grad;
          const at::Tensor own = input.clone();
          output.zero_();
          output.narrow(0, rank * own.numel(), own.numel()).copy_(own);
        },
        purpose));
    return group.all_reduce(output, dist::ReduceOp::kSum, purpose);
  }
  dist::CompletionPtr reduce_scatter(dist::Communicator& group,
                                     const at::Tensor& output,
                                     const at::Tensor& input,
                                     dist::ReduceOp op,
                                     const dist::Purpose& purpose) override {
    ++scatters;
    const at::Tensor all = input.clone();
    static_cast<void>(group.all_reduce(all, op, purpose));
    return group.run(
        [output, all, rank = group.rank()] {
          const at::NoGradGuard no_grad;
          output.copy_(all.narrow(0, rank * output.numel(), output.numel()));
        },
        purpose);
  }
  dist::CompletionPtr all_reduce(dist::Communicator& group,
                                 const at::Tensor& tensor,
                                 dist::ReduceOp op,
                                 const dist::Purpose& purpose) override {
    ++all_reduces;
    return group.all_reduce(tensor, op, purpose);
  }
  int gathers = 0, scatters = 0, all_reduces = 0;
};

std::vector<at::Tensor> trained_shards(dist::World& world,
                                       const plan::Plan& plan,
                                       const std::shared_ptr<Collectives>& collectives = nullptr) {
  test::Mlp model = test::make_mlp(5, 3);
  const auto sharded = fully_shard(
      model.ptr(), plan, {.world = &world, .check_ledger = true, .collectives = collectives});
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  for (uint64_t step = 0; step < 3; ++step) {
    model(test::seeded({4, 5}, 100 * step + static_cast<uint64_t>(world.rank())))
        .pow(2)
        .mean()
        .backward();
    optimizer.step();
    sharded->optimizer_done();
    optimizer.zero_grad();
  }
  std::vector<at::Tensor> shards;
  for (const at::Tensor& shard : sharded->flat_shards()) {
    shards.push_back(shard.detach().clone());
  }
  return shards;
}

struct CountedCase {
  std::string plan;
  int ranks;
  int gathers, scatters, all_reduces;  // of three steps over four units; the root is kept
};

TEST(CollectivesTest, TheirsAreUsedAndCounted) {
  for (const CountedCase& c :
       {CountedCase{"", 2, 3 * 7, 3 * 4, 0},
        CountedCase{R"(, "layout": "per_parameter")", 3, 21, 12, 0},
        CountedCase{R"(, "mesh": {"replicate": 2, "shard": 2})", 4, 21, 12, 12},
        CountedCase{R"(, "mesh": {"replicate": 2, "shard": 1})", 2, 0, 0, 12}}) {
    SCOPED_TRACE(c.plan);
    test::run_ranks(c.ranks, [&](dist::World& world) {
      const auto own = std::make_shared<ByAllReduce>();
      const plan::Plan plan = test::mlp_plan("null", c.plan);
      const std::vector<at::Tensor> expected = trained_shards(world, plan);
      const std::vector<at::Tensor> seen = trained_shards(world, plan, own);
      ASSERT_EQ(seen.size(), expected.size());
      for (size_t i = 0; i < seen.size(); ++i) {
        EXPECT_TRUE(at::allclose(seen[i], expected[i], 1e-5, 1e-6)) << "shard " << i;
      }
      EXPECT_EQ(own->gathers, c.gathers);
      EXPECT_EQ(own->scatters, c.scatters);
      EXPECT_EQ(own->all_reduces, c.all_reduces);
    });
  }
}

// Per unit, the groups of its all-gathers.
struct GatherGroups : NullRecorder {
  void collective(const CollectiveRecord& record) override {
    if (record.unit != kNoUnit && record.kind == CollectiveKind::kAllGather) {
      const std::lock_guard lock(mutex);
      of[record.unit].emplace(std::string(record.group), record.group_size);
    }
  }
  std::mutex mutex;
  std::map<UnitId, std::set<std::pair<std::string, int>>> of;
};

// Two sizes of kept sub-meshes in one plan: each unit is gathered again over its own, and the
// training is that without them.
TEST(CollectivesTest, UnitsAreGatheredOverTheirOwnSubMeshes) {
  const auto plan = [](const std::string& first, const std::string& second) {
    return plan::parse_plan(fmt::format(R"({{"version": 1, "units": [{{"modules": ""}},
            {{"modules": "layers.0", "reshard_after_forward": {}}},
            {{"modules": ["layers.1", "layers.2"], "reshard_after_forward": {}}}]}})",
                                        first, second),
                            "test");
  };
  test::run_ranks(8, [&](dist::World& world) {
    const std::vector<at::Tensor> expected = trained_shards(world, plan("true", "true"));
    GatherGroups groups;
    world.set_recorder(&groups);
    const std::vector<at::Tensor> seen = trained_shards(world, plan("2", "4"));
    world.set_recorder(nullptr);
    ASSERT_EQ(seen.size(), expected.size());
    for (size_t i = 0; i < seen.size(); ++i) {
      EXPECT_TRUE(at::equal(seen[i], expected[i])) << "shard " << i;
    }
    using Groups = std::set<std::pair<std::string, int>>;
    ASSERT_EQ(groups.of.size(), 3U);  // layers.1 and layers.2 are one unit
    EXPECT_EQ(groups.of[1], (Groups{{"world", 8}, {"sub_shard2", 2}}));
    EXPECT_EQ(groups.of[2], (Groups{{"world", 8}, {"sub_shard4", 4}}));
  });
}

}  // namespace
}  // namespace shardlens::fsdp
