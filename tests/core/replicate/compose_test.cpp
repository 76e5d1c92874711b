// The configurations of PyTorch's test_compose: replicate and fully_shard on parts of one model
// train like replicate on all of it.
#include <algorithm>
#include <limits>
#include <unordered_map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/relu.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include "core/composable/registry.h"
#include "core/fsdp/apply/traversal.h"
#include "core/fsdp/run/state.h"
#include "core/module/tree_of.h"
#include "core/plan/resolve.h"
#include "core/replicate/replicate.h"
#include "core/train/optimizer.h"
#include "core/train/parallel_model.h"
#include "tests/support/ranks.h"

namespace shardlens::train {
namespace {

constexpr int64_t kWidth = 20;

at::Tensor values(at::IntArrayRef shape, double seed) {
  int64_t numel = 1;
  for (const int64_t size : shape) {
    numel *= size;
  }
  return at::arange(numel, at::kFloat).mul(0.7).add(seed).sin().view(shape);
}

struct LinearImpl : torch::nn::Module {
  LinearImpl() : inner(register_module("inner", torch::nn::Linear(kWidth, kWidth))) {}
  at::Tensor forward(const at::Tensor& x) { return inner(x); }
  torch::nn::Linear inner{nullptr};
};
SHARDLENS_MODULE(Linear);

struct UnitImpl : torch::nn::Module {
  UnitImpl()
      : l1(register_module("l1", Linear())),
        seq(register_module("seq", Linear())),
        l2(register_module("l2", Linear())) {}
  at::Tensor forward(const at::Tensor& x) { return l2(at::relu(seq(at::relu(l1(x))))); }
  Linear l1, seq, l2;
};
SHARDLENS_MODULE(Unit);

// Model and CompositeModel of test_compose in one: l1, units, l2.
struct ModelImpl : torch::nn::Module {
  ModelImpl()
      : l1(register_module("l1", Linear())),
        u1(register_module("u1", Unit())),
        u2(register_module("u2", Unit())),
        l2(register_module("l2", Linear())) {}
  at::Tensor forward(const at::Tensor& x) { return l2(u2(u1(l1(x)))); }
  Linear l1;
  Unit u1, u2;
  Linear l2;
};
SHARDLENS_MODULE(Model);

Model model_of(double seed) {
  Model model;
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : model->parameters()) {
    parameter.copy_(values(parameter.sizes(), seed++).mul(0.2));
  }
  return model;
}

struct Trained {
  Model model{nullptr};
  std::shared_ptr<fsdp::ShardedModel> handle;
  std::vector<double> losses, norms;
  std::vector<at::Tensor> parameters;
};

Trained train(dist::World& world,
              const std::string& units,
              const std::string& more = "",
              double clip = std::numeric_limits<double>::infinity()) {
  Trained out;
  out.model = model_of(0);
  fsdp::Options options;
  options.world = &world;
  options.check_ledger = true;
  const plan::Plan plan =
      plan::parse_plan(R"({"version": 1, "units": )" + units + more + "}", "test");
  out.handle = apply_plan(out.model.ptr(),
                          plan::resolve(plan, module::tree_of(*out.model), world.size()), options);
  OptimizerOptions adam;
  adam.lr = 1e-2;
  adam.weight_decay = 0;
  const auto optimizer = make_optimizer(out.handle->flat_shards(), adam);
  for (int step = 0; step < 5; ++step) {
    const at::Tensor loss =
        out.model->forward(values({4, kWidth}, 100 * world.rank() + step)).square().mean();
    loss.backward();
    out.losses.push_back(loss.item<double>());
    out.norms.push_back(out.handle->clip_grad_norm(clip));
    optimizer->step();
    out.handle->optimizer_done();
    out.handle->zero_grad();
  }
  for (uint32_t i = 0; i < out.handle->plan().tree.parameters.size(); ++i) {
    out.parameters.push_back(out.handle->full_parameter(i));
  }
  return out;
}

void expect_equal(const Trained& found, const Trained& wanted) {
  for (size_t i = 0; i < wanted.losses.size(); ++i) {
    EXPECT_NEAR(found.losses[i], wanted.losses[i], 1e-5 * wanted.losses[i]) << "step " << i;
    EXPECT_NEAR(found.norms[i], wanted.norms[i], 1e-4 * wanted.norms[i]) << "step " << i;
  }
  for (size_t i = 0; i < wanted.parameters.size(); ++i) {
    EXPECT_TRUE(at::allclose(found.parameters[i], wanted.parameters[i], 1e-4, 1e-5)) << i;
  }
}

constexpr const char* kAllReplicated = R"([{"modules": "", "api": "replicate"}])";

struct Config {
  const char* name;  // as in test_compose
  const char* units;
};
void PrintTo(const Config& config, std::ostream* out) {
  *out << config.name;
}
class ComposeTest : public ::testing::TestWithParam<Config> {};

TEST_P(ComposeTest, TrainsLikeReplicateOnTheWholeModel) {
  test::run_ranks(2, [&](dist::World& world) {
    const Trained wanted = train(world, kAllReplicated);
    expect_equal(train(world, GetParam().units), wanted);
    const Trained clipped = train(world, GetParam().units, "", 0.01);
    expect_equal(clipped, train(world, kAllReplicated, "", 0.01));
    EXPECT_NE(clipped.parameters[0].sum().item<double>(),
              wanted.parameters[0].sum().item<double>());
  });
}

INSTANTIATE_TEST_SUITE_P(
    Configurations,
    ComposeTest,
    ::testing::Values(
        Config{"1fm_1r", R"([{"modules": "l1"}, {"modules": "", "api": "replicate"}])"},
        Config{"1r_1fm", R"([{"modules": "u1", "api": "replicate"}, {"modules": ""}])"},
        Config{"1r_1fa", R"([{"modules": "u1", "api": "replicate"}, {"modules": ["u2"]},
                            {"modules": ""}])"},
        Config{"1r1fm_1fm", R"([{"modules": "u1", "api": "replicate"}, {"modules": "u2"},
                               {"modules": ""}])"},
        Config{"1r1fa_1fm", R"([{"modules": "u1", "api": "replicate"}, {"modules": "u2.*"},
                               {"modules": "u2"}, {"modules": ""}])"},
        Config{"1fm1fm_1r1r_1fm",
               R"([{"modules": "u1.l1"}, {"modules": "u2.l1"},
                   {"modules": "u1", "api": "replicate"}, {"modules": "u2", "api": "replicate"},
                   {"modules": ""}])"},
        Config{"unit_of_several_modules",
               R"([{"modules": ["l1", "l2"], "api": "replicate"}, {"modules": ["u1", "u2"]}])"},
        Config{"two_reducers",
               R"([{"modules": "u1", "api": "replicate", "bucket_cap_mb": 0.001},
                   {"modules": "u2", "api": "replicate", "gradient_as_bucket_view": true},
                   {"modules": ""}])"}),
    [](const auto& config) { return std::string(config.param.name); });

