#include "core/composable/contract.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>

#include "core/base/error.h"
#include "tests/core/composable/toy_model.h"

// Cases of PyTorch's test/distributed/_composable/test_contract.py, and of contract.py itself.
namespace shardlens::composable {
namespace {

using test::Toy;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

struct Number : State {
  int value = 0;
};

Modules unchanged(const Modules& modules) {
  return modules;
}

// Gives its modules one shared Number as their state and changes nothing else.
struct CountingApi {
  explicit CountingApi(const std::string& name) : api(name) {}
  std::shared_ptr<Number> operator()(const Modules& modules) const {
    auto state = std::make_shared<Number>();
    apply(api, modules, state, unchanged);
    return state;
  }
  Api api;
};

std::vector<std::string> names(const torch::nn::Module& module) {
  std::vector<std::string> result;
  if (const auto items = registry(module)) {
    for (const auto& item : *items) {
      result.push_back(item->api->name);
    }
  }
  return result;
}

TEST(ContractTest, RegistryIsNullUntilAnApiAndThenInOrderOfApplication) {
  const CountingApi api1("api1"), api2("api2");
  Toy model;
  EXPECT_EQ(registry(*model), nullptr);
  const auto first = api1({model.ptr()});
  EXPECT_THAT(names(*model), ElementsAre("api1"));
  const auto second = api2({model.ptr()});
  EXPECT_THAT(names(*model), ElementsAre("api1", "api2"));
  EXPECT_EQ(registry(*model->seq1), nullptr);
  EXPECT_EQ(registry(*model->seq2), nullptr);
  EXPECT_THAT([&] { (void)api1({model.ptr()}); },
              ThrowsMessage<UsageError>(HasSubstr("api1 has already been applied")));
  EXPECT_THAT(names(*model), ElementsAre("api1", "api2"));
  EXPECT_EQ(state_of(api1.api, *model), first);
  EXPECT_EQ(state_of(api2.api, *model), second);
}

TEST(ContractTest, ApiAppliedTwiceNamesApiAndModuleAndChangesNothing) {
  const CountingApi api("api");
  Toy model;
  const auto state = api({model.ptr()});
  EXPECT_THAT(
      [&] { apply(api.api, {model.ptr()}, std::make_shared<Number>(), unchanged, "net"); },
      ThrowsMessage<UsageError>(AllOf(HasSubstr("Each distinct composable distributed API can only "
                                                "be applied to a module once. api has already "
                                                "been applied to the following module: 'net'"),
                                      HasSubstr("Toy"))));
  EXPECT_EQ(state_of(api.api, *model), state);
  EXPECT_EQ(registry(*model)->size(), 1U);
}

TEST(ContractTest, TwoApisOfOneNameExcludeEachOther) {
  const CountingApi one("replicate"), other("replicate");
  Toy model;
  const auto state = one({model.ptr()});
  EXPECT_THAT([&] { (void)other({model.ptr()}); },
              ThrowsMessage<UsageError>(HasSubstr("replicate has already been applied")));
  EXPECT_TRUE(has_api(*model, "replicate"));
  EXPECT_EQ(state_of(one.api, *model), state);
  EXPECT_EQ(state_of(other.api, *model), nullptr);  // by identity, not by name
}

TEST(ContractTest, StateIsVisibleInHooksAndKeepsWhatTheyWrite) {
  const Api api("api");
  Toy model;
  {
    auto state = std::make_shared<Number>();
    apply(api, {model->seq1.ptr()}, state, [&](const Modules& modules) {
      EXPECT_EQ(state_of(api, *modules.front()), state);  // in place before the body runs
      auto* seq1 = model->seq1.get();
      seq1->keep(seq1->register_pre_forward([&api, seq1](module::TensorRefs&) {
        const auto seen = std::dynamic_pointer_cast<Number>(state_of(api, *seq1));
        EXPECT_EQ(seen->value, 7);
        seen->value = 8;
      }));
      return Modules{};  // PyTorch's None: the same modules
    });
    state->value = 7;
  }
  model->forward(at::zeros({5, 5}));
  EXPECT_EQ(std::dynamic_pointer_cast<Number>(state_of(api, *model->seq1))->value, 8);
}

TEST(ContractTest, HooksThatAnApiAddsChangeNoValue) {
  const Api api("api");
  Toy model, plain;
  {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < model->parameters().size(); ++i) {
      plain->parameters()[i].copy_(model->parameters()[i]);
    }
  }
  int calls = 0;
  const auto state = std::make_shared<Number>();
  apply(api, {model->seq1.ptr(), model->seq2.ptr()}, state, [&](const Modules& modules) {
    for (const auto& module : modules) {
      auto& point = dynamic_cast<module::HookPoint&>(*module);
      point.keep(point.register_pre_forward([&](module::TensorRefs&) { ++calls; }));
      point.keep(point.register_post_forward([&](module::TensorRefs&) { ++calls; }));
    }
    return modules;
  });
  const at::Tensor input = at::randn({5, 5});
  model->forward(input).sum().backward();
  plain->forward(input).sum().backward();
  EXPECT_EQ(calls, 4);
  for (size_t i = 0; i < plain->parameters().size(); ++i) {
    EXPECT_TRUE(at::equal(model->parameters()[i], plain->parameters()[i]));
    EXPECT_TRUE(at::equal(model->parameters()[i].grad(), plain->parameters()[i].grad()));
  }
}

TEST(ContractTest, ListSharesOneStateAndOneRegistryItem) {
  const CountingApi api("api");
  std::vector<torch::nn::Linear> m;
  for (int i = 0; i < 5; ++i) {
    m.emplace_back(5, 5);
  }
  const auto a = api({m[0].ptr(), m[1].ptr()});
  const auto b = api({m[2].ptr(), m[3].ptr()});
  const auto c = api({m[4].ptr()});
  const std::vector<std::shared_ptr<Number>> expected{a, a, b, b, c};
  for (size_t i = 0; i < m.size(); ++i) {
    for (size_t j = 0; j < m.size(); ++j) {
      const bool together = expected[i] == expected[j];
      EXPECT_EQ(state_of(api.api, *m[i]) == state_of(api.api, *m[j]), together);
      EXPECT_EQ(registry(*m[i])->front() == registry(*m[j])->front(), together);
    }
  }
  torch::nn::Linear fresh(5, 5);
  EXPECT_THROW((void)api({fresh.ptr(), m[0].ptr()}), UsageError);
  EXPECT_EQ(registry(*fresh), nullptr);  // applied to all modules of a list or to none
}

TEST(ContractTest, OnlyRootModulesOfAListAreTouched) {
  const CountingApi api("api");
  Toy model;
  torch::nn::Linear alone(5, 5);
  const Modules list{model->seq1.ptr(), model.ptr(), alone.ptr(), model->seq2->ptr(0)};
  EXPECT_THAT(root_modules(list), ElementsAre(model.ptr(), alone.ptr()));
  size_t given = 0;
  const auto state = std::make_shared<Number>();
  apply(api.api, list, state, [&](const Modules& modules) {
    given = modules.size();
    return modules;
  });
  EXPECT_EQ(given, 4U);  // the body sees the list as it was passed
  EXPECT_NE(registry(*model), nullptr);
  EXPECT_NE(registry(*alone), nullptr);
  EXPECT_EQ(registry(*model->seq1), nullptr);
  EXPECT_EQ(registry(*model->seq2->ptr(0)), nullptr);
}

TEST(ContractTest, EmptyListAndNullModuleAreRefused) {
  const Api api("api");
  const auto state = std::make_shared<Number>();
  EXPECT_THROW(apply(api, {}, state, unchanged), UsageError);
  EXPECT_THROW(apply(api, {nullptr}, state, unchanged), UsageError);
}

// Applies `body` to a Toy and expects the error, and no registry or state on the model after it.
void expect_refused(const Body& body, const Toy& model, const testing::Matcher<std::string>& text) {
  const Api api("api");
  const auto state = std::make_shared<Number>();
  EXPECT_THAT([&] { apply(api, {model.ptr()}, state, body); }, ThrowsMessage<UsageError>(text));
  EXPECT_EQ(registry(*model), nullptr);
  EXPECT_EQ(module_state(*model), nullptr);
}

TEST(ContractTest, ReplacementWithOtherNamesIsRefused) {
  Toy model;
  struct Wrapper : torch::nn::Module {
    explicit Wrapper(std::shared_ptr<torch::nn::Module> inner) {
      register_module("module", std::move(inner));
    }
  };
  expect_refused(
      [](const Modules& modules) { return Modules{std::make_shared<Wrapper>(modules.front())}; },
      model,
      AllOf(HasSubstr("Checking parameters: Composable distributed API implementations cannot "
                      "modify FQNs.\nFQNs only in original: {seq1.0.weight, seq1.0.bias"),
            HasSubstr("FQNs only in new: {module.seq1.0.weight, module.seq1.0.bias")));
}

TEST(ContractTest, ReplacementWithEqualNamesIsAccepted) {
  const Api api("api");
  Toy model, other;
  const auto state = std::make_shared<Number>();
  const Modules updated =
      apply(api, {model.ptr()}, state, [&](const Modules&) { return Modules{other.ptr()}; });
  EXPECT_THAT(updated, ElementsAre(other.ptr()));
}

// A Toy whose parts are registered in another order or under other names.
struct VariantImpl : torch::nn::Module {
  explicit VariantImpl(const std::string& kind) {
    const bool swap = kind == "parameter order";
    register_module(swap ? "seq2" : "seq1", part());
    register_module(swap ? "seq1" : "seq2", part());
    if (kind == "extra module") {
      register_module("seq3", std::make_shared<torch::nn::Module>());
    }
    const bool swap_buffers = kind == "buffer order";
    register_buffer(swap_buffers ? "scale" : "position", at::zeros({5}));
    register_buffer(kind == "buffer name" ? "scales"
                    : swap_buffers        ? "position"
                                          : "scale",
                    at::zeros({5}));
  }
  static std::shared_ptr<torch::nn::Module> part() {
    test::Chain chain;
    chain->push_back(torch::nn::Linear(5, 5));
    chain->push_back(torch::nn::Linear(5, 5));
    return chain.ptr();
  }
};

Body replaced_by(const std::string& kind) {
  return [kind](const Modules&) { return Modules{std::make_shared<VariantImpl>(kind)}; };
}

TEST(ContractTest, SameNamesInAnotherOrderAreRefused) {
  Toy model;
  expect_refused(
      replaced_by("parameter order"), model,
      AllOf(HasSubstr("Checking parameters: Composable distributed API implementations "
                      "cannot modify the order of FQNs."),
            HasSubstr("Original FQNs: seq1.0.weight"), HasSubstr("New FQNs: seq2.0.weight")));
}

TEST(ContractTest, BuffersAreCheckedByNameAndOrder) {
  Toy model;
  expect_refused(replaced_by("buffer name"), model,
                 AllOf(HasSubstr("Checking buffers: Composable distributed API implementations "
                                 "cannot modify FQNs."),
                       HasSubstr("only in original: {scale}"), HasSubstr("only in new: {scales}")));
  expect_refused(replaced_by("buffer order"), model,
                 HasSubstr("Checking buffers: Composable distributed API implementations cannot "
                           "modify the order of FQNs."));
}

TEST(ContractTest, ModulesAreCheckedByName) {
  Toy model;
  expect_refused(replaced_by("extra module"), model,
                 AllOf(HasSubstr("Checking modules: Composable distributed API implementations "
                                 "cannot modify FQNs."),
                       HasSubstr("only in original: {}"), HasSubstr("only in new: {seq3}")));
}

TEST(ContractTest, FirstFailingCategoryIsNamedAcrossAllModules) {
  // The first module fails in its buffers, the second in its parameters: parameters come first.
  const Api api("api");
  Toy first, second;
  const auto state = std::make_shared<Number>();
  EXPECT_THAT(
      [&] {
        apply(api, {first.ptr(), second.ptr()}, state, [](const Modules&) {
          return Modules{std::make_shared<VariantImpl>("buffer name"),
                         std::make_shared<VariantImpl>("parameter order")};
        });
      },
      ThrowsMessage<UsageError>(
          AllOf(HasSubstr("Checking parameters: "), Not(HasSubstr("Checking buffers")))));
}

TEST(ContractTest, ValuesMayBeReplacedNamesStay) {
  const Api api("api");
  Toy model;
  const std::vector<std::string> before = model->named_parameters().keys();
  const auto state = std::make_shared<Number>();
  apply(api, {model.ptr()}, state, [](const Modules& modules) {
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : modules.front()->parameters()) {
      parameter.set_data(at::zeros({1}));
    }
    return modules;
  });
  EXPECT_EQ(model->named_parameters().keys(), before);
  EXPECT_EQ(model->parameters()[0].numel(), 1);
}

