// What users do to parameters and gradients between steps: the model follows, as without sharding,
// or says how to do it.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include "core/base/error.h"
#include "core/fsdp/apply/fully_shard.h"
#include "core/fsdp/apply/sharded_unit.h"
#include "tests/core/fsdp/chain.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks.h"

namespace shardlens::fsdp {
namespace {

using test::Chain;
using testing::AllOf;
using testing::HasSubstr;

constexpr int kUserRanks = 2;

struct UserCase {
  std::string name, plan;
};
const std::vector<UserCase>& user_cases() {
  static const std::vector<UserCase> cases{
      {"fsdp2_flat", R"("dialect": "fsdp2")"},
      {"fsdp2_per_parameter", R"("layout": "per_parameter")"},
      {"fsdp2_kept", R"("layout": "per_parameter", "reshard_after_forward": false)"},
      {"fsdp1", R"("dialect": "fsdp1")"},
  };
  return cases;
}

plan::Plan user_plan(const UserCase& each) {
  return plan::parse_plan(
      R"({"version": 1, "units": [{"modules": ""}, {"modules": "layers.*"}], )" + each.plan + "}",
      "test");
}

at::Tensor user_loss(Chain& model, int step, int rank) {
  return model(test::seeded({3, 5}, static_cast<uint64_t>(100 + step * kUserRanks + rank)))
      .pow(2)
      .mean();
}

// `change` is applied to the parameters of a model, whether it is sharded or not.
using Parameters = std::vector<at::Tensor>;
using Change = std::function<void(int step, Parameters& parameters)>;

double norm_of_all(const Parameters& tensors) {
  double sum = 0;
  for (const at::Tensor& each : tensors) {
    sum += each.pow(2).sum().item<double>();
  }
  return std::sqrt(sum);
}

// `whole`: gradients of the unsharded parameters.
void expect_slices(const ShardedModel& sharded,
                   const Parameters& parameters,
                   const Parameters& whole) {
  const double norm = norm_of_all(whole);
  for (const ParameterSlice& slice : sharded.slices()) {
    const at::Tensor& seen = parameters[slice.parameter].grad();
    ASSERT_TRUE(seen.defined()) << "parameter " << slice.parameter;
    const at::Tensor part =
        whole[slice.parameter].reshape({-1}).narrow(0, slice.offset, slice.values.numel());
    EXPECT_LE((seen - part).norm().item<double>(), 1e-6 * norm) << "parameter " << slice.parameter;
  }
}

// Trains with `change` after each step's backward, and compares gradients before it.
void expect_as_without_sharding(const Change& change, int steps = 3) {
  Chain plain = test::make_chain({});
  std::vector<Parameters> gradients;
  Parameters plain_parameters = plain->parameters();
  for (int step = 0; step < steps; ++step) {
    for (int rank = 0; rank < kUserRanks; ++rank) {
      (user_loss(plain, step, rank) / kUserRanks).backward();
    }
    gradients.emplace_back();
    for (const at::Tensor& p : plain_parameters) {
      gradients.back().push_back(p.grad().clone());
    }
    change(step, plain_parameters);
  }
  for (const UserCase& each : user_cases()) {
    test::run_ranks(kUserRanks, [&](dist::World& world) {
      SCOPED_TRACE(each.name);
      Chain model = test::make_chain({});
      const auto sharded =
          fully_shard(model.ptr(), user_plan(each), {.world = &world, .check_ledger = true});
      Parameters parameters = model->parameters();
      for (int step = 0; step < steps; ++step) {
        SCOPED_TRACE("step " + std::to_string(step));
        user_loss(model, step, world.rank()).backward();
        expect_slices(*sharded, parameters, gradients[static_cast<size_t>(step)]);
        change(step, parameters);
      }
    });
  }
}

TEST(UserChangesTest, ResettingSomeGradientsKeepsTheOthers) {
  expect_as_without_sharding([](int step, Parameters& parameters) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      if ((i + static_cast<size_t>(step)) % 3 == 0) {
        parameters[i].mutable_grad() = at::Tensor();
      }
    }
  });
}

