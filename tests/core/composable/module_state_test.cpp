#include "core/composable/module_state.h"

#include <new>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/composable/class_name.h"
#include "core/composable/contract.h"
#include "core/composable/managed.h"
#include "core/composable/module_map.h"
#include "tests/core/composable/toy_model.h"

namespace shardlens::composable {
namespace {

using test::Toy;
using testing::HasSubstr;
using testing::ThrowsMessage;

struct FsdpLike : State {};
struct ReplicateLike : State {};

TEST(ModuleStateTest, NullWithoutAStateTheStateWithOne) {
  Toy model;
  EXPECT_EQ(module_state(*model), nullptr);
  const auto state = std::make_shared<FsdpLike>();
  insert_module_state(model->seq1.ptr(), state);
  EXPECT_EQ(module_state(*model->seq1), state);
  EXPECT_EQ(module_state(*model), nullptr);
  EXPECT_EQ(module_state(*model->seq1->ptr(0)), nullptr);  // only what was inserted
}

TEST(ModuleStateTest, InsertingTwiceIsAnError) {
  Toy model;
  const auto state = std::make_shared<FsdpLike>();
  const auto other = std::make_shared<FsdpLike>();
  insert_module_state(model.ptr(), state);
  EXPECT_THAT([&] { insert_module_state(model.ptr(), other); },
              ThrowsMessage<UsageError>(HasSubstr("Inserting the state of a Toy more than once")));
  EXPECT_THROW(insert_module_state(model.ptr(), state), UsageError);
  EXPECT_EQ(module_state(*model), state);
}

TEST(ModuleStateTest, TypedGetterGivesNoOtherApisState) {
  Toy model;
  const auto replicated = std::make_shared<ReplicateLike>();
  const auto sharded = std::make_shared<FsdpLike>();
  insert_module_state(model->seq1.ptr(), replicated);
  insert_module_state(model->seq2.ptr(), sharded);
  EXPECT_EQ(module_state_as<FsdpLike>(*model->seq1), nullptr);
  EXPECT_EQ(module_state_as<ReplicateLike>(*model->seq1), replicated);
  EXPECT_EQ(module_state_as<FsdpLike>(*model->seq2), sharded);
}

TEST(ModuleStateTest, ModuleThatIsAStateIsItsOwn) {
  struct SelfManaged : torch::nn::Module, State {};
  const auto module = std::make_shared<SelfManaged>();
  EXPECT_EQ(module_state(*module).get(), static_cast<State*>(module.get()));
  EXPECT_EQ(module.use_count(), 1);
}

TEST(ModuleStateTest, KeepsNeitherModuleNorStateAlive) {
  std::weak_ptr<torch::nn::Module> module;
  std::weak_ptr<State> state;
  const size_t before = module_state_count();
  {
    const Toy model;
    const auto owned = std::make_shared<FsdpLike>();
    insert_module_state(model.ptr(), owned);
    module = model.ptr();
    state = owned;
    EXPECT_EQ(owned.use_count(), 1);
    EXPECT_EQ(module_state_count(), before + 1);
  }
  EXPECT_TRUE(module.expired());
  EXPECT_TRUE(state.expired());
  EXPECT_EQ(module_state_count(), before);
}

TEST(ModuleStateTest, DeadStateOfALiveModuleIsAnError) {
  Toy model;
  {
    const auto state = std::make_shared<FsdpLike>();
    insert_module_state(model.ptr(), state);
  }
  EXPECT_THAT([&] { (void)module_state(*model); },
              ThrowsMessage<RuntimeFault>(HasSubstr("State has already been garbage collected")));
  EXPECT_TRUE(has_module_state(*model));
}

TEST(ModuleStateTest, NewModuleAtADeadOnesAddressHasNoState) {
  using Linear = torch::nn::LinearImpl;
  alignas(Linear) std::byte storage[sizeof(Linear)];
  const auto build = [&] {
    return std::shared_ptr<Linear>(new (storage) Linear(2, 2),
                                   [](Linear* dead) { dead->~Linear(); });
  };
  const Api api("api");
  const auto state = std::make_shared<FsdpLike>();
  const torch::nn::Module* address = nullptr;
  {
    const auto first = build();
    address = first.get();
    apply(api, {first}, state, [&](const Modules& modules) {
      insert_module_state(first, state);
      return modules;
    });
    annotate_managed_modules(first, {}, true);
  }
  const auto second = build();
  ASSERT_EQ(second.get(), address);
  EXPECT_EQ(module_state(*second), nullptr);
  EXPECT_EQ(registry(*second), nullptr);
  EXPECT_FALSE(is_managed(*second));
  const auto fresh = std::make_shared<FsdpLike>();
  apply(api, {second}, fresh, [&](const Modules& modules) {
    insert_module_state(second, fresh);
    return modules;
  });
  EXPECT_EQ(module_state(*second), fresh);
}

TEST(ModuleStateTest, ModuleWithHooksOwnsItsState) {
  const Api api("api");
  std::weak_ptr<State> state;
  {
    const Toy model;
    apply(api, {model.ptr()}, std::make_shared<FsdpLike>(),
          [](const Modules& modules) { return modules; });
    state = state_of(api, *model);
    EXPECT_FALSE(state.expired());
  }
  EXPECT_TRUE(state.expired());
}

TEST(ModuleMapTest, EntriesOfDeadModulesAreSwept) {
  ModuleMap<std::shared_ptr<int>> map;
  const auto value = std::make_shared<int>(1);
  const torch::nn::Linear alive(1, 1);
  map.set(alive.ptr(), value);
  for (int i = 0; i < 10000; ++i) {
    map.set(std::make_shared<torch::nn::Module>(), value);
  }
  // This test's, the live module's, and those of modules that died since the last sweep.
  EXPECT_LE(value.use_count(), 66);
  EXPECT_EQ(map.size(), 1U);
  EXPECT_EQ(map.find(*alive), value);
}

TEST(ModuleStateTest, MappingIsSharedBetweenThreads) {
  const auto state = std::make_shared<FsdpLike>();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        const auto module = std::make_shared<torch::nn::Module>();
        insert_module_state(module, state);
        EXPECT_EQ(module_state(*module), state);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST(ClassNameTest, IsWhatPythonWouldSay) {
  EXPECT_EQ(class_name(*torch::nn::Linear(1, 1)), "Linear");
  EXPECT_EQ(class_name(*Toy()), "Toy");  // Hookable<shardlens::test::ToyImpl>
  EXPECT_EQ(class_name(*torch::nn::Sequential()), "Sequential");
  EXPECT_EQ(described(*Toy(), ""), "the root (Toy)");
  EXPECT_EQ(described(*Toy(), "a.b"), "'a.b' (Toy)");
}

TEST(AnnotateManagedTest, EveryModuleThatIsNotIgnoredIsMarked) {
  Toy model;
  annotate_managed_modules(model.ptr(), {model->seq1.get()}, true);
  EXPECT_TRUE(is_managed(*model));
  EXPECT_TRUE(managed_use_orig_params(*model));
  EXPECT_TRUE(is_managed(*model->seq2));
  EXPECT_TRUE(is_managed(*model->seq2->ptr(1)));
  EXPECT_FALSE(is_managed(*model->seq1));
  EXPECT_FALSE(managed_use_orig_params(*model->seq1));
}

TEST(AnnotateManagedTest, IgnoredParentDoesNotExcludeItsChildren) {
  Toy model;
  annotate_managed_modules(model.ptr(), {model->seq1.get()}, true);
  EXPECT_TRUE(is_managed(*model->seq1->ptr(0)));
  EXPECT_TRUE(is_managed(*model->seq1->ptr(1)));
}

TEST(AnnotateManagedTest, LaterCallOverwritesTheSetting) {
  Toy model;
  annotate_managed_modules(model->seq1.ptr(), {}, true);
  EXPECT_TRUE(managed_use_orig_params(*model->seq1));
  annotate_managed_modules(model->seq1.ptr(), {}, true);  // idempotent
  EXPECT_TRUE(managed_use_orig_params(*model->seq1));
  annotate_managed_modules(model.ptr(), {model->seq1->ptr(0).get()}, false);
  EXPECT_FALSE(managed_use_orig_params(*model->seq1));
  EXPECT_TRUE(managed_use_orig_params(*model->seq1->ptr(0)));  // ignored: keeps its own
}

TEST(AnnotateManagedTest, SharedModuleIsMarkedOnce) {
  torch::nn::Linear shared(2, 2);
  torch::nn::Sequential model(shared, shared);
  annotate_managed_modules(model.ptr(), {}, true);
  EXPECT_TRUE(is_managed(*shared));
  annotate_managed_modules(model.ptr(), {shared.get()}, false);
  EXPECT_TRUE(managed_use_orig_params(*shared));
}

TEST(AnnotateManagedTest, NothingOnTheModuleChanges) {
  Toy model;
  const auto parameters = model->named_parameters();
  const auto buffers = model->named_buffers().keys();
  const auto modules = model->named_modules().keys();
  const size_t mapped = module_state_count();
  annotate_managed_modules(model.ptr(), {}, true);
  EXPECT_EQ(model->named_parameters().keys(), parameters.keys());
  for (const auto& each : model->named_parameters()) {
    EXPECT_TRUE(each.value().is_same(parameters[each.key()]));
  }
  EXPECT_EQ(model->named_buffers().keys(), buffers);
  EXPECT_EQ(model->named_modules().keys(), modules);
  EXPECT_EQ(registry(*model), nullptr);
  EXPECT_EQ(module_state_count(), mapped);
  for (int i = 0; i < 1000; ++i) {  // getters change nothing either
    ASSERT_FALSE(is_managed(*torch::nn::Linear(1, 1)));
  }
}

TEST(AnnotateManagedTest, MarkDiesWithItsModule) {
  std::weak_ptr<torch::nn::Module> module;
  {
    const Toy model;
    module = model.ptr();
    annotate_managed_modules(model.ptr(), {}, true);
  }
  EXPECT_TRUE(module.expired());
}

}  // namespace
}  // namespace shardlens::composable
