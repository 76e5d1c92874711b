// Units applied one by one, bottom-up: the first forward finds the root. After PyTorch's
// test_fully_shard_init (TestFullyShardLazyInit).
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/sgd.h>

#include "core/base/error.h"
#include "core/composable/contract.h"
#include "core/composable/managed.h"
#include "core/dist/world.h"
#include "core/fsdp/apply/traversal.h"
#include "core/fsdp/run/root.h"
#include "tests/core/fsdp/mlp.h"
#include "tests/support/ranks.h"

namespace shardlens::fsdp {
namespace {

using test::Mlp;
using test::mlp_plan;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

using ModulePtr = std::shared_ptr<torch::nn::Module>;
using HookedLinear = torch::nn::ModuleHolder<module::Hookable<torch::nn::LinearImpl>>;

constexpr int64_t kLazyRootWidth = 5;

plan::Plan defaults() {
  return plan::parse_plan(R"({"version": 1})", "test");
}

struct SequenceImpl : torch::nn::SequentialImpl {
  using SequentialImpl::SequentialImpl;
  at::Tensor forward(const at::Tensor& x) { return SequentialImpl::forward(x); }
};
SHARDLENS_MODULE(Sequence);

Mlp make_lazy_model(int64_t blocks = 3) {
  return test::make_mlp(kLazyRootWidth, blocks);
}

at::Tensor rows_of(int rank) {
  return test::seeded({4, kLazyRootWidth}, static_cast<uint64_t>(100 + rank));
}

at::Tensor lazy_loss_of(Mlp& model, int rank) {
  return model(rows_of(rank)).pow(2).mean();
}

// Every action of a run, as text.
struct Actions : NullRecorder {
  void units(std::span<const std::string> fqns) override { names.assign(fqns.begin(), fqns.end()); }
  void action(uint32_t /*seq*/, const schedule::Action& action) override {
    seen.push_back(std::string(schedule::name_of(action.op)) + " " + names.at(action.unit) + " " +
                   std::string(schedule::name_of(action.cause)));
  }
  std::vector<std::string> names, seen;
};

std::vector<std::string> fqns_of(const FsdpState& state) {
  std::vector<std::string> fqns;
  for (const auto& slot : state.handle()->slots()) {
    fqns.push_back(slot.fqn);
  }
  return fqns;
}

class LazyRootTest : public testing::Test {
 protected:
  void shard(const std::vector<ModulePtr>& modules, const plan::Plan& settings = defaults()) {
    fully_shard_unit(modules, settings, {.world = world.get(), .check_ledger = true});
  }
  std::unique_ptr<dist::World> world = dist::World::join({});
};

// test_fully_shard_is_root and test_fully_shard_module_and_param_fqns: Seq(MLP, MLP), units
// [0].in_proj, [0].out_proj and the root.
TEST_F(LazyRootTest, FirstForwardPicksTheRootAndNamesItsUnits) {
  struct Parts {
    HookedLinear in_proj{3, 5}, out_proj{5, 3};
  } part[2];
  Sequence model(Sequence(part[0].in_proj, part[0].out_proj),
                 Sequence(part[1].in_proj, part[1].out_proj));
  shard({part[0].in_proj.ptr()});
  shard({part[0].out_proj.ptr()});
  shard({model.ptr()});
  const auto root = module_fsdp_state(*model), in_proj = module_fsdp_state(*part[0].in_proj),
             out_proj = module_fsdp_state(*part[0].out_proj);
  EXPECT_FALSE(root->is_root() || in_proj->is_root());
  EXPECT_EQ(root->root(), nullptr);
  EXPECT_THAT(fqns_of(*in_proj), ElementsAre("weight", "bias"));  // relative to itself

  model(at::ones({2, 3}));
  EXPECT_TRUE(root->is_root());
  EXPECT_FALSE(in_proj->is_root());
  EXPECT_FALSE(out_proj->is_root());
  ASSERT_NE(root->root(), nullptr);
  EXPECT_THAT(root->root()->states(), ElementsAre(root, in_proj, out_proj));
  EXPECT_EQ(in_proj->root(), root->root());  // one schedule and one context
  EXPECT_EQ(in_proj->handle()->unit(), "0.0");
  EXPECT_THAT(fqns_of(*in_proj), ElementsAre("0.0.weight", "0.0.bias"));
  EXPECT_THAT(fqns_of(*out_proj), ElementsAre("0.1.weight", "0.1.bias"));
  EXPECT_THAT(fqns_of(*root), ElementsAre("1.0.weight", "1.0.bias", "1.1.weight", "1.1.bias"));
}

// test_fully_shard_double_lazy_init.
TEST_F(LazyRootTest, PartThatRanBeforeItsRootIsNamed) {
  Mlp model = make_lazy_model();
  shard({model->order[1].ptr()});
  shard({model.ptr()});
  model->order[1](rows_of(0));  // now it is a root of its own
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_THAT([&] { (void)model(rows_of(0)); },
                ThrowsMessage<UsageError>(AllOf(
                    HasSubstr("FSDP state has already been lazily initialized for layers.1"),
                    HasSubstr("FSDP requires running forward through the root module first"))));
  }
  EXPECT_THAT([&] { (void)lazy_init(model.ptr()); },
              ThrowsMessage<UsageError>(HasSubstr("lazily initialized for layers.1")));
  EXPECT_TRUE(module_fsdp_state(*model->order[1])->is_root());
}

// test_fully_shard_multi_module_root.
TEST_F(LazyRootTest, RootOfSeveralModulesIsRefused) {
  Mlp model = make_lazy_model();
  shard({model->order[0].ptr(), model->order[2].ptr()});
  EXPECT_THAT([&] { (void)model(rows_of(0)); },
              ThrowsMessage<UsageError>(
                  HasSubstr("FSDP requires a single root module but got [Block, Block]")));
}

TEST_F(LazyRootTest, ParametersAreSlicesAtOnceAndAnOptimizerMayHoldThem) {
  test::run_ranks(2, [](dist::World& two) {
    Mlp model = make_lazy_model(1);
    const auto all = [&] {
      std::vector<at::Tensor> flat;
      for (const at::Tensor& p : model->parameters()) {
        flat.push_back(p.detach().reshape({-1}));
      }
      return at::cat(flat);
    };
    const int64_t whole = all().numel();
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    fully_shard_unit({model.ptr()}, defaults(), {.world = &two});
    EXPECT_EQ(model->in->weight.dim(), 1);
    EXPECT_LT(all().numel(), whole);
    EXPECT_EQ(module_fsdp_state(*model)->handle()->layout().numel(), whole);
    lazy_loss_of(model, two.rank()).backward();
    const at::Tensor before = all();
    optimizer.step();
    EXPECT_FALSE(at::equal(before, all()));
  });
}

// Expects two ways of applying one plan to give the same actions, gradients and names.
void expect_same_run(const std::function<std::shared_ptr<ShardedModel>(Mlp&, const Options&)>& a,
                     const std::function<std::shared_ptr<ShardedModel>(Mlp&, const Options&)>& b) {
  test::run_ranks(2, [&](dist::World& two) {
    Actions actions[2];
    std::vector<at::Tensor> gradients[2];
    for (int way = 0; way < 2; ++way) {
      Mlp model = make_lazy_model();
      const auto sharded = (way == 0 ? a : b)(
          model, {.world = &two, .recorder = &actions[way], .check_ledger = true});
      for (int step = 0; step < 2; ++step) {
        lazy_loss_of(model, two.rank()).backward();
        const double norm = sharded->clip_grad_norm(0.1);
        EXPECT_GT(norm, 0.1);
        for (const at::Tensor& p : model->parameters()) {
          gradients[way].push_back(p.grad().clone());
        }
        model->zero_grad();
        sharded->optimizer_done();
      }
      EXPECT_EQ(sharded->unsharded_bytes(), 0);
    }
    EXPECT_EQ(actions[0].names, actions[1].names);
    EXPECT_FALSE(actions[0].seen.empty());
    EXPECT_EQ(actions[0].seen, actions[1].seen);
    ASSERT_EQ(gradients[0].size(), gradients[1].size());
    for (size_t i = 0; i < gradients[0].size(); ++i) {
      EXPECT_TRUE(at::equal(gradients[0][i], gradients[1][i])) << i;
    }
  });
}

TEST_F(LazyRootTest, BottomUpRunsAsThePlanDoes) {
  expect_same_run(
      [](Mlp& model, const Options& options) {
        return fully_shard(model.ptr(), mlp_plan(), options);
      },
      [](Mlp& model, const Options& options) {
        for (test::Block& block : model->order) {
          fully_shard_unit({block.ptr()}, defaults(), options);
        }
        fully_shard_unit({model.ptr()}, defaults(), options);
        return lazy_init(model.ptr());
      });
}

TEST_F(LazyRootTest, UnitsOfSeveralModulesAndSettingsOfTheirOwn) {
  const plan::Plan kept =
      plan::parse_plan(R"({"version": 1, "reshard_after_forward": false})", "test");
  expect_same_run(
      [](Mlp& model, const Options& options) {
        return fully_shard(model.ptr(),
                           plan::parse_plan(R"({"version": 1, "units": [{"modules": ""},
            {"modules": ["layers.0", "layers.2"]}, {"modules": "layers.1", "reshard_after_forward": false}]})",
                                            "test"),
                           options);
      },
      [&](Mlp& model, const Options& options) {
        fully_shard_unit({model->order[0].ptr(), model->order[2].ptr()}, defaults(), options);
        fully_shard_unit({model->order[1].ptr()}, kept, options);
        fully_shard_unit({model.ptr()}, defaults(), options);
        return lazy_init(model.ptr());
      });
}