TEST(ContractTest, NumberOfRootModulesMustStay) {
  const Api api("api");
  Toy a, b;
  const auto state = std::make_shared<Number>();
  EXPECT_THAT(
      [&] {
        apply(api, {a.ptr(), b.ptr()}, state,
              [](const Modules& modules) { return Modules{modules.front()}; });
      },
      ThrowsMessage<UsageError>(
          HasSubstr("api should return the same number of modules as input modules: 2 given, 1 "
                    "returned")));
  EXPECT_EQ(registry(*b), nullptr);
}

TEST(ContractTest, FailedApplicationIsRolledBackAndMayBeRepeated) {
  const CountingApi api("api");
  const CountingApi before("before");
  Toy model;
  const auto kept = before({model.ptr()});
  const auto failing = std::make_shared<Number>();
  const size_t mapped = module_state_count();
  EXPECT_THROW(apply(api.api, {model.ptr()}, failing,
                     [&](const Modules& modules) -> Modules {
                       insert_module_state(modules.front(), failing);
                       throw std::runtime_error("half-way");
                     }),
               std::runtime_error);
  EXPECT_THAT(names(*model), ElementsAre("before"));
  EXPECT_EQ(module_state(*model), nullptr);
  EXPECT_EQ(module_state_count(), mapped);
  EXPECT_EQ(failing.use_count(), 1);
  const auto state = api({model.ptr()});
  EXPECT_EQ(state_of(api.api, *model), state);
}

