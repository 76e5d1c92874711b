#include "core/fsdp/apply/traversal.h"

#include <functional>
#include <random>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/container/sequential.h>

#include "core/base/error.h"
#include "core/composable/contract.h"
#include "core/composable/managed.h"
#include "core/dist/world.h"
#include "core/fsdp/apply/sharded_tree.h"
#include "tests/core/fsdp/mlp.h"

namespace shardlens::fsdp {
namespace {

using test::Mlp;
using test::mlp_plan;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::ThrowsMessage;

using ModulePtr = std::shared_ptr<torch::nn::Module>;
using HookedLinear = torch::nn::ModuleHolder<module::Hookable<torch::nn::LinearImpl>>;

struct NestedChainImpl : torch::nn::SequentialImpl {
  using SequentialImpl::SequentialImpl;
  at::Tensor forward(const at::Tensor& x) { return SequentialImpl::forward(x); }
};
SHARDLENS_MODULE(NestedChain);

struct UnitModuleImpl : torch::nn::Module {
  explicit UnitModuleImpl(int64_t width)
      : l1(register_module("l1", torch::nn::Linear(width, width))),
        seq(register_module("seq",
                            torch::nn::Sequential(torch::nn::Functional(at::relu),
                                                  torch::nn::Linear(width, width),
                                                  torch::nn::Functional(at::relu)))),
        l2(register_module("l2", torch::nn::Linear(width, width))) {}
  at::Tensor forward(const at::Tensor& x) { return l2(seq->forward(l1(x))); }
  torch::nn::Linear l1;
  torch::nn::Sequential seq;
  torch::nn::Linear l2;
};
SHARDLENS_MODULE(UnitModule);

struct CompositeModelImpl : torch::nn::Module {
  CompositeModelImpl()
      : l1(register_module("l1", torch::nn::Linear(4, 4))),
        u1(register_module("u1", UnitModule(4))),
        u2(register_module("u2", UnitModule(4))),
        l2(register_module("l2", torch::nn::Linear(4, 4))) {}
  at::Tensor forward(const at::Tensor& x) { return l2(u2(u1(l1(x)))); }
  torch::nn::Linear l1;
  UnitModule u1, u2;
  torch::nn::Linear l2;
};
SHARDLENS_MODULE(CompositeModel);

plan::Plan traversal_plan_of(const std::string& units) {
  return plan::parse_plan(R"({"version": 1, "units": )" + units + "}", "test");
}

std::vector<ModulePtr> modules_of(const std::vector<StateWithModule>& found) {
  std::vector<ModulePtr> modules;
  for (const StateWithModule& each : found) {
    modules.push_back(each.module);
  }
  return modules;
}

// Registers replicate() on a module. Its state is destroyed at once, which must not matter.
void mark_replicated(const ModulePtr& module) {
  static const composable::Api replicate("replicate");
  composable::apply(replicate, {module}, std::make_shared<composable::State>(),
                    [](const composable::Modules& modules) { return modules; });
}

class TraversalTest : public testing::Test {
 protected:
  // Adds a module without contents below `parent`, with its own state if `with_state`.
  ModulePtr add(const ModulePtr& parent, const std::string& name, bool with_state) {
    auto module = std::make_shared<torch::nn::Module>();
    if (with_state) {
      give_state(module);
    }
    parent->register_module(name, module);
    return module;
  }
  std::shared_ptr<FsdpState> give_state(const ModulePtr& module,
                                        std::shared_ptr<FsdpState> state = nullptr) {
    if (state == nullptr) {
      state = std::make_shared<FsdpState>(static_cast<UnitId>(states.size()));
      states.push_back(state);
    }
    composable::insert_module_state(module, state);
    return state;
  }
  std::unique_ptr<dist::World> world = dist::World::join({});
  ModulePtr root = std::make_shared<torch::nn::Module>();
  std::vector<std::shared_ptr<FsdpState>> states;
};

TEST_F(TraversalTest, StatesComeDepthFirstWithTheModuleThatOwnsThem) {
  Mlp model(4, 2);
  const auto sharded = fully_shard(model.ptr(), mlp_plan(), {.world = world.get()});
  const auto found = fsdp_states_with_modules(model.ptr());
  EXPECT_THAT(modules_of(found),
              ElementsAre(model.ptr(), model->order[0].ptr(), model->order[1].ptr()));
  EXPECT_EQ(found[1].state, module_fsdp_state(*model->order[0]));
  EXPECT_EQ(fsdp_root_states(model.ptr()).size(), 1U);
  EXPECT_EQ(fsdp_handles(model.ptr()).size(), 3U);
  EXPECT_EQ(fsdp_states(model->order[1].ptr()).size(), 1U);
}

// PyTorch's test_fsdp_traversal: Seq(Lin, Unit(Seq(Unit(Lin), Lin)), Unit(Lin), Lin), not sharded
// as a whole.
TEST_F(TraversalTest, NestedWrappedModuleHasTwoLocalRoots) {
  const HookedLinear inner(4, 16), third(16, 4);
  const NestedChain second(inner, torch::nn::Linear(16, 16));
  const torch::nn::Sequential model(torch::nn::Linear(8, 4), second, third,
                                    torch::nn::Linear(4, 8));
  const auto a =
      fully_shard(second.ptr(), traversal_plan_of(R"([{"modules": ""}, {"modules": "0"}])"),
                  {.world = world.get()});
  const auto b =
      fully_shard(third.ptr(), traversal_plan_of(R"([{"modules": ""}])"), {.world = world.get()});
  EXPECT_THAT(modules_of(fsdp_states_with_modules(model.ptr())),
              ElementsAre(second.ptr(), inner.ptr(), third.ptr()));
  EXPECT_THAT(fsdp_root_states(model.ptr()),
              ElementsAre(module_fsdp_state(*second), module_fsdp_state(*third)));
  EXPECT_EQ(fsdp_handles(model.ptr()).size(), 3U);
}

// test_fully_shard_is_root: Seq(MLP, MLP), units [0].up, [0].down and the root.
TEST_F(TraversalTest, UnitsBelowOneBlockAndTheRoot) {
  struct Parts {
    HookedLinear up{3, 5}, down{5, 3};
  } part[2];
  const NestedChain model(NestedChain(part[0].up, part[0].down),
                          NestedChain(part[1].up, part[1].down));
  const auto sharded =
      fully_shard(model.ptr(),
                  traversal_plan_of(R"([{"modules": ""}, {"modules": "0.0"}, {"modules": "0.1"}])"),
                  {.world = world.get()});
  EXPECT_THAT(modules_of(fsdp_states_with_modules(model.ptr())),
              ElementsAre(model.ptr(), part[0].up.ptr(), part[0].down.ptr()));
  const auto roots = fsdp_root_states(model.ptr());
  ASSERT_EQ(roots.size(), 1U);
  EXPECT_EQ(roots[0]->handle()->unit(), "");
  std::vector<std::string> fqns;
  for (const auto& slot : roots[0]->handle()->slots()) {
    fqns.push_back(slot.fqn);
  }
  EXPECT_THAT(fqns, ElementsAre("1.0.weight", "1.0.bias", "1.1.weight", "1.1.bias"));
}

TEST_F(TraversalTest, SharedModuleIsReportedOnceWhereItIsMetFirst) {
  const ModulePtr a = add(root, "a", true);
  const ModulePtr shared = add(a, "shared", true);
  const ModulePtr b = add(root, "b", true);
  b->register_module("again", shared);
  EXPECT_THAT(modules_of(fsdp_states_with_modules(root)), ElementsAre(a, shared, b));
}

TEST_F(TraversalTest, SharedStateIsReportedOnceAtItsFirstOwner) {
  const ModulePtr a = add(root, "a", false), b = add(root, "b", true), c = add(root, "c", false);
  const auto shared = give_state(a);
  give_state(c, shared);
  const auto found = fsdp_states_with_modules(root);
  EXPECT_THAT(modules_of(found), ElementsAre(a, b));
  EXPECT_EQ(found[0].state, shared);
}

TEST_F(TraversalTest, ChildPushedByTwoParentsBeforeItIsVisited) {
  // The root pushes c and a; a, visited first, pushes c again.
  const ModulePtr a = add(root, "a", true);
  const ModulePtr c = add(root, "c", true);
  const ModulePtr below = add(c, "below", true);
  a->register_module("c", c);
  EXPECT_THAT(modules_of(fsdp_states_with_modules(root)), ElementsAre(a, c, below));
}

TEST_F(TraversalTest, CycleOfModulesEnds) {
  const ModulePtr a = add(root, "a", true);
  a->register_module("up", root);
  EXPECT_THAT(modules_of(fsdp_states_with_modules(root)), ElementsAre(a));
  a->unregister_module("up");
}

TEST_F(TraversalTest, ReplicatedSubtreeIsNotEntered) {
  const ModulePtr replicated = add(root, "replicated", false);
  const ModulePtr middle = add(replicated, "middle", false);
  const ModulePtr sharded = add(middle, "sharded", true);
  const ModulePtr beside = add(root, "beside", true);
  mark_replicated(replicated);
  EXPECT_THAT(modules_of(fsdp_states_with_modules(root)), ElementsAre(beside));
  // Found when the walk starts at it, or at a module between.
  EXPECT_THAT(modules_of(fsdp_states_with_modules(sharded)), ElementsAre(sharded));
  EXPECT_THAT(modules_of(fsdp_states_with_modules(middle)), ElementsAre(sharded));
  EXPECT_THAT(fsdp_states(replicated), IsEmpty());
}

TEST_F(TraversalTest, ReplicatedRootHasNoStates) {
  Mlp model(4, 2);
  const auto sharded = fully_shard(model->order[0].ptr(), traversal_plan_of(R"([{"modules": ""}])"),
                                   {.world = world.get()});
  mark_replicated(model.ptr());
  EXPECT_THAT(fsdp_states_with_modules(model.ptr()), IsEmpty());
  EXPECT_THAT(fsdp_states(model.ptr()), IsEmpty());
  EXPECT_THAT(fsdp_root_states(model.ptr()), IsEmpty());
  EXPECT_THAT(fsdp_handles(model.ptr()), IsEmpty());
  EXPECT_EQ(fsdp_handles(model->order[0].ptr()).size(), 1U);
}

TEST_F(TraversalTest, ModuleSharedWithAReplicatedParentIsFoundThroughTheOther) {
  const ModulePtr replicated = add(root, "replicated", false);
  const ModulePtr shared = add(replicated, "shared", true);
  root->register_module("other", shared);
  mark_replicated(replicated);
  EXPECT_THAT(modules_of(fsdp_states_with_modules(root)), ElementsAre(shared));
}

TEST_F(TraversalTest, OtherApisDoNotStopTheWalk) {
  static const composable::Api checkpoint("checkpoint");
  const ModulePtr a = add(root, "a", false);
  const ModulePtr sharded = add(a, "sharded", true);
  const auto state = std::make_shared<composable::State>();
  composable::apply(checkpoint, {a}, state,
                    [](const composable::Modules& modules) { return modules; });
  EXPECT_TRUE(composes_with_fsdp(*a));
  EXPECT_THAT(modules_of(fsdp_states_with_modules(root)), ElementsAre(sharded));
}

TEST_F(TraversalTest, UntouchedModuleComposesAndIsNotSharded) {
  Mlp model(4, 1);
  EXPECT_TRUE(composes_with_fsdp(*model));
  EXPECT_FALSE(is_fully_sharded(*model));
  const auto sharded = fully_shard(model.ptr(), mlp_plan(), {.world = world.get()});
  EXPECT_TRUE(is_fully_sharded(*model));
  EXPECT_TRUE(composes_with_fsdp(*model));
  EXPECT_FALSE(is_fully_sharded(*model->order[0]->up));  // managed, but not given to the API
  mark_replicated(model->out.ptr());
  EXPECT_FALSE(composes_with_fsdp(*model->out));
}

TEST_F(TraversalTest, StatesOfOtherApisAreNoFsdpStates) {
  const ModulePtr a = add(root, "a", false), b = add(root, "b", true);
  const auto other = std::make_shared<composable::State>();
  composable::insert_module_state(a, other);
  EXPECT_EQ(module_fsdp_state(*a), nullptr);
  EXPECT_THAT(modules_of(fsdp_states_with_modules(root)), ElementsAre(b));
}

TEST_F(TraversalTest, HandlesKeepTheOrderAndSkipStatesWithoutParameters) {
  const HookedLinear first(3, 4), second(4, 5);
  const NestedChain model(first, second);  // owns nothing itself
  const auto sharded =
      fully_shard(model.ptr(), traversal_plan_of(R"([{"modules": ""}, {"modules": "*"}])"),
                  {.world = world.get()});
  EXPECT_EQ(fsdp_states(model.ptr()).size(), 3U);
  const auto handles = fsdp_handles(model.ptr());
  ASSERT_EQ(handles.size(), 2U);
  EXPECT_EQ(handles[0]->unit(), "0");
  EXPECT_EQ(handles[0]->layout().numel(), 3 * 4 + 4);
  EXPECT_EQ(handles[1]->unit(), "1");
  EXPECT_EQ(handles[1]->layout().numel(), 4 * 5 + 5);
}

TEST_F(TraversalTest, RandomTreesGiveModulesOrder) {
  std::mt19937 random(7);
  for (int round = 0; round < 100; ++round) {
    const ModulePtr top = std::make_shared<torch::nn::Module>();
    std::vector<ModulePtr> all{top};
    std::vector<std::shared_ptr<FsdpState>> kept;
    std::set<const torch::nn::Module*> replicated;
    for (int i = 1; i < 20; ++i) {
      const ModulePtr parent = all[random() % all.size()];
      if (random() % 5 == 0) {  // the same module again, below a later one: no cycle
        const size_t from = random() % all.size(), to = random() % all.size();
        if (from < to) {
          all[from]->register_module("s" + std::to_string(i), all[to]);
        }
        continue;
      }
      all.push_back(add(parent, "m" + std::to_string(i), false));
      if (random() % 2 == 0) {
        if (kept.empty() || random() % 3 != 0) {
          kept.push_back(std::make_shared<FsdpState>(0));
        }
        composable::insert_module_state(all.back(), kept[random() % kept.size()]);
      }
      if (random() % 6 == 0) {
        mark_replicated(all.back());
        replicated.insert(all.back().get());
      }
    }
    // The same rule, written directly: modules() order, each module and state once, nothing under
    // replicate.
    std::vector<ModulePtr> expected;
    std::set<const torch::nn::Module*> seen;
    std::set<const FsdpState*> known;
    const std::function<void(const ModulePtr&)> walk = [&](const ModulePtr& module) {
      if (replicated.contains(module.get()) || !seen.insert(module.get()).second) {
        return;
      }
      const auto state = module_fsdp_state(*module);
      if (state != nullptr && known.insert(state.get()).second) {
        expected.push_back(module);
      }
      for (const auto& child : module->children()) {
        walk(child);
      }
    };
    walk(top);
    ASSERT_EQ(modules_of(fsdp_states_with_modules(top)), expected) << "round " << round;
  }
}

// ------------------------------------------------------------------------------------------------

// test_fully_shard_util: policy {UnitModule}.
TEST_F(TraversalTest, ShardedTreeIsPrintedWithItsUnits) {
  const CompositeModel model;
  const auto sharded =
      fully_shard(model.ptr(), traversal_plan_of(R"([{"modules": ""}, {"modules": "u*"}])"),
                  {.world = world.get()});
  const ShardedTree tree = sharded_tree(model.ptr());
  EXPECT_EQ(tree.text, R"([CompositeModel] FULLY SHARDED
    l1[Linear]
    u1[UnitModule] FULLY SHARDED
        u1.l1[Linear]
        u1.seq[Sequential]
            u1.seq.0[Functional]
            u1.seq.1[Linear]
            u1.seq.2[Functional]
        u1.l2[Linear]
    u2[UnitModule] FULLY SHARDED
        u2.l1[Linear]
        u2.seq[Sequential]
            u2.seq.0[Functional]
            u2.seq.1[Linear]
            u2.seq.2[Functional]
        u2.l2[Linear]
    l2[Linear]
)");
  EXPECT_THAT(
      tree.parameters,
      ElementsAre(
          Pair("[CompositeModel]", ElementsAre("l1.weight", "l1.bias", "l2.weight", "l2.bias")),
          Pair("u1[UnitModule]", ElementsAre("u1.l1.weight", "u1.l1.bias", "u1.seq.1.weight",
                                             "u1.seq.1.bias", "u1.l2.weight", "u1.l2.bias")),
          Pair("u2[UnitModule]", ElementsAre("u2.l1.weight", "u2.l1.bias", "u2.seq.1.weight",
                                             "u2.seq.1.bias", "u2.l2.weight", "u2.l2.bias"))));
}

TEST_F(TraversalTest, RootOwnsWhatNoNestedUnitDoes) {
  const CompositeModel model;
  const auto sharded =
      fully_shard(model.ptr(), traversal_plan_of(R"([{"modules": ""}, {"modules": "u1"}])"),
                  {.world = world.get()});
  const ShardedTree tree = sharded_tree(model.ptr());
  ASSERT_EQ(tree.parameters.size(), 2U);
  EXPECT_THAT(
      tree.parameters[0],
      Pair("[CompositeModel]",
           ElementsAre("l1.weight", "l1.bias", "u2.l1.weight", "u2.l1.bias", "u2.seq.1.weight",
                       "u2.seq.1.bias", "u2.l2.weight", "u2.l2.bias", "l2.weight", "l2.bias")));
}

TEST_F(TraversalTest, ShardedTreeStartsAtAModuleThatIsNotSharded) {
  const UnitModule unit(2);
  const torch::nn::Sequential model(torch::nn::Linear(2, 2), unit);
  const auto sharded =
      fully_shard(unit.ptr(), traversal_plan_of(R"([{"modules": ""}])"), {.world = world.get()});
  const ShardedTree tree = sharded_tree(model.ptr());
  EXPECT_THAT(tree.text, AllOf(HasSubstr("[Sequential]\n    0[Linear]\n"),
                               HasSubstr("    1[UnitModule] FULLY SHARDED\n")));
  ASSERT_EQ(tree.parameters.size(), 1U);
  EXPECT_EQ(tree.parameters[0].second.front(), "1.l1.weight");  // relative to the printed root
}

// ------------------------------------------------------------------------------------------------

TEST_F(TraversalTest, EverySubmoduleMapsToTheStateOfItsUnit) {
  Mlp model(4, 2);
  const auto sharded = fully_shard(model.ptr(), mlp_plan(), {.world = world.get()});
  const auto state = module_fsdp_state(*model);
  ASSERT_NE(state, nullptr);
  EXPECT_TRUE(state->is_root());
  EXPECT_EQ(composable::module_state(*model->in), state);
  EXPECT_EQ(composable::module_state(*model->layers), state);
  EXPECT_EQ(composable::module_state(*model->order[1]->up),
            composable::module_state(*model->order[1]));
  EXPECT_NE(composable::module_state(*model->order[0]), composable::module_state(*model->order[1]));
}

TEST_F(TraversalTest, UnitOfSeveralModulesHasOneState) {
  Mlp model(4, 3);
  const auto sharded = fully_shard(
      model.ptr(), traversal_plan_of(R"([{"modules": ""}, {"modules": ["layers.0", "layers.2"]}])"),
      {.world = world.get()});
  EXPECT_EQ(module_fsdp_state(*model->order[0]), module_fsdp_state(*model->order[2]));
  EXPECT_EQ(composable::registry(*model->order[0])->front(),
            composable::registry(*model->order[2])->front());
  EXPECT_EQ(module_fsdp_state(*model->order[0])->handle()->unit(), "layers.0, layers.2");
  EXPECT_THAT(modules_of(fsdp_states_with_modules(model.ptr())),
              ElementsAre(model.ptr(), model->order[0].ptr()));
}

TEST_F(TraversalTest, StateDiesWithItsModule) {
  std::weak_ptr<composable::State> state;
  {
    Mlp model(4, 1);
    auto sharded = fully_shard(model.ptr(), mlp_plan(), {.world = world.get()});
    state = composable::module_state(*model);
    sharded.reset();
    EXPECT_FALSE(state.expired());  // the module owns it
  }
  EXPECT_TRUE(state.expired());
}

TEST_F(TraversalTest, FullyShardGoesThroughTheContract) {
  Mlp model(4, 1);
  const auto names = model->named_parameters().keys();
  const auto sharded = fully_shard(model.ptr(), mlp_plan(), {.world = world.get()});
  EXPECT_EQ(model->named_parameters().keys(), names);
  ASSERT_NE(composable::registry(*model), nullptr);
  EXPECT_EQ(composable::registry(*model)->front()->api, &fully_shard_api());
  EXPECT_EQ(composable::state_of(fully_shard_api(), *model), module_fsdp_state(*model));
  EXPECT_EQ(composable::registry(*model->in), nullptr);
  EXPECT_THAT([&] { (void)fully_shard(model.ptr(), mlp_plan(), {.world = world.get()}); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("fully_shard has already been applied"),
                                              HasSubstr("the root (Mlp)"))));
  EXPECT_THAT([&] { (void)model->clone(); },
              ThrowsMessage<UsageError>(HasSubstr("fully_shard does not support copying")));
}

TEST_F(TraversalTest, FullyShardRefusesContainersWithoutForward) {
  Mlp model(4, 1);
  EXPECT_THAT(
      [&] {
        (void)fully_shard(model.ptr(),
                          traversal_plan_of(R"([{"modules": ""}, {"modules": "layers"}])"),
                          {.world = world.get()});
      },
      ThrowsMessage<InputError>(HasSubstr("module 'layers' is a ModuleList and has no forward")));
  EXPECT_EQ(composable::registry(*model), nullptr);
}

// PyTorch's auto-wrap policies on a live model, with the model's own classes.
TEST_F(TraversalTest, UnitsAreChosenByClassAndBySize) {
  for (const char* policy : {"class:Block", "size:50"}) {  // a block has 4·7+7 + 7·4+4 parameters
    Mlp model(4, 2);
    const auto sharded = fully_shard(
        model.ptr(),
        traversal_plan_of(R"([{"modules": ""}, {"modules": ")" + std::string(policy) + "\"}]"),
        {.world = world.get()});
    EXPECT_THAT(modules_of(fsdp_states_with_modules(model.ptr())),
                ElementsAre(model.ptr(), model->order[0].ptr(), model->order[1].ptr()));
  }
  Mlp model(4, 2);  // a Linear has no hooks and cannot be a unit
  EXPECT_THAT(
      [&] {
        (void)fully_shard(model.ptr(),
                          traversal_plan_of(R"([{"modules": ""}, {"modules": "class:Linear"}])"),
                          {.world = world.get()});
      },
      ThrowsMessage<UsageError>(AllOf(HasSubstr("module 'in'"), HasSubstr("SHARDLENS_MODULE"))));
}