TEST_F(LazyRootTest, APlanTakesPartsThatWereShardedBefore) {
  for (const char* units :
       {"", R"(, "units": [{"modules": ""}, {"modules": "layers.0"}, {"modules": "layers.2"}])"}) {
    const plan::Plan rest = plan::parse_plan(std::string(R"({"version": 1)") + units + "}", "test");
    expect_same_run(
        [](Mlp& model, const Options& options) {
          return fully_shard(model.ptr(), mlp_plan(), options);
        },
        [&](Mlp& model, const Options& options) {
          fully_shard_unit({model->order[1].ptr()}, defaults(), options);
          return fully_shard(model.ptr(), rest, options);
        });
  }
}

TEST_F(LazyRootTest, PoliciesOfAPlanKnowThePartsThatWereShardedBefore) {
  Mlp model = make_lazy_model();
  shard({model->order[1].ptr()});
  const auto outer = [&](const std::string& policy) {
    const plan::Plan plan = plan::parse_plan(
        R"({"version": 1, "units": [{"modules": ""}, {"modules": ")" + policy + "\"}]}", "test");
    static_cast<void>(fully_shard(model.ptr(), plan, {.world = world.get()}));
  };
  // As PyTorch's policies do for "an FSDP-managed module already".
  EXPECT_THAT([&] { outer("class:Block"); },
              ThrowsMessage<UsageError>(HasSubstr("fully_shard has already been applied")));
  EXPECT_THAT([&] { outer("size:10"); }, ThrowsMessage<UsageError>(HasSubstr(
                                             "'size:10' cannot choose the units of a model "
                                             "with a part, 'layers.1', that has its own API")));
}

