// Forwards of every shape that C++ has, with hooks around them.

#include "core/module/hookable.h"

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/full.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/ordered_dict.h>

#include "core/base/error.h"
#include "core/module/forward_method.h"

namespace shardlens::module {
namespace {

using at::Tensor;
using testing::ElementsAre;

Tensor number(double value) {
  return at::full({1}, value);
}
double value_of(const Tensor& tensor) {
  return tensor.item<double>();
}

// Keys and values of earlier tokens, as a generating program keeps them.
class Cache {
 public:
  Cache() = default;
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;
  void add(const Tensor& key) { keys_.push_back(key); }
  [[nodiscard]] const std::vector<Tensor>& keys() const { return keys_; }
  friend void for_each_tensor(Cache& cache, const auto& visit) { visit(cache.keys_); }

 private:
  std::vector<Tensor> keys_;
};
struct Hidden {  // its tensors cannot be found
  explicit Hidden(Tensor t) : tensor_(std::move(t)) {}

 private:
  Tensor tensor_;
};

struct CachedImpl : torch::nn::Module {
  Tensor forward(const Tensor& x, Cache& cache) {
    cache.add(x * 2);
    return x;
  }
};
SHARDLENS_MODULE(Cached);

struct ConstantImpl : torch::nn::Module {
  Tensor forward(Tensor x) const noexcept { return x; }
};
SHARDLENS_MODULE(Constant);

struct OverloadedImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return x; }
  Tensor forward(const Tensor& x, double factor) const { return x * factor; }
  std::pair<Tensor, int> forward(Cache& cache) {
    cache.add(number(5));
    return {cache.keys().back(), 1};
  }
};
SHARDLENS_MODULE(Overloaded);

struct GenericImpl : torch::nn::Module {
  template <typename X, typename... Caches>
  Tensor forward(const X& x, Caches&... caches) {
    const Tensor y = x + number(1);
    (caches.add(y), ...);
    return y;
  }
};
SHARDLENS_MODULE(Generic);

struct DefaultedImpl : torch::nn::Module {
  Tensor forward(const Tensor& x, const std::optional<Tensor>& mask = {}, int times = 1) {
    return (mask ? x * *mask : x) * times;
  }
};
SHARDLENS_MODULE(Defaulted);

struct ChangingImpl : torch::nn::Module {
  Tensor forward(Tensor& x, std::unique_ptr<double> factor) {
    x = x * *factor;
    return x;
  }
};
SHARDLENS_MODULE(Changing);

struct ReturningReferenceImpl : torch::nn::Module {
  const Tensor& forward(const Tensor& x) { return last = x; }
  Tensor last;
};
SHARDLENS_MODULE(ReturningReference);

struct StepImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return x + 1; }
};
SHARDLENS_MODULE(Step);

struct WithDefaultsForSequentialImpl : torch::nn::Module {
  Tensor forward(const Tensor& x, double factor = 3) { return x * factor; }
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(3.0)})
};
SHARDLENS_MODULE(WithDefaultsForSequential);

struct Answer {
  Tensor logits;
  std::optional<Tensor> loss;
  std::map<std::string, std::vector<Tensor>> hidden;
  int tokens = 0;
};
struct AnsweringImpl : torch::nn::Module {
  Answer forward(const Tensor& x) { return {x, x * 2, {{"a", {x * 3}}, {"b", {x * 4, x * 5}}}, 7}; }
};
SHARDLENS_MODULE(Answering);

// Pre-forward hooks double every input; the values of inputs and outputs are noted.
template <typename Module>
class Watched {
 public:
  Watched() {
    pre_ = module->register_pre_forward([this](TensorRefs& refs) {
      for (Tensor* ref : refs) {
        *ref = *ref * 2;
        inputs.push_back(value_of(*ref));
      }
    });
    post_ = module->register_post_forward([this](TensorRefs& refs) {
      for (const Tensor* ref : refs) {
        outputs.push_back(value_of(*ref));
      }
    });
  }
  Module module;
  std::vector<double> inputs, outputs;

 private:
  HookPoint::Handle pre_, post_;
};

TEST(HookableTest, AnObjectByReferenceIsTheCallers) {
  Watched<Cached> w;
  Cache cache;
  cache.add(number(100));
  const Tensor x = number(3);
  EXPECT_EQ(value_of(w.module(x, cache)), 6);
  EXPECT_EQ(value_of(x), 3) << "hooks replace tensors in copies of what is read";
  ASSERT_EQ(cache.keys().size(), 2U);
  EXPECT_EQ(value_of(cache.keys()[1]), 12);
  EXPECT_THAT(w.inputs, ElementsAre(6));
  EXPECT_THAT(w.outputs, ElementsAre(6, 12)) << "what was put into the cache is an output";
}

TEST(HookableTest, ATensorByReferenceIsAssigned) {
  Watched<Changing> w;
  Tensor x = number(3);
  EXPECT_EQ(value_of(w.module(x, std::make_unique<double>(10))), 60);
  EXPECT_EQ(value_of(x), 60);
  EXPECT_THAT(w.outputs, ElementsAre(60, 60));
}

TEST(HookableTest, AConstForwardRunsOnAConstHolder) {
  Watched<Constant> w;
  const Constant& constant = w.module;
  EXPECT_EQ(value_of(constant->forward(number(3))), 6);
  EXPECT_THAT(w.outputs, ElementsAre(6));
}