// test_compose's manual configurations: modules are given to the APIs one by one, bottom-up, and
// the first forward finds the root.
struct ByHand {
  const char* name;
  std::vector<std::pair<const char*, char>> applied;  // FQN; f fully_shard, r replicate
};
void PrintTo(const ByHand& config, std::ostream* out) {
  *out << config.name;
}
class ByHandTest : public ::testing::TestWithParam<ByHand> {};

TEST_P(ByHandTest, TrainsLikeReplicateOnTheWholeModel) {
  test::run_ranks(2, [&](dist::World& world) {
    const Trained wanted = train(world, kAllReplicated);
    Model model = model_of(0);
    std::unordered_map<std::string, std::shared_ptr<torch::nn::Module>> modules;
    for (const auto& each : model->named_modules()) {
      modules[each.key()] = each.value();
    }
    for (const auto& [fqn, api] : GetParam().applied) {
      if (api == 'f') {
        fsdp::fully_shard_unit({modules.at(fqn)}, plan::parse_plan(R"({"version": 1})", "test"),
                               {.world = &world, .check_ledger = true});
      } else {
        replicate::Options options;
        options.world = &world;
        replicate::replicate(modules.at(fqn), options);
      }
    }
    torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-2));
    for (int step = 0; step < 5; ++step) {
      const at::Tensor loss =
          model->forward(values({4, kWidth}, 100 * world.rank() + step)).square().mean();
      loss.backward();
      optimizer.step();
      optimizer.zero_grad();
      EXPECT_NEAR(loss.item<double>(), wanted.losses[step], 1e-5 * wanted.losses[step]) << step;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Configurations,
    ByHandTest,
    ::testing::Values(ByHand{"1fm_1r", {{"l1", 'f'}, {"", 'r'}}},
                      ByHand{"1r_1fm", {{"u1", 'r'}, {"", 'f'}}},
                      ByHand{"1r1fm_1fm", {{"u1", 'r'}, {"u2", 'f'}, {"", 'f'}}},
                      ByHand{
                          "1fm1fm_1r1r_1fm",
                          {{"u1.l1", 'f'}, {"u2.l1", 'f'}, {"u1", 'r'}, {"u2", 'r'}, {"", 'f'}}}),
    [](const auto& config) { return std::string(config.param.name); });

struct TwoHeadsImpl : torch::nn::Module {
  TwoHeadsImpl()
      : trunk(register_module("trunk", Linear())),
        a(register_module("a", Linear())),
        b(register_module("b", Linear())) {}
  std::vector<at::Tensor> forward(const at::Tensor& x) {
    const at::Tensor hidden = trunk(x);
    return {a(hidden), b(hidden)};
  }
  Linear trunk, a, b;
};
SHARDLENS_MODULE(TwoHeads);

// Two backwards reach the trunk before its bucket is reduced, which waits for the other head.
TEST(ReplicateTest, ParameterThatIsReadyTwiceIsNamed) {
  test::run_ranks(2, [](dist::World& world) {
    TwoHeads net;
    replicate::Options options;
    options.world = &world;
    const auto state = replicate::replicate(net.ptr(), options);
    const auto heads = net->forward(values({2, kWidth}, world.rank()));
    heads[0].sum().backward({}, /*retain_graph=*/true);
    EXPECT_THAT(
        [&] { heads[1].sum().backward(); },
        ::testing::Throws<std::exception>(::testing::Property(
            &std::exception::what,
            ::testing::AllOf(::testing::HasSubstr("Expected to mark a variable ready only once"),
                             ::testing::HasSubstr("trunk.inner.")))));
    state->abort();  // the next iteration is normal
    const auto again = net->forward(values({2, kWidth}, world.rank()));
    (again[0] + again[1]).sum().backward();
    EXPECT_TRUE(net->trunk->inner->weight.grad().defined());
  });
}

// The parameters that each rank computes without the engine: gradients of `ignored` are the rank's
// own, all others are averaged.
std::vector<at::Tensor> train_ignoring(dist::World& world, const std::string& ignored) {
  Model model = model_of(0);
  OptimizerOptions adam;
  adam.lr = 1e-2;
  adam.weight_decay = 0;
  const auto optimizer = make_optimizer(model->parameters(), adam);
  for (int step = 0; step < 3; ++step) {
    model->forward(values({4, kWidth}, 100 * world.rank() + step)).square().mean().backward();
    for (const auto& each : model->named_parameters()) {
      if (!each.key().starts_with(ignored)) {
        world.world().wait(
            world.world().all_reduce(each.value().grad(), dist::ReduceOp::kAverage, {}));
      }
    }
    optimizer->step();
    model->zero_grad();
  }
  return model->parameters();
}

struct Ignored {
  const char* name;
  const char* plan;  // JSON
};
void PrintTo(const Ignored& ignored, std::ostream* out) {
  *out << ignored.name;
}
class IgnoredTest : public ::testing::TestWithParam<Ignored> {};

TEST_P(IgnoredTest, ParametersStayWholeAndKeepTheirOwnGradients) {
  test::run_ranks(2, [&](dist::World& world) {
    const std::vector<at::Tensor> wanted = train_ignoring(world, "u1.");
    Model model = model_of(0);
    fsdp::Options options;
    options.world = &world;
    options.check_ledger = true;
    const plan::Plan plan = plan::parse_plan(GetParam().plan, "test");
    const auto handle = apply_plan(
        model.ptr(), plan::resolve(plan, module::tree_of(*model), world.size()), options);
    EXPECT_EQ(fsdp::module_fsdp_state(*model->u1), nullptr);
    EXPECT_EQ(fsdp::module_fsdp_state(*model->u1->l1), nullptr);
    EXPECT_EQ(model->u1->l1->inner->weight.dim(), 2);
    OptimizerOptions adam;
    adam.lr = 1e-2;
    adam.weight_decay = 0;
    const auto optimizer = make_optimizer(handle->flat_shards(), adam);
    for (int step = 0; step < 3; ++step) {
      model->forward(values({4, kWidth}, 100 * world.rank() + step)).square().mean().backward();
      optimizer->step();
      handle->optimizer_done();
      handle->zero_grad();
    }
    for (uint32_t i = 0; i < wanted.size(); ++i) {
      EXPECT_TRUE(at::allclose(handle->full_parameter(i), wanted[i], 1e-4, 1e-5)) << i;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Plans,
    IgnoredTest,
    ::testing::Values(Ignored{"modules",
                              R"({"version": 1, "units": [{"modules": ""}, {"modules": "u2"}],
                                  "ignored_modules": ["u1"]})"},
                      Ignored{"parameters",
                              R"({"version": 1, "units": [{"modules": ""}],
                                  "ignored_parameters": ["u1.**"]})"},
                      Ignored{"modules_of_replicate",
                              R"({"version": 1, "units": [{"modules": "", "api": "replicate"}],
                                  "ignored_modules": ["u1"]})"}),
    [](const auto& ignored) { return std::string(ignored.param.name); });

TEST(IgnoredByHandTest, UnitsIgnoreToo) {
  test::run_ranks(2, [&](dist::World& world) {
    const std::vector<at::Tensor> wanted = train_ignoring(world, "u1.l1.");
    Model model = model_of(0);
    const plan::Plan ignoring =
        plan::parse_plan(R"({"version": 1, "ignored_modules": ["l1"]})", "test");
    fsdp::fully_shard_unit({model->u1.ptr()}, ignoring, {.world = &world});
    fsdp::fully_shard_unit({model.ptr()}, plan::parse_plan(R"({"version": 1})", "test"),
                           {.world = &world});
    EXPECT_EQ(composable::module_state(*model->u1->l1), nullptr);
    torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-2));
    for (int step = 0; step < 3; ++step) {
      model->forward(values({4, kWidth}, 100 * world.rank() + step)).square().mean().backward();
      optimizer.step();
      optimizer.zero_grad();
    }
    const auto sharded = fsdp::lazy_init(model.ptr());
    const plan::ModuleTree& tree = sharded->plan().tree;
    for (uint32_t i = 0; i < wanted.size(); ++i) {
      const bool ignored = tree.parameters[i].fqn.starts_with("u1.l1.");
      EXPECT_EQ(std::count(sharded->plan().ignored_parameters.begin(),
                           sharded->plan().ignored_parameters.end(), i),
                ignored ? 1 : 0);
      const at::Tensor found = ignored ? model->parameters()[i] : sharded->full_parameter(i);
      EXPECT_TRUE(at::allclose(found, wanted[i], 1e-4, 1e-5)) << i;
    }
  });
}