TEST_F(LazyRootTest, UnitsWithoutACommonRootAreRootsOfTheirOwn) {
  Mlp plain = make_lazy_model();
  for (int rank = 0; rank < 2; ++rank) {
    (lazy_loss_of(plain, rank) / 2).backward();
  }
  test::run_ranks(2, [&](dist::World& two) {
    Mlp model = make_lazy_model();
    for (test::Block& block : model->order) {
      fully_shard_unit({block.ptr()}, defaults(), {.world = &two, .check_ledger = true});
    }
    lazy_loss_of(model, two.rank()).backward();
    for (size_t b = 0; b < model->order.size(); ++b) {
      const auto state = module_fsdp_state(*model->order[b]);
      EXPECT_TRUE(state->is_root());
      EXPECT_EQ(state->handle()->unit(), "");
      for (const ParameterSlice& slice : state->root()->slices()) {
        const at::Tensor expected = plain->order[b]->parameters()[slice.parameter].grad();
        EXPECT_TRUE(at::allclose(
            model->order[b]->parameters()[slice.parameter].grad(),
            expected.reshape({-1}).narrow(0, slice.offset, slice.values.numel()), 1e-5, 1e-6));
      }
    }
    EXPECT_EQ(fsdp_root_states(model.ptr()).size(), 3U);
    EXPECT_EQ(model->in->weight.dim(), 2);  // in no unit: whole, with this rank's own gradient
  });
}