TEST_F(TraversalTest, FullyShardRefusesAModelWithAPartThatIsARootOfItsOwn) {
  Mlp model(4, 2);
  const auto part = fully_shard(model->order[1].ptr(), traversal_plan_of(R"([{"modules": ""}])"),
                                {.world = world.get()});
  EXPECT_THAT(
      [&] {
        (void)fully_shard(model.ptr(), traversal_plan_of(R"([{"modules": ""}])"),
                          {.world = world.get()});
      },
      ThrowsMessage<UsageError>(HasSubstr("already been lazily initialized for layers.1")));
  EXPECT_EQ(composable::module_state(*model), nullptr);
  EXPECT_EQ(composable::registry(*model), nullptr);
}

TEST_F(TraversalTest, FullyShardRefusesAReplicatedModule) {
  Mlp model(4, 2);
  mark_replicated(model->order[1].ptr());
  EXPECT_THAT(
      [&] { (void)fully_shard(model.ptr(), mlp_plan(), {.world = world.get()}); },
      ThrowsMessage<UsageError>(AllOf(HasSubstr("'layers.1'"), HasSubstr("'replicate' applied"))));
  EXPECT_EQ(composable::registry(*model), nullptr);
  EXPECT_EQ(composable::module_state(*model), nullptr);
}

TEST_F(TraversalTest, FullyShardMarksWhatItManages) {
  Mlp model(4, 2);
  torch::nn::Linear outside(2, 2);
  const auto sharded = fully_shard(model.ptr(), mlp_plan(), {.world = world.get()});
  for (const auto& module : model->modules()) {
    EXPECT_TRUE(composable::is_managed(*module));
    EXPECT_TRUE(composable::managed_use_orig_params(*module));
  }
  EXPECT_FALSE(composable::is_managed(*outside));
}

TEST_F(TraversalTest, GettersCalledOftenChangeNothing) {
  Mlp model(4, 2);
  const auto sharded = fully_shard(model.ptr(), mlp_plan(), {.world = world.get()});
  const size_t mapped = composable::module_state_count();
  const auto state = module_fsdp_state(*model);
  const auto uses = state.use_count();
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(fsdp_states_with_modules(model.ptr()).size(), 3U);
    ASSERT_EQ(fsdp_handles(model.ptr()).size(), 3U);
  }
  EXPECT_EQ(composable::module_state_count(), mapped);
  EXPECT_EQ(state.use_count(), uses);
}

}  // namespace
}  // namespace shardlens::fsdp