TEST(MixedModelTest, StatesAndTraversalStopAtReplicatedParts) {
  test::run_ranks(1, [&](dist::World& world) {
    const Trained mixed =
        train(world, R"([{"modules": "u1.l1"}, {"modules": "u1", "api": "replicate"},
                                           {"modules": "u2"}, {"modules": ""}])");
    const auto states = fsdp::fsdp_states_with_modules(mixed.model.ptr());
    std::vector<const torch::nn::Module*> found;
    for (const auto& each : states) {
      found.push_back(each.module.get());
    }
    EXPECT_EQ(found,
              (std::vector<const torch::nn::Module*>{mixed.model.get(), mixed.model->u2.get()}));
    EXPECT_EQ(fsdp::fsdp_states(mixed.model->u1->l1.ptr()).size(), 1U);
    EXPECT_EQ(composable::module_state_as<fsdp::FsdpState>(*mixed.model->u1), nullptr);
    EXPECT_NE(composable::module_state_as<replicate::ReplicateState>(*mixed.model->u1->seq),
              nullptr);
    EXPECT_TRUE(composable::has_api(*mixed.model->u1, "replicate"));
    EXPECT_FALSE(composable::has_api(*mixed.model->u1, "fully_shard"));
  });
}

TEST(MixedModelTest, NothingIsLeftWhenTheModelDies) {
  const int64_t before = replicate::ReplicateState::live();
  test::run_ranks(2, [&](dist::World& world) {
    train(world, R"([{"modules": "u1", "api": "replicate"}, {"modules": ""}])");
  });
  EXPECT_EQ(replicate::ReplicateState::live(), before);
}

TEST(MixedModelTest, AbortBringsBothPartsBack) {
  test::run_ranks(2, [&](dist::World& world) {
    Trained mixed = train(world, R"([{"modules": "u1", "api": "replicate"}, {"modules": ""}])");
    at::Tensor output = mixed.model->forward(values({4, kWidth}, 1));
    output.register_hook(
        [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("backward fails"); });
    EXPECT_THROW(output.square().mean().backward(), std::runtime_error);
    mixed.handle->abort();
    EXPECT_EQ(mixed.handle->unsharded_bytes(), 0);
    mixed.model->forward(values({4, kWidth}, 1)).square().mean().backward();
    for (const at::Tensor& shard : mixed.handle->flat_shards()) {
      EXPECT_TRUE(shard.grad().defined());
    }
  });
}

}  // namespace
}  // namespace shardlens::train