TEST(UserChangesTest, ResettingOneParameterGivesTheSameGradientInIdenticalSteps) {
  for (const UserCase& each : user_cases()) {
    test::run_ranks(kUserRanks, [&](dist::World& world) {
      SCOPED_TRACE(each.name);
      Chain model = test::make_chain({});
      const auto sharded = fully_shard(model.ptr(), user_plan(each), {.world = &world});
      at::Tensor first;
      for (int step = 0; step < 3; ++step) {
        user_loss(model, 0, world.rank()).backward();
        at::Tensor weight = model->links[1]->up->weight;
        if (step == 0) {
          first = weight.grad().clone();
        }
        EXPECT_LE((weight.grad() - first).norm().item<double>(), 1e-6);
        weight.mutable_grad() = at::Tensor();
      }
    });
  }
}

TEST(UserChangesTest, GradientsAreZeroedInPlace) {
  expect_as_without_sharding([](int, Parameters& parameters) {
    for (size_t i = 0; i < parameters.size(); i += 2) {
      parameters[i].mutable_grad().zero_();
    }
  });
}

TEST(UserChangesTest, AssignedGradientsAreAddedTo) {
  expect_as_without_sharding([](int, Parameters& parameters) {
    for (size_t i = 0; i < parameters.size(); i += 2) {
      parameters[i].mutable_grad() = at::full_like(parameters[i].detach(), 0.25);
    }
  });
}

TEST(UserChangesTest, TwoOptimizersStepTheirParameters) {
  const auto train = [](Chain& model, const std::function<void(int)>& backward,
                        const std::function<void()>& done) {
    Parameters some = model->links[1]->parameters(), others;
    for (const at::Tensor& p : model->parameters()) {
      if (std::ranges::none_of(some, [&](const at::Tensor& each) { return each.is_same(p); })) {
        others.push_back(p);
      }
    }
    torch::optim::SGD often(some, torch::optim::SGDOptions(0.1));
    torch::optim::SGD seldom(others, torch::optim::SGDOptions(0.05).momentum(0.9));
    for (int step = 0; step < 6; ++step) {
      backward(step);
      often.step();
      often.zero_grad();
      if (step % 2 == 1) {
        seldom.step();
        seldom.zero_grad();
      }
      done();
    }
  };
  Chain plain = test::make_chain({});
  train(
      plain,
      [&](int step) {
        for (int rank = 0; rank < kUserRanks; ++rank) {
          (user_loss(plain, step, rank) / kUserRanks).backward();
        }
      },
      [] {});
  for (const UserCase& each : user_cases()) {
    test::run_ranks(kUserRanks, [&](dist::World& world) {
      SCOPED_TRACE(each.name);
      Chain model = test::make_chain({});
      const auto sharded =
          fully_shard(model.ptr(), user_plan(each), {.world = &world, .check_ledger = true});
      train(
          model, [&](int step) { user_loss(model, step, world.rank()).backward(); },
          [&] { sharded->optimizer_done(); });
      for (uint32_t i = 0; i < plain->parameters().size(); ++i) {
        const at::Tensor whole = plain->parameters()[i].detach();
        EXPECT_LE((sharded->full_parameter(i) - whole).norm().item<double>(),
                  1e-5 * whole.norm().item<double>())
            << "parameter " << i;
      }
    });
  }
}

TEST(UserChangesTest, AGradientOfAnotherShapeIsAnError) {
  test::run_ranks(kUserRanks, [](dist::World& world) {
    Chain model = test::make_chain({});
    const auto sharded = fully_shard(model.ptr(), user_plan(user_cases()[0]), {.world = &world});
    user_loss(model, 0, world.rank()).backward();
    model->in->weight.mutable_grad() = at::ones({4});
    EXPECT_THAT(test::message_of<UsageError>([&] { user_loss(model, 0, world.rank()); }),
                HasSubstr("parameter 'in.weight' was given a gradient of shape [4]; expected"));
  });
}