TEST(ContractTest, SnapshotOfTheRegistryStaysWhatItWas) {
  const CountingApi api1("api1"), api2("api2");
  Toy model;
  const auto first = api1({model.ptr()});
  const auto before = registry(*model);
  const auto second = api2({model.ptr()});
  EXPECT_EQ(before->size(), 1U);
  EXPECT_EQ(registry(*model)->size(), 2U);
}

TEST(ContractTest, GettersCalledOftenChangeNothing) {
  const CountingApi api("api");
  const Api never("never");
  Toy model, untouched;
  int hooks = 0;
  model->keep(model->register_pre_forward([&](module::TensorRefs&) { ++hooks; }));
  const auto state = api({model.ptr()});
  insert_module_state(model.ptr(), state);
  const auto parameters = model->named_parameters().keys();
  const auto buffers = untouched->named_buffers().keys();
  const auto modules = untouched->named_modules().keys();
  const size_t mapped = module_state_count();
  const auto before = registry(*model);
  for (int i = 0; i < 1000; ++i) {
    for (const auto& module : untouched->modules()) {
      ASSERT_EQ(registry(*module), nullptr);
      ASSERT_EQ(module_state(*module), nullptr);
      ASSERT_FALSE(has_api(*module, "api"));
      ASSERT_EQ(state_of(api.api, *module), nullptr);
    }
    ASSERT_EQ(registry(*model), before);
    ASSERT_EQ(module_state(*model), state);
    ASSERT_EQ(state_of(never, *model), nullptr);
  }
  EXPECT_EQ(module_state_count(), mapped);
  EXPECT_EQ(model->named_parameters().keys(), parameters);
  EXPECT_EQ(untouched->named_buffers().keys(), buffers);
  EXPECT_EQ(untouched->named_modules().keys(), modules);
  EXPECT_EQ(state.use_count(), 2);  // this test's and the module's: no getter kept one
  model->forward(at::zeros({1, 5}));
  EXPECT_EQ(hooks, 1);
  EXPECT_EQ(model.ptr().use_count(), 1);
}