TEST_F(LazyRootTest, RootLeavesReplicatedPartsAlone) {
  Mlp model = make_lazy_model();
  static const composable::Api replicate("replicate");
  composable::apply(replicate, {model->order[1].ptr()}, std::make_shared<composable::State>(),
                    [](const composable::Modules& modules) { return modules; });
  shard({model->order[0].ptr()});
  shard({model.ptr()});
  lazy_loss_of(model, 0).backward();
  EXPECT_EQ(model->order[1]->up->weight.dim(), 2);
  EXPECT_EQ(composable::module_state(*model->order[1]->up), nullptr);
  EXPECT_FALSE(composable::is_managed(*model->order[1]));
  for (const auto& state : fsdp_states(model.ptr())) {
    for (const std::string& fqn : fqns_of(*state)) {
      EXPECT_THAT(fqn, testing::Not(testing::StartsWith("layers.1")));
    }
  }
  // With a plan, too.
  Mlp other = make_lazy_model();
  composable::apply(replicate, {other->order[1].ptr()}, std::make_shared<composable::State>(),
                    [](const composable::Modules& modules) { return modules; });
  const auto sharded = fully_shard(
      other.ptr(), plan::parse_plan(R"({"version": 1, "units": [{"modules": ""}]})", "test"),
      {.world = world.get()});
  lazy_loss_of(other, 0).backward();
  EXPECT_EQ(other->order[1]->up->weight.dim(), 2);
  EXPECT_EQ(sharded->flat_shards().size(), 1U);
}

// test_managed_modules_nested: the root manages the modules that no nested unit manages.
TEST_F(LazyRootTest, ModulesMapToTheUnitAroundThem) {
  Mlp model = make_lazy_model();
  shard({model->order[0].ptr()});
  shard({model.ptr()});
  const auto root = module_fsdp_state(*model), nested = module_fsdp_state(*model->order[0]);
  EXPECT_NE(root, nested);
  EXPECT_EQ(module_fsdp_state(*model->order[0]->up), nested);
  EXPECT_EQ(module_fsdp_state(*model->order[1]->up), root);
  EXPECT_EQ(module_fsdp_state(*model->in), root);
  EXPECT_EQ(composable::state_of(fully_shard_api(), *model), root);
  EXPECT_TRUE(composable::is_managed(*model->order[1]->up));
}