// The norm of a plain model's gradients that are defined.
double norm_of(const Parameters& parameters) {
  std::vector<at::Tensor> norms;
  for (const at::Tensor& p : parameters) {
    if (p.grad().defined()) {
      norms.push_back(at::linalg_vector_norm(p.grad(), 2));
    }
  }
  return at::linalg_vector_norm(at::stack(norms), 2).item<double>();
}

TEST(UserChangesTest, TheNormLeavesOutGradientsThatWereReset) {
  const auto reset = [](Chain& model) {
    for (const at::Tensor& p : model->links[0]->parameters()) {
      p.mutable_grad() = at::Tensor();
    }
    model->out->bias.mutable_grad() = at::Tensor();
  };
  Chain plain = test::make_chain({});
  for (int rank = 0; rank < kUserRanks; ++rank) {
    (user_loss(plain, 0, rank) / kUserRanks).backward();
  }
  reset(plain);
  const double expected = norm_of(plain->parameters());
  for (const UserCase& each : user_cases()) {
    test::run_ranks(kUserRanks, [&](dist::World& world) {
      SCOPED_TRACE(each.name);
      Chain model = test::make_chain({});
      const auto sharded = fully_shard(model.ptr(), user_plan(each), {.world = &world});
      user_loss(model, 0, world.rank()).backward();
      reset(model);
      EXPECT_NEAR(sharded->clip_grad_norm(1e9), expected, 1e-5 * expected);
    });
  }
}

// An optimizer over flat_shards() resets the gradients of the shards instead of the parameters'.
TEST(UserChangesTest, ResettingTheShardsGradientsResetsTheParameters) {
  for (const UserCase& each : user_cases()) {
    test::run_ranks(kUserRanks, [&](dist::World& world) {
      SCOPED_TRACE(each.name);
      Chain model = test::make_chain({});
      const auto sharded = fully_shard(model.ptr(), user_plan(each), {.world = &world});
      user_loss(model, 0, world.rank()).backward();
      const double norm = sharded->clip_grad_norm(1e9);
      for (const at::Tensor& shard : sharded->flat_shards()) {
        shard.mutable_grad() = at::Tensor();
      }
      user_loss(model, 0, world.rank()).backward();
      EXPECT_NEAR(sharded->clip_grad_norm(1e9), norm, 1e-6 * norm);
    });
  }
}

// ---- values

// `give` changes the values of a sharded model; then its loss is that of `source`.
void expect_values_reach_the_shards(
    const std::function<void(Chain& model, Chain& source, ShardedModel& sharded)>& give) {
  for (const UserCase& each : user_cases()) {
    for (const bool evaluated : {false, true}) {
      test::run_ranks(kUserRanks, [&](dist::World& world) {
        SCOPED_TRACE(each.name + (evaluated ? ", after an evaluation" : ""));
        Chain source = test::make_chain({});
        {
          const at::NoGradGuard no_grad;
          for (at::Tensor& p : source->parameters()) {
            p.mul_(0.5).add_(0.125);
          }
        }
        Chain model = test::make_chain({});
        const auto sharded =
            fully_shard(model.ptr(), user_plan(each), {.world = &world, .check_ledger = true});
        if (evaluated) {
          const at::NoGradGuard no_grad;
          user_loss(model, 5, world.rank());
        }
        give(model, source, *sharded);
        for (uint32_t i = 0; i < source->parameters().size(); ++i) {
          EXPECT_TRUE(sharded->full_parameter(i).equal(source->parameters()[i])) << i;
        }
        const double expected = user_loss(source, 0, world.rank()).item<double>();
        const at::Tensor loss = user_loss(model, 0, world.rank());
        EXPECT_NEAR(loss.item<double>(), expected, 1e-6 * expected);
        loss.backward();
        EXPECT_EQ(sharded->unsharded_bytes(), 0);
      });
    }
  }
}

at::Tensor slice_of(const at::Tensor& whole, const ParameterSlice& slice) {
  return whole.detach().reshape({-1}).narrow(0, slice.offset, slice.values.numel()).clone();
}