TEST(ContractTest, ContainersWithoutForwardAreRefused) {
  const Api api("fully_shard");
  EXPECT_THAT([&] { require_forward(api, *torch::nn::ModuleList(), "layers"); },
              ThrowsMessage<UsageError>(
                  HasSubstr("fully_shard does not support containers that do not implement "
                            "forward: 'layers' (ModuleList)")));
  EXPECT_THAT([&] { require_forward(api, *torch::nn::ModuleDict(), "heads"); },
              ThrowsMessage<UsageError>(HasSubstr("'heads' (ModuleDict)")));
  EXPECT_NO_THROW(require_forward(api, *torch::nn::Sequential(), "seq"));
}

TEST(ContractTest, ManagedModuleCannotBeCopied) {
  const CountingApi api("fully_shard");
  using HookedLinear = module::Hookable<torch::nn::LinearImpl>;
  const auto linear = std::make_shared<HookedLinear>(3, 4);
  EXPECT_NE(linear->clone(), nullptr);
  const auto state = api({linear});
  EXPECT_THAT([&] { (void)linear->clone(); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("fully_shard does not support copying"),
                                              HasSubstr("Linear"), HasSubstr("state dict"))));
  // Nor can it be copied as part of a module that can be copied itself.
  torch::nn::Sequential parent;
  parent->push_back("part", linear);
  EXPECT_THROW((void)parent->clone(), UsageError);
  static_assert(!std::is_copy_constructible_v<HookedLinear>);
}

}  // namespace
}  // namespace shardlens::composable