TEST_F(LazyRootTest, WrongApplicationsAreNamed) {
  Mlp model = make_lazy_model();
  EXPECT_THAT([&] { shard({model->layers.ptr()}); },
              ThrowsMessage<UsageError>(HasSubstr(
                  "fully_shard does not support containers that do not implement forward")));
  EXPECT_THAT([&] { shard({model->in.ptr()}); },
              ThrowsMessage<UsageError>(HasSubstr("SHARDLENS_MODULE")));
  EXPECT_THAT([&] { shard({}); }, ThrowsMessage<UsageError>(HasSubstr("at least one module")));
  EXPECT_EQ(composable::registry(*model), nullptr);
  shard({model->order[0].ptr()});
  EXPECT_THAT([&] { shard({model->order[0].ptr()}); },
              ThrowsMessage<UsageError>(HasSubstr("fully_shard has already been applied")));
  EXPECT_THAT(
      [&] {
        shard({model->order[1].ptr(), model->order[0].ptr()});
      },
      ThrowsMessage<UsageError>(HasSubstr("fully_shard has already been applied")));
  EXPECT_EQ(composable::registry(*model->order[1]), nullptr);
  EXPECT_THAT([&] { (void)lazy_init(model->order[2].ptr()); },
              ThrowsMessage<UsageError>(HasSubstr("is not sharded")));
  shard({model.ptr()});
  static_cast<void>(lazy_init(model.ptr()));
  EXPECT_THAT([&] { (void)lazy_init(model->order[0].ptr()); },
              ThrowsMessage<UsageError>(HasSubstr("is a unit of another root")));
  EXPECT_THAT([&] { shard({model.ptr()}); },
              ThrowsMessage<UsageError>(HasSubstr("fully_shard has already been applied")));
}

struct TiedImpl : torch::nn::Module {
  explicit TiedImpl(at::Tensor tied) : weight(register_parameter("weight", std::move(tied))) {}
  at::Tensor forward(const at::Tensor& x) { return x.matmul(weight); }
  at::Tensor weight;
};
SHARDLENS_MODULE(Tied);

TEST_F(LazyRootTest, ParameterOfTwoUnitsIsNamedWithBoth) {
  const at::Tensor tied = at::ones({3, 3});
  Tied a(tied), b(tied);
  Sequence model(a, b);
  shard({a.ptr()});
  EXPECT_THAT([&] { shard({b.ptr()}); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("parameter 'weight' of unit the root"),
                                              HasSubstr("is managed by unit"))));
  EXPECT_EQ(composable::registry(*b), nullptr);
  Tied c(at::ones({3, 3})), d(c->weight);
  Sequence together(c, d);
  shard({c.ptr(), d.ptr()});
  shard({together.ptr()});
  EXPECT_EQ(together(at::ones({2, 3})).sizes(), at::IntArrayRef({2, 3}));
  EXPECT_THAT(fqns_of(*module_fsdp_state(*d)), ElementsAre("0.weight"));
}

TEST_F(LazyRootTest, UnitsOfOneRootMustAgree) {
  const plan::Plan frozen = plan::parse_plan(R"({"version": 1, "views": "frozen"})", "test");
  Mlp model = make_lazy_model();
  shard({model->order[0].ptr()}, frozen);
  shard({model.ptr()});
  EXPECT_THAT([&] { (void)model(rows_of(0)); },
              ThrowsMessage<UsageError>(
                  AllOf(HasSubstr("one homogeneous value for views"), HasSubstr("'layers.0'"))));
}

TEST_F(LazyRootTest, UnitMustBeWhatItWasWhenItWasSharded) {
  Sequence model(HookedLinear(3, 3));
  shard({model.ptr()});
  model->register_parameter("late", at::ones({2}));
  EXPECT_THAT([&] { (void)model(at::ones({1, 3})); }, ThrowsMessage<Error>(HasSubstr("late")));
}

TEST_F(LazyRootTest, NothingIsLeftWhenTheModelDies) {
  const size_t mapped = composable::module_state_count();
  std::weak_ptr<FsdpState> root, child;
  {
    Mlp model = make_lazy_model();
    shard({model->order[0].ptr()});
    shard({model.ptr()});
    lazy_loss_of(model, 0).backward();
    root = module_fsdp_state(*model);
    child = module_fsdp_state(*model->order[0]);
  }
  EXPECT_TRUE(root.expired());
  EXPECT_TRUE(child.expired());
  EXPECT_EQ(composable::module_state_count(), mapped);
}

}  // namespace
}  // namespace shardlens::fsdp