TEST(UserChangesTest, SetDataOfSlicesReachesTheShards) {
  expect_values_reach_the_shards([](Chain& model, Chain& source, ShardedModel& sharded) {
    for (const ParameterSlice& slice : sharded.slices()) {
      model->parameters()[slice.parameter].set_data(
          slice_of(source->parameters()[slice.parameter], slice));
    }
  });
}

TEST(UserChangesTest, SetDataOfWholeParametersReachesTheShards) {
  expect_values_reach_the_shards([](Chain& model, Chain& source, ShardedModel&) {
    for (size_t i = 0; i < source->parameters().size(); ++i) {
      model->parameters()[i].set_data(source->parameters()[i].detach().clone());
    }
  });
}

void load_from(torch::nn::Module& target, const torch::nn::Module& source) {
  std::stringstream file;
  torch::serialize::OutputArchive written;
  source.save(written);
  written.save_to(file);
  torch::serialize::InputArchive read;
  read.load_from(file);
  target.load(read);
}

TEST(UserChangesTest, TorchLoadOfWholeModulesReachesTheShards) {
  expect_values_reach_the_shards([](Chain& model, Chain& source, ShardedModel&) {
    // LibTorch's archives cannot have a module named "in".
    load_from(*model->in, *source->in);
    load_from(*model->out, *source->out);
    for (size_t i = 0; i < source->links.size(); ++i) {
      load_from(*model->links[i], *source->links[i]);
    }
  });
}

TEST(UserChangesTest, WritesInPlaceReachTheShards) {
  expect_values_reach_the_shards([](Chain& model, Chain&, ShardedModel&) {
    const at::NoGradGuard no_grad;
    for (at::Tensor& p : model->parameters()) {
      p.mul_(0.5).add_(0.125);
    }
  });
}

TEST(UserChangesTest, WritesToSlicesReachTheNextForward) {
  expect_values_reach_the_shards([](Chain&, Chain& source, ShardedModel& sharded) {
    const at::NoGradGuard no_grad;
    for (ParameterSlice& slice : sharded.slices()) {
      slice.values.copy_(slice_of(source->parameters()[slice.parameter], slice));
    }
  });
}

TEST(UserChangesTest, WritesToUnshardedParametersReachTheShards) {
  expect_values_reach_the_shards([](Chain& model, Chain& source, ShardedModel& sharded) {
    std::vector<ShardedUnit> units{ShardedUnit(model.ptr())};
    for (const test::Link& link : model->links) {
      units.emplace_back(link.ptr());
    }
    for (const ShardedUnit& unit : units) {
      unit.unshard();
    }
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < source->parameters().size(); ++i) {
      model->parameters()[i].copy_(source->parameters()[i]);
    }
    for (const ShardedUnit& unit : units) {
      unit.reshard();
    }
    EXPECT_EQ(sharded.unsharded_bytes(), 0);
  });
}

TEST(UserChangesTest, ConvertingAShardedModelIsAnErrorThatSaysHow) {
  for (const UserCase& each : user_cases()) {
    test::run_ranks(kUserRanks, [&](dist::World& world) {
      SCOPED_TRACE(each.name);
      Chain model = test::make_chain({});
      const auto sharded = fully_shard(model.ptr(), user_plan(each), {.world = &world});
      user_loss(model, 0, world.rank()).backward();
      model->to(at::kDouble);
      EXPECT_THAT(test::message_of<UsageError>([&] { user_loss(model, 0, world.rank()); }),
                  HasSubstr("parameter 'in.weight' was Float cpu when it was sharded, and is now "
                            "Double cpu; convert or move the model before sharding it"));
      model->to(at::kFloat);
      user_loss(model, 0, world.rank()).backward();
    });
  }
}

TEST(UserChangesTest, AValueOfAnotherShapeIsAnError) {
  test::run_ranks(kUserRanks, [](dist::World& world) {
    Chain model = test::make_chain({});
    const auto sharded = fully_shard(model.ptr(), user_plan(user_cases()[0]), {.world = &world});
    model->in->bias.set_data(at::ones({4}));
    EXPECT_THAT(test::message_of<UsageError>([&] { user_loss(model, 0, world.rank()); }),
                HasSubstr("parameter 'in.bias' was given values of shape [4]; expected [5]"));
  });
}

