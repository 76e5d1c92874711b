// Units that stay unsharded after an evaluation or a backward without sync: the values that an
// optimizer gives their parameters reach the next forward.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <torch/optim/sgd.h>

#include "core/fsdp/apply/fully_shard.h"
#include "tests/core/fsdp/chain.h"
#include "tests/support/ranks.h"

namespace shardlens::fsdp {
namespace {

using test::Chain;

constexpr int kKeptRanks = 2;
constexpr int kKeptSteps = 2;

// What a step does, in order; the optimizer follows.
struct KeptMicrobatch {
  std::vector<int64_t> calls;
  bool evaluates = false;
  bool sync = true;
};
struct KeptCase {
  std::string name;
  std::vector<KeptMicrobatch> step;
};
const std::vector<KeptCase>& kept_cases() {
  static const std::vector<KeptCase> cases{
      {"evaluation_before_the_optimizer", {{{0, 1, 2}}, {{0, 1, 2}, true}}},
      {"evaluation_before_a_backward_without_the_unit", {{{0, 1, 2}}, {{0, 1, 2}, true}, {{0, 2}}}},
      {"evaluation_without_a_prefetched_unit", {{{0, 1, 2}}, {{0, 2}, true}}},
      {"backward_without_sync_before_one_without_the_unit", {{{0, 1, 2}, false, false}, {{0, 2}}}},
  };
  return cases;
}

at::Tensor kept_loss(Chain& model, const KeptMicrobatch& what, uint64_t seed) {
  model->shape.calls = what.calls;
  return model(test::seeded({3, 5}, seed)).pow(2).mean();
}

uint64_t kept_seed(int step, size_t microbatch, int rank) {
  return 100 + static_cast<uint64_t>(step * 10 + rank) + 1000 * microbatch;
}

std::vector<at::Tensor> train_kept_plain(const KeptCase& each) {
  Chain model = test::make_chain({});
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
  for (int step = 0; step < kKeptSteps; ++step) {
    for (size_t i = 0; i < each.step.size(); ++i) {
      for (int rank = 0; rank < kKeptRanks && !each.step[i].evaluates; ++rank) {
        (kept_loss(model, each.step[i], kept_seed(step, i, rank)) / kKeptRanks).backward();
      }
    }
    optimizer.step();
    optimizer.zero_grad();
  }
  return model->parameters();
}

void expect_kept_training(const KeptCase& each, const std::string& plan, bool announces) {
  const std::vector<at::Tensor> wanted = train_kept_plain(each);
  test::run_ranks(kKeptRanks, [&](dist::World& world) {
    SCOPED_TRACE(each.name + (announces ? ", announced: " : ": ") + plan);
    Chain model = test::make_chain({});
    const auto sharded = fully_shard(
        model.ptr(),
        plan::parse_plan(
            R"({"version": 1, "units": [{"modules": ""}, {"modules": "layers.*"}], )" + plan + "}",
            "test"),
        {.world = &world, .check_ledger = true});
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
    for (int step = 0; step < kKeptSteps; ++step) {
      for (size_t i = 0; i < each.step.size(); ++i) {
        sharded->set_requires_gradient_sync(each.step[i].sync);
        const at::AutoGradMode mode(!each.step[i].evaluates);
        const at::Tensor loss = kept_loss(model, each.step[i], kept_seed(step, i, world.rank()));
        if (!each.step[i].evaluates) {
          loss.backward();
        }
      }
      optimizer.step();
      optimizer.zero_grad();
      if (announces) {
        sharded->optimizer_done();
      }
    }
    for (uint32_t i = 0; i < wanted.size(); ++i) {
      const at::Tensor whole = wanted[i].detach();
      EXPECT_LE((sharded->full_parameter(i) - whole).norm().item<double>(),
                1e-5 * whole.norm().item<double>())
          << "parameter " << i;
    }
  });
}

TEST(KeptUnitsTest, OptimizerStepsReachTheNextForward) {
  for (const KeptCase& each : kept_cases()) {
    for (const std::string plan :
         {R"("dialect": "fsdp1", "reshard_after_forward": false)",
          R"("dialect": "fsdp1", "forward_prefetch": 1)",
          R"("dialect": "fsdp1", "layout": "per_parameter", "reshard_after_forward": false)",
          R"("reshard_after_forward": false)",
          R"("layout": "per_parameter", "reshard_after_forward": false, "forward_prefetch": 2)"}) {
      for (const bool announces : {true, false}) {
        expect_kept_training(each, plan, announces);
      }
    }
  }
}

}  // namespace
}  // namespace shardlens::fsdp