TEST(HookableTest, OverloadsKeepTheirMeaning) {
  Watched<Overloaded> w;
  Cache cache;
  Tensor x = number(3);
  EXPECT_EQ(value_of(w.module(x)), 6);
  EXPECT_EQ(value_of(w.module(std::as_const(x), 10.0)), 60);
  EXPECT_EQ(w.module(cache).second, 1);
  EXPECT_EQ(cache.keys().size(), 1U);
  EXPECT_EQ(value_of(x), 3);
  EXPECT_THAT(w.inputs, ElementsAre(6, 6));
  EXPECT_THAT(w.outputs, ElementsAre(6, 60, 5, 5));
}

TEST(HookableTest, TemplatesTakeAnything) {
  Watched<Generic> w;
  Cache first, second;
  EXPECT_EQ(value_of(w.module(number(3), first, second)), 7);
  EXPECT_EQ(value_of(w.module->forward(2.0)), 3);
  EXPECT_EQ(first.keys().size(), 1U);
  EXPECT_EQ(second.keys().size(), 1U);
  EXPECT_THAT(w.outputs, ElementsAre(7, 7, 7, 3));
}

TEST(HookableTest, DefaultArgumentsStay) {
  Watched<Defaulted> w;
  EXPECT_EQ(value_of(w.module(number(3))), 6);
  EXPECT_EQ(value_of(w.module->forward(number(3), number(2))), 24);
  EXPECT_EQ(value_of(w.module(number(3), std::nullopt, 5)), 30);
  EXPECT_THAT(w.inputs, ElementsAre(6, 6, 4, 6));
}

TEST(HookableTest, AReferenceResultBecomesAValue) {
  Watched<ReturningReference> w;
  auto post = w.module->register_post_forward([](TensorRefs& refs) { *refs[0] = number(1); });
  EXPECT_EQ(value_of(w.module(number(3))), 1);
  EXPECT_EQ(value_of(w.module->last), 6) << "the module's own tensor is not assigned to";
}

TEST(HookableTest, SequentialTakesOneSignature) {
  torch::nn::Sequential both{Step(), WithDefaultsForSequential()};
  EXPECT_EQ(value_of(both->forward(number(3))), 12);
}

TEST(HookableTest, TensorsOfAStructAreOutputs) {
  Watched<Answering> w;
  EXPECT_EQ(w.module(number(1)).tokens, 7);
  EXPECT_THAT(w.outputs, ElementsAre(2, 4, 6, 8, 10));
}

TEST(HookableTest, MethodsTakeReferencesToo) {
  Watched<Cached> w;
  Cache cache;
  EXPECT_EQ(value_of(run_as_forward(*w.module, &CachedImpl::forward, number(3), cache)), 6);
  EXPECT_EQ(cache.keys().size(), 1U);
}

// A recomputation would change the object a second time.
TEST(HookableTest, ACheckpointRefusesWhatItWouldChangeTwice) {
  Cached model;
  checkpoint(model.ptr(), "layers.0");
  Cache cache;
  EXPECT_THAT([&] { static_cast<void>(model(number(3), cache)); },
              testing::ThrowsMessage<UsageError>(testing::AllOf(testing::HasSubstr("'layers.0'"),
                                                                testing::HasSubstr("may change"))));
}

TEST(HookableTest, ACheckpointRepeatsWithTheSameArguments) {
  Defaulted model;
  checkpoint(model.ptr(), "layers.0");
  Tensor x = number(3).requires_grad_();
  model(x, number(4), 5).backward();
  EXPECT_EQ(value_of(x.grad()), 20);
}

struct Node {
  Tensor tensor;
  std::vector<Node> children;
  std::unique_ptr<Node> next;
};
struct Arrays {
  Tensor tensors[2];
  int numbers[3] = {};
};
struct Constants {
  const Tensor tensor;
};

TEST(TensorsInTest, AreFoundInNestedTypes) {
  Node node{number(1), {}, nullptr};
  node.children.push_back({number(2), {}, nullptr});
  node.next = std::make_unique<Node>(Node{number(3), {}, nullptr});
  torch::OrderedDict<std::string, Tensor> dictionary;
  dictionary.insert("a", number(8));
  std::deque<std::pair<int, Tensor>> pairs{{1, number(7)}};
  std::tuple<Node, Arrays, std::variant<int, Tensor>, std::deque<std::pair<int, Tensor>>,
             std::shared_ptr<Tensor>, torch::OrderedDict<std::string, Tensor>>
      all(std::move(node), Arrays{{number(4), number(5)}}, number(6), std::move(pairs), nullptr,
          std::move(dictionary));
  TensorRefs refs;
  collect_tensors(refs, all);
  std::vector<double> found;
  for (const Tensor* ref : refs) {
    found.push_back(value_of(*ref));
  }
  EXPECT_THAT(found, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
}

// Types that own no tensor, or only tensors that hooks can assign.
static_assert(kTensorsVisible<Answer> && kTensorsVisible<Node> && kTensorsVisible<Arrays>);
static_assert(kTensorsVisible<Cache> && kTensorsVisible<std::unordered_map<int, Answer>>);
static_assert(kTensorsVisible<std::array<Tensor, 3>> && kTensorsVisible<std::vector<bool>>);
static_assert(kTensorsVisible<std::string> && kTensorsVisible<c10::Device>);
// Types that hide tensors, and views of tensors of others: a forward that returns one does not
// compile.
static_assert(!kTensorsVisible<Hidden> && !kTensorsVisible<std::tuple<Tensor, Hidden>>);
static_assert(!kTensorsVisible<at::TensorList> && !kTensorsVisible<Tensor*>);
static_assert(!kTensorsVisible<std::function<void()>> && !kTensorsVisible<c10::IValue>);
static_assert(!kTensorsVisible<c10::List<Tensor>> && !kTensorsVisible<Constants>);

}  // namespace
}  // namespace shardlens::module