TEST(UserChangesTest, SavingAShardedModelIsRefused) {
  test::run_ranks(kUserRanks, [](dist::World& world) {
    Chain model = test::make_chain({});
    const auto sharded = fully_shard(model.ptr(), user_plan(user_cases()[0]), {.world = &world});
    for (const torch::nn::Module* module :
         std::initializer_list<const torch::nn::Module*>{model.get(), model->links[1].get()}) {
      EXPECT_THAT(test::message_of<UsageError>([&] {
                    torch::serialize::OutputArchive archive;
                    module->save(archive);
                  }),
                  HasSubstr("full_parameter"));
    }
  });
}

TEST(UserChangesTest, SavingAPartOfAUnitOrAContainerOfUnitsIsRefused) {
  test::run_ranks(kUserRanks, [](dist::World& world) {
    for (const UserCase& each : user_cases()) {
      Chain model = test::make_chain({});
      const auto sharded = fully_shard(model.ptr(), user_plan(each), {.world = &world});
      const auto save = [](const torch::nn::Module& module) {
        torch::serialize::OutputArchive archive;
        module.save(archive);
      };
      EXPECT_THAT(test::message_of<UsageError>([&] { save(*model->links[1]->up); }),
                  AllOf(HasSubstr("parameter 'weight' of a Linear is sharded"),
                        HasSubstr("full_parameter")));
      EXPECT_THAT(test::message_of<UsageError>([&] { save(*model->in); }), HasSubstr("'weight'"));
      EXPECT_THAT(test::message_of<UsageError>([&] { save(*model->layers); }),
                  HasSubstr("full_parameter"));
    }
  });
}

TEST(UserChangesTest, ModulesThatAreNotShardedAreSavedAsByLibTorch) {
  const auto saved = test::make_chain({})->links[0].ptr();
  const auto loaded = test::make_chain({})->links[1].ptr();
  std::stringstream file;
  torch::serialize::OutputArchive out;
  saved->save(out);
  out.save_to(file);
  torch::serialize::InputArchive in;
  in.load_from(file);
  loaded->load(in);
  ASSERT_EQ(loaded->parameters().size(), 4);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(at::equal(loaded->parameters()[i], saved->parameters()[i])) << i;
  }
}

// ---- gradients between backwards that do not wait for their reductions

// Rank 1 begins its backward when rank 0 is at the end of its own, so rank 0's reductions are
// pending then.
TEST(UserChangesTest, GradientsAreCompleteAfterABackwardThatIsNotTheLast) {
  Chain plain = test::make_chain({});
  for (int rank = 0; rank < kUserRanks; ++rank) {
    (user_loss(plain, 0, rank) / kUserRanks).backward();
  }
  Parameters expected;
  for (const at::Tensor& p : plain->parameters()) {
    expected.push_back(p.grad());
  }
  for (const std::string layout : {"flat", "per_parameter"}) {
    std::atomic<bool> near_its_end = false;
    test::run_ranks(kUserRanks, [&](dist::World& world) {
      Chain model = test::make_chain({});
      const auto sharded = fully_shard(  // one unit: its backward waits for no other reduction
          model.ptr(),
          plan::parse_plan(
              R"({"version": 1, "units": [{"modules": ""}], "layout": ")" + layout + "\"}", "test"),
          {.world = &world});
      ShardedUnit(model.ptr()).set_is_last_backward(false);
      at::Tensor x = test::seeded({3, 5}, static_cast<uint64_t>(100 + world.rank()));
      x.set_requires_grad(true);
      x.register_hook([&](const at::Tensor& /*gradient*/) { near_its_end = true; });
      const at::Tensor loss = model(x).pow(2).mean();
      while (world.rank() == 1 && !near_its_end) {
        std::this_thread::yield();
      }
      loss.backward();
      expect_slices(*sharded, model->parameters(), expected);
    });
  }
}

}  // namespace
}  // namespace shardlens::fsdp
