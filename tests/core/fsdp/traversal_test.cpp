#include "core/fsdp/traversal.h"

#include <gtest/gtest.h>

#include "core/composable/contract.h"
#include "core/dist/world.h"
#include "tests/core/fsdp/mlp.h"

namespace shardlens::fsdp {
namespace {

using test::Mlp;
using test::mlp_plan;

std::unique_ptr<dist::World> single() {
  return dist::World::join({});
}

TEST(TraversalTest, StatesComeDepthFirstWithTheModuleThatOwnsThem) {
  const auto world = single();
  Mlp model(4, 2);
  const auto sharded = fully_shard(model.ptr(), mlp_plan(), {.world = world.get()});
  const auto found = fsdp_states_with_modules(model.ptr());
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0].module.get(), model.get());
  EXPECT_EQ(found[1].module.get(), model->order[0].get());
  EXPECT_EQ(found[2].module.get(), model->order[1].get());
  EXPECT_EQ(fsdp_root_states(model.ptr()).size(), 1U);
  EXPECT_EQ(fsdp_handles(model.ptr()).size(), 3U);
  EXPECT_EQ(fsdp_states(model->order[1].ptr()).size(), 1U);
}

TEST(TraversalTest, ReplicatedSubtreeIsNotEntered) {
  const auto world = single();
  Mlp model(4, 2);
  const auto sharded = fully_shard(model.ptr(), mlp_plan(), {.world = world.get()});
  static const composable::Api replicate("replicate");
  const auto state = std::make_shared<composable::State>();
  composable::apply(replicate, {model->layers.ptr()}, state,
                    [](const composable::Modules& modules) { return modules; });
  EXPECT_EQ(fsdp_states(model.ptr()).size(), 1U);
  EXPECT_EQ(fsdp_states(model->order[0].ptr()).size(), 1U);  // found when the walk starts below
}

TEST(ModuleStateTest, EverySubmoduleMapsToTheStateOfItsUnit) {
  const auto world = single();
  Mlp model(4, 2);
  const auto sharded = fully_shard(model.ptr(), mlp_plan(), {.world = world.get()});
  const auto root = composable::module_state_as<FsdpState>(*model);
  ASSERT_NE(root, nullptr);
  EXPECT_TRUE(root->is_root());
  EXPECT_EQ(composable::module_state(*model->in), root);
  EXPECT_EQ(composable::module_state(*model->order[1]->up),
            composable::module_state(*model->order[1]));
  EXPECT_NE(composable::module_state(*model->order[0]), composable::module_state(*model->order[1]));
}

TEST(ModuleStateTest, GettersLeaveUntouchedModulesAlone) {
  Mlp model(4, 1);
  EXPECT_EQ(composable::module_state(*model), nullptr);
  EXPECT_EQ(composable::registry(*model), nullptr);
  EXPECT_EQ(composable::registry(*model->in), nullptr);
  EXPECT_EQ(composable::registry(*model), nullptr);
}

TEST(ModuleStateTest, EntryDiesWithItsModule) {
  const auto world = single();
  std::weak_ptr<composable::State> state;
  {
    Mlp model(4, 1);
    auto sharded = fully_shard(model.ptr(), mlp_plan(), {.world = world.get()});
    state = composable::module_state(*model);
    sharded.reset();
    EXPECT_FALSE(state.expired());  // the module's hooks own it
  }
  EXPECT_TRUE(state.expired());
}

}  // namespace
}  // namespace shardlens::fsdp
