#include "core/fsdp/wrapper/flatten_params_wrapper.h"

#include <cmath>
#include <functional>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Context.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <torch/cuda.h>
#include <torch/nn/modules/transformer.h>
#include <torch/nn/modules/transformercoder.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include "core/base/error.h"
#include "core/fsdp/wrapper/wrapper_state_dict.h"
#include "core/module/hookable.h"
#include "tests/core/fsdp/stack.h"

// Cases of PyTorch's test/distributed/fsdp/test_flatten_params_wrapper.py (1.12) and
// test_fsdp_flatten_params.py (2.x).
namespace shardlens::fsdp {
namespace {

using test::make_stack;
using test::Stack;
using test::StackImpl;
using test::weight_of;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;
using testing::ThrowsMessage;

int64_t numel_of(const torch::nn::Module& module) {
  int64_t numel = 0;
  std::set<const c10::TensorImpl*> seen;
  for (const at::Tensor& parameter : module.parameters()) {
    numel += seen.insert(parameter.unsafeGetTensorImpl()).second ? parameter.numel() : 0;
  }
  return numel;
}

struct TransformerCase {
  explicit TransformerCase(bool shared) {
    at::manual_seed(0);
    model = torch::nn::Transformer(
        torch::nn::TransformerOptions(32, 2, 2, 2).dim_feedforward(128).dropout(0.1));
    for (size_t i = 0; shared && i < 2; ++i) {
      auto& to = *decoder(i);
      to.linear1 = to.replace_module("linear1", encoder(i)->linear1);
      to.linear2 = to.replace_module("linear2", encoder(i)->linear2);
    }
    model->eval();  // no dropout
    at::manual_seed(1);
    source = at::rand({20, 2, 32});
    target = at::rand({10, 2, 32});
  }
  torch::nn::TransformerEncoderLayerImpl* encoder(size_t i) {
    return model->encoder.get<torch::nn::TransformerEncoder>()
        ->layers[i]
        ->as<torch::nn::TransformerEncoderLayer>();
  }
  torch::nn::TransformerDecoderLayerImpl* decoder(size_t i) {
    return model->decoder.get<torch::nn::TransformerDecoder>()
        ->layers[i]
        ->as<torch::nn::TransformerDecoderLayer>();
  }
  torch::nn::Transformer model{nullptr};
  at::Tensor source, target;
};

struct ConstantForward : torch::nn::Module {
  ConstantForward() : linear(register_module("linear", torch::nn::Linear(2, 2))) {}
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const { return x.matmul(linear->weight); }
  torch::nn::Linear linear;
};

TEST(FlattenParamsWrapperTest, AForwardMayBeConst) {
  const auto plain = std::make_shared<ConstantForward>();
  const at::Tensor x = at::ones({1, 2}), expected = plain->forward(x);
  const auto wrapper = flatten_params(plain, {plain->linear->weight});
  EXPECT_TRUE(at::equal(wrapper->forward(x), expected));
}

TEST(FlattenParamsWrapperTest, PartialFlatteningLeavesTheOtherParameters) {
  TransformerCase test(false);
  const int64_t before = numel_of(*test.model);
  std::vector<at::Tensor> chosen = test.encoder(1)->parameters();
  const int64_t encoder_numel = numel_of(*test.encoder(1));
  for (const at::Tensor& parameter : test.decoder(0)->parameters()) {
    chosen.push_back(parameter);
  }
  const int64_t decoder_numel = numel_of(*test.decoder(0));
  const auto wrapper = flatten_params(test.model.ptr(), chosen);
  EXPECT_EQ(wrapper->flat_param().numel(), encoder_numel + decoder_numel);
  EXPECT_EQ(numel_of(*wrapper), before);
  EXPECT_THAT(test.encoder(1)->parameters(), IsEmpty());
  EXPECT_THAT(test.decoder(0)->parameters(), IsEmpty());
  EXPECT_THAT(test.encoder(0)->parameters(), Not(IsEmpty()));
  EXPECT_THAT(test.decoder(1)->parameters(), Not(IsEmpty()));
  const auto names = wrapper->named_parameters().keys();
  EXPECT_EQ(names.front(), "flat_param");
  EXPECT_THAT(names, Contains("_fpw_module.encoder.layers.0.linear1.weight"));
  EXPECT_THAT(names, Not(Contains("_fpw_module.encoder.layers.1.linear1.weight")));
  for (const at::ScalarType dtype : {at::kDouble, at::kHalf}) {
    wrapper->to(dtype);
    EXPECT_EQ(test.encoder(0)->linear1->weight.scalar_type(), dtype);
    EXPECT_EQ(wrapper->flat_param().scalar_type(), dtype);
  }
}

TEST(FlattenParamsWrapperTest, EmptyListFlattensNothing) {
  Stack plain = make_stack(), stack = make_stack();
  const auto wrapper = flatten_params(stack.ptr(), {});
  EXPECT_FALSE(wrapper->has_params());
  EXPECT_FALSE(wrapper->flat_param().defined());
  EXPECT_EQ(numel_of(*wrapper), 300);
  EXPECT_THAT([&] { (void)wrapper->handle(); },
              ThrowsMessage<UsageError>(
                  HasSubstr("FlattenParamsWrapper that does not manage any parameters")));
  const at::Tensor x = at::ones({1, 10});
  EXPECT_TRUE(at::equal(wrapper->forward(x), plain.get()->forward(x)));
  EXPECT_THAT(state_dict(*wrapper).keys(),
              ElementsAre("0.weight", "2.weight", "4.weight"));  // still without "_fpw_module."
  {
    const auto scope = wrapper->unflatten_as_params();
    EXPECT_EQ(numel_of(*wrapper), 300);
  }
  EXPECT_FALSE(wrapper->flat_param().defined());
}

TEST(FlattenParamsWrapperTest, ModuleWithoutParameters) {
  const torch::nn::Sequential empty{torch::nn::Functional(at::relu)};
  const auto wrapper = flatten_params(empty.ptr(), {});
  EXPECT_THAT(wrapper->parameters(), IsEmpty());
  const at::Tensor x = at::randn({3});
  EXPECT_TRUE(at::equal(wrapper->forward(x), at::relu(x)));
}

TEST(FlattenParamsWrapperTest, NumberOfParametersStays) {
  TransformerCase test(false);
  const int64_t before = numel_of(*test.model);
  const auto wrapper = flatten_params(test.model.ptr(), test.model->parameters());
  EXPECT_TRUE(wrapper->has_params());
  EXPECT_EQ(wrapper->flat_param().numel(), before);
  EXPECT_THAT(wrapper->named_parameters().keys(), ElementsAre("flat_param"));
  EXPECT_TRUE(wrapper->flat_param().is_leaf());
  // Flattened parameters are views and are not registered.
  EXPECT_FALSE(test.encoder(0)->linear1->weight.is_leaf());
}

TEST(FlattenParamsWrapperTest, SharedParametersAreCountedOnce) {
  TransformerCase test(true);
  const int64_t before = numel_of(*test.model);
  EXPECT_EQ(before, numel_of(*TransformerCase(false).model) -
                        2 * (2 * 32 * 128 + 128 + 32));  // without two FFNs and their biases
  const auto wrapper = flatten_params(test.model.ptr(), test.model->parameters());
  EXPECT_EQ(wrapper->flat_param().numel(), before);
  EXPECT_THAT(wrapper->shared_names(), Contains("decoder.layers.1.linear2.weight"));
  EXPECT_EQ(wrapper->shared_names().size(), 8U);
}

TEST(FlattenParamsWrapperTest, TensorSharedByTwoModulesIsStoredOnce) {
  struct Half : torch::nn::Module {
    explicit Half(at::Tensor tied) : weight(register_parameter("weight", std::move(tied))) {}
    at::Tensor weight;
  };
  struct Both : torch::nn::Module {
    explicit Both(const at::Tensor& tied)
        : a(register_module("a", std::make_shared<Half>(tied))),
          b(register_module("b", std::make_shared<Half>(tied))) {}
    at::Tensor forward(const at::Tensor& x) { return x.matmul(a->weight).matmul(b->weight); }
    std::shared_ptr<Half> a, b;
  };
  const at::Tensor tied = at::ones({2, 2});
  const auto wrapper = flatten_params(std::make_shared<Both>(tied), {tied});
  EXPECT_EQ(wrapper->flat_param().numel(), 4);
  EXPECT_THAT(wrapper->shared_names(), ElementsAre("b.weight"));
  wrapper->forward(at::ones({1, 2})).sum().backward();
  // y = x·W·W with x = (1 1), W all ones: dy/dW = x^T·1^T·W^T + (xW)^T·1^T = 2 + 2 in each place.
  EXPECT_TRUE(at::equal(wrapper->flat_param().grad(), at::ones({4}) * 4));
  {
    const auto scope = wrapper->unflatten_as_params();
    EXPECT_THAT(wrapper->module().named_parameters().keys(), ElementsAre("a.weight", "b.weight"));
  }
}

TEST(FlattenParamsWrapperTest, OutputIsThePlainModules) {
  for (const bool shared : {false, true}) {
    TransformerCase plain(shared), test(shared);
    const auto wrapper = flatten_params(test.model.ptr(), test.model->parameters());
    const at::Tensor expected = plain.model(plain.source, plain.target);
    EXPECT_TRUE(at::equal(wrapper->forward(test.source, test.target, at::Tensor(), at::Tensor(),
                                           at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()),
                          expected));
  }
}

// Steps once and returns output and parameter norm.
std::pair<double, double> stepped(const std::function<at::Tensor()>& forward,
                                  const torch::nn::Module& module) {
  torch::optim::SGD optimizer(module.parameters(), 0.01);
  forward().sum().backward();
  optimizer.step();
  double squares = 0;
  std::set<const c10::TensorImpl*> seen;
  for (const at::Tensor& parameter : module.parameters()) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) {
      squares += parameter.detach().square().sum().item<double>();
    }
  }
  return {forward().sum().item<double>(), std::sqrt(squares)};
}

TEST(FlattenParamsWrapperTest, TrainingStepIsThePlainModules) {
  Stack plain = make_stack(7, true), stack = make_stack(7, true);  // 7·7 is unaligned
  const auto wrapper = flatten_params(stack.ptr(), stack->parameters());
  EXPECT_EQ(wrapper->flat_param().numel(), 3 * (49 + 7));
  const at::Tensor x = at::ones({2, 7});
  const auto expected = stepped([&] { return plain.get()->forward(x); }, *plain);
  const auto actual = stepped([&] { return wrapper->forward(x); }, *wrapper);
  EXPECT_NEAR(actual.first, expected.first, 1e-6);
  EXPECT_NEAR(actual.second, expected.second, 1e-6);
  std::vector<at::Tensor> grads;
  for (const at::Tensor& parameter : plain->parameters()) {
    grads.push_back(parameter.grad().flatten());
  }
  // stepped() ran one backward: gradients are in the order of the parameters.
  EXPECT_TRUE(at::allclose(wrapper->flat_param().grad(), at::cat(grads)));
}

TEST(FlattenParamsWrapperTest, ViewsAreMadeAnewInEveryForward) {
  Stack stack = make_stack();
  const auto wrapper = flatten_params(stack.ptr(), stack->parameters());
  const at::Tensor x = at::ones({1, 10});
  const at::Tensor first = wrapper->forward(x);
  const auto node = weight_of(*stack, 0).grad_fn();
  const at::Tensor second = wrapper->forward(x);
  EXPECT_NE(weight_of(*stack, 0).grad_fn(), node);
  {
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(wrapper->forward(x).requires_grad());
    wrapper->flat_param().zero_();  // the next forward must see this
  }
  EXPECT_EQ(wrapper->forward(x).abs().sum().item<double>(), 0);
}

TEST(FlattenParamsWrapperTest, UnflattenShowsOriginalParametersThatWriteThrough) {
  Stack stack = make_stack();
  const auto wrapper = flatten_params(stack.ptr(), stack->parameters());
  const at::Tensor weight = weight_of(*stack, 2);
  {
    const auto scope = wrapper->unflatten_as_params();
    EXPECT_THAT(
        wrapper->named_parameters().keys(),
        ElementsAre("_fpw_module.0.weight", "_fpw_module.2.weight", "_fpw_module.4.weight"));
    EXPECT_FALSE(wrapper->flat_param().defined());
    EXPECT_TRUE(weight.is_leaf());
    EXPECT_TRUE(weight.requires_grad());
    EXPECT_THAT(weight.sizes(), ElementsAre(10, 10));
    {
      const auto inner = wrapper->unflatten_as_params();  // no-op
    }
    EXPECT_FALSE(wrapper->flat_param().defined());
    const at::NoGradGuard no_grad;
    weight.fill_(3);
  }
  EXPECT_THAT(wrapper->named_parameters().keys(), ElementsAre("flat_param"));
  EXPECT_EQ(wrapper->flat_param().detach().narrow(0, 100, 100).sum().item<double>(), 300);
  EXPECT_FALSE(weight.is_leaf());
}

TEST(FlattenParamsWrapperTest, UnflattenEndsOnExceptions) {
  Stack stack = make_stack();
  const auto wrapper = flatten_params(stack.ptr(), stack->parameters());
  EXPECT_THROW(
      {
        const auto scope = wrapper->unflatten_as_params();
        throw std::runtime_error("in the scope");
      },
      std::runtime_error);
  EXPECT_THAT(wrapper->named_parameters().keys(), ElementsAre("flat_param"));
  EXPECT_THAT(stack->parameters(), IsEmpty());
}

TEST(FlattenParamsWrapperTest, ForwardInsideTheScopeUsesTheParameters) {
  Stack plain = make_stack(), stack = make_stack();
  const auto wrapper = flatten_params(stack.ptr(), stack->parameters());
  const at::Tensor x = at::ones({1, 10});
  plain.get()->forward(x).sum().backward();
  {
    const auto scope = wrapper->unflatten_as_params();
    wrapper->forward(x).sum().backward();
    EXPECT_TRUE(at::equal(weight_of(*stack, 0).grad(), weight_of(*plain, 0).grad()));
  }
  EXPECT_FALSE(wrapper->flat_param().grad().defined());
  wrapper->forward(x).sum().backward();
  EXPECT_TRUE(at::equal(wrapper->flat_param().grad().narrow(0, 0, 100).view({10, 10}),
                        weight_of(*plain, 0).grad()));
}

template <typename Wrapper>
concept HasIndex = requires(const Wrapper& wrapper) {
  wrapper[0];
};
template <typename Wrapper>
concept HasMembers = requires(const Wrapper& wrapper) {
  wrapper->options;
};
template <typename Wrapper>
concept HasOtherMembers = requires(const Wrapper& wrapper) {
  wrapper->no_such_member;
};

TEST(FlattenParamsWrapperTest, MembersAndIndexReachTheWrappedModule) {
  Stack stack = make_stack();
  const auto wrapper = flatten_params(stack.ptr(), stack->parameters());
  EXPECT_EQ(&wrapper->module(), stack.get());
  EXPECT_EQ((*wrapper)->size(), 5U);  // SequentialImpl::size
  EXPECT_EQ((*wrapper)[4], stack->children()[4]);
  // A member that neither class has does not compile, nor does [] if the wrapped module has none.
  using OfLinear = FlattenParamsWrapper<torch::nn::LinearImpl>;
  static_assert(HasMembers<OfLinear> && !HasOtherMembers<OfLinear> && !HasIndex<OfLinear>);
  static_assert(HasIndex<FlattenParamsWrapper<StackImpl>>);
}

TEST(FlattenParamsWrapperTest, GoesWhereItsModuleGoes) {
  torch::nn::Linear plain(2, 3), linear(2, 3);
  load_state_dict(*linear, state_dict(*plain));
  // With hooks, inside a Sequential.
  using Wrapped = module::Hookable<FlattenParamsWrapper<torch::nn::LinearImpl>>;
  const auto wrapper = std::make_shared<Wrapped>(linear.ptr(), linear->parameters());
  int calls = 0;
  wrapper->keep(wrapper->register_pre_forward([&](module::TensorRefs&) { ++calls; }));
  torch::nn::Sequential model;
  model->push_back("wrapped", wrapper);
  const at::Tensor x = at::ones({1, 2});
  EXPECT_TRUE(at::equal(model->forward(x), plain.get()->forward(x)));
  EXPECT_EQ(calls, 1);
  EXPECT_THAT(state_dict(*model).keys(), ElementsAre("wrapped.flat_param"));
}

TEST(FlattenParamsWrapperTest, ForeignParameterIsRefused) {
  Stack stack = make_stack(), other = make_stack();
  std::vector<at::Tensor> params = stack->parameters();
  params.push_back(other->parameters().front());
  EXPECT_THAT([&] { (void)flatten_params(stack.ptr(), params); },
              ThrowsMessage<UsageError>(HasSubstr("1 of 4 tensors to flatten are not parameters")));
  EXPECT_EQ(numel_of(*stack), 300);
}

TEST(FlattenParamsWrapperTest, DtypeMoveIsFollowedByViewsAndTraining) {
  Stack plain = make_stack(7, true), stack = make_stack(7, true);
  const std::vector<at::Tensor> all = stack->parameters();
  const auto wrapper = flatten_params(stack.ptr(), {all[0], all[1], all[4]});
  const at::Tensor x = at::ones({2, 7}, at::kDouble);
  (void)wrapper->forward(x.to(at::kFloat));
  wrapper->to(at::kDouble);
  plain->to(at::kDouble);
  EXPECT_EQ(wrapper->flat_param().scalar_type(), at::kDouble);
  EXPECT_EQ(weight_of(*stack, 2).scalar_type(), at::kDouble);  // not flattened: moved itself
  const auto expected = stepped([&] { return plain.get()->forward(x); }, *plain);
  const auto actual = stepped([&] { return wrapper->forward(x); }, *wrapper);
  EXPECT_NEAR(actual.first, expected.first, 1e-12);
  EXPECT_NEAR(actual.second, expected.second, 1e-12);
  EXPECT_EQ(weight_of(*stack, 0).scalar_type(), at::kDouble);
  const auto scope = wrapper->unflatten_as_params();
  EXPECT_EQ(numel_of(*wrapper), 3 * 56);
}

TEST(FlattenParamsWrapperTest, DeviceMoveIsFollowedByViewsAndTraining) {
  if (!torch::cuda::is_available()) {
    GTEST_SKIP() << "no CUDA device";
  }
  Stack plain = make_stack(7, true), stack = make_stack(7, true);
  const std::vector<at::Tensor> all = stack->parameters();
  const auto wrapper = flatten_params(stack.ptr(), {all[0], all[1], all[4]});
  const at::Tensor x = at::ones({2, 7});
  const auto expected = stepped([&] { return plain.get()->forward(x); }, *plain);
  wrapper->to(at::kCUDA);
  EXPECT_TRUE(wrapper->flat_param().is_cuda());
  const at::Tensor on_device = x.to(at::kCUDA);
  const auto actual = stepped([&] { return wrapper->forward(on_device); }, *wrapper);
  EXPECT_TRUE(weight_of(*stack, 0).is_cuda());
  EXPECT_NEAR(actual.first, expected.first, 1e-5);
  EXPECT_NEAR(actual.second, expected.second, 1e-5);
  wrapper->to(at::kHalf);
  EXPECT_EQ(wrapper->forward(on_device.to(at::kHalf)).scalar_type(), at::kHalf);
}

// LibTorch moves parameters in place; from a device with memory to one without it cannot.
TEST(FlattenParamsWrapperTest, MoveToTheMetaDeviceIsRefusedAndChangesNothing) {
  Stack plain = make_stack(7, true), stack = make_stack(7, true);
  const auto wrapper = flatten_params(stack.ptr(), stack->parameters());
  EXPECT_THAT([&] { wrapper->to(at::kMeta); },
              ::testing::ThrowsMessage<c10::Error>(HasSubstr("incompatible tensor type")));
  const at::Tensor x = at::ones({2, 7});
  EXPECT_TRUE(at::equal(wrapper->forward(x), plain.get()->forward(x)));
  wrapper->to(at::kCPU, at::kDouble);
  EXPECT_EQ(wrapper->forward(x.to(at::kDouble)).scalar_type(), at::kDouble);
}

TEST(FlattenParamsWrapperTest, FrozenParametersAreFlattenedFrozen) {
  Stack stack = make_stack();
  for (at::Tensor& parameter : stack->parameters()) {
    parameter.set_requires_grad(false);
  }
  const auto wrapper = flatten_params(stack.ptr(), stack->parameters());
  EXPECT_FALSE(wrapper->flat_param().requires_grad());
  EXPECT_FALSE(wrapper->forward(at::ones({1, 10})).requires_grad());
}

TEST(FlatParamHandleTest, ParametersThatCannotBeOneAreNamed) {
  EXPECT_THAT(
      [] {
        FlatParamHandle("", {}, {plan::Layout::kFlat, {}, 1, DType::kF32}, 0, at::kFloat,
                        at::kFloat);
      },
      ThrowsMessage<UsageError>(
          HasSubstr("Cannot construct a FlatParamHandle with an empty parameter list")));
  const auto refused = [](const std::function<void(const Stack&)>& spoil) -> std::string {
    Stack stack = make_stack();
    spoil(stack);
    try {
      (void)flatten_params(stack.ptr(), stack->parameters());
    } catch (const UsageError& error) {
      EXPECT_EQ(stack->parameters().size(), 3U);  // the module is as it was
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refused([](const Stack& stack) {
              stack->parameters()[1].set_data(at::ones({10, 10}, at::kDouble));
            }),
            "Must flatten tensors with uniform dtype: '0.weight' has Float, '2.weight' has Double");
  EXPECT_EQ(refused([](const Stack& stack) { stack->parameters()[2].set_requires_grad(false); }),
            "Must flatten tensors with uniform requires_grad: '0.weight' has true, '4.weight' has "
            "false");
  EXPECT_EQ(refused([](const Stack& stack) {
              for (at::Tensor& parameter : stack->parameters()) {
                parameter.set_requires_grad(false);
                parameter.set_data(at::ones({10, 10}, at::kLong));
              }
            }),
            "Cannot flatten integer dtype tensors: '0.weight' is Long");
}

// ------------------------------------------------------------------------------------------------

TEST(WrapperStateDictTest, KeysAreCleanedOnSave) {
  EXPECT_EQ(cleaned_key("_fpw_module.0.weight", ""), "0.weight");
  EXPECT_EQ(cleaned_key("flat_param", ""), "flat_param");
  EXPECT_EQ(cleaned_key("layers.1._fpw_module.x", "layers.1."), "layers.1.x");
  EXPECT_EQ(cleaned_key("layers.1.flat_param", "layers.1."), "layers.1.flat_param");
  EXPECT_EQ(cleaned_key("layers.2._fpw_module.x", "layers.1."), "layers.2._fpw_module.x");
}

TEST(WrapperStateDictTest, KeysArePrefixedOnLoad) {
  EXPECT_EQ(prefixed_key("0.weight", ""), "_fpw_module.0.weight");
  EXPECT_EQ(prefixed_key("flat_param", ""), "flat_param");
  EXPECT_EQ(prefixed_key("flat_param_1", ""), "flat_param_1");
  EXPECT_EQ(prefixed_key("layers.1.x", "layers.1."), "layers.1._fpw_module.x");
  EXPECT_EQ(prefixed_key("layers.1.flat_param", "layers.1."), "layers.1.flat_param");
  EXPECT_EQ(prefixed_key("head.x", "layers.1."), "head.x");
  EXPECT_EQ(prefixed_key("flat_parameters.flat_param_0", ""), "flat_param_0");
  EXPECT_THAT(
      [] { (void)prefixed_key("flat_param.weight", ""); },
      ThrowsMessage<UsageError>(HasSubstr("Expected key to contain flat_param, but key name is "
                                          "flat_param.weight")));
}

TEST(WrapperStateDictTest, RoundTripsThroughNestedWrappers) {
  const auto build = [] {
    Stack stack = make_stack(4, true);
    auto& middle = *stack->children()[2];
    torch::nn::Sequential model;
    const auto inner =
        flatten_params(std::dynamic_pointer_cast<torch::nn::LinearImpl>(middle.shared_from_this()),
                       middle.parameters());
    model->push_back("head", torch::nn::Linear(4, 4));
    model->push_back("inner", inner);
    return flatten_params(model.ptr(), {});
  };
  const auto saved = build(), loaded = build();
  const StateDict values = state_dict(*saved);
  EXPECT_THAT(values.keys(), ElementsAre("head.weight", "head.bias", "inner.flat_param"));
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : loaded->parameters()) {
    parameter.zero_();
  }
  load_state_dict(*loaded, values);
  const at::Tensor x = at::ones({1, 4});
  EXPECT_TRUE(at::equal(loaded->forward(x), saved->forward(x)));
  StateDict wrong = values;
  wrong.insert(std::string("extra"), at::ones({1}));
  wrong.erase("head.bias");
  EXPECT_THAT(
      [&] { load_state_dict(*loaded, wrong); },
      ThrowsMessage<UsageError>(HasSubstr("missing keys [_fpw_module.head.bias], unexpected keys "
                                          "[_fpw_module.extra]")));
}

TEST(WrapperStateDictTest, TwoWrappersAroundOneModuleCollideByName) {
  Stack stack = make_stack();
  const auto inner = flatten_params(stack.ptr(), {stack->parameters()[0]});
  const auto outer = flatten_params(inner, {stack->parameters()[0]});
  EXPECT_THAT([&] { (void)state_dict(*outer); },
              ThrowsMessage<UsageError>(HasSubstr("both get the key 'flat_param'")));
}

TEST(WrapperStateDictTest, UnflattenedStateDictIsThePlainModules) {
  Stack plain = make_stack(), stack = make_stack();
  const auto wrapper = flatten_params(stack.ptr(), stack->parameters());
  EXPECT_THAT(state_dict(*wrapper).keys(), ElementsAre("flat_param"));
  const auto scope = wrapper->unflatten_as_params();
  const StateDict values = state_dict(*wrapper);
  EXPECT_EQ(values.keys(), state_dict(*plain).keys());
  for (const auto& each : state_dict(*plain)) {
    EXPECT_TRUE(at::equal(values[each.key()], each.value()));
  }
}

TEST(WrapperStateDictTest, ArchiveHoldsCleanedKeys) {
  Stack plain = make_stack(), stack = make_stack(), other = make_stack();
  const auto wrapper = flatten_params(stack.ptr(), stack->parameters());
  std::stringstream flat, unflattened;
  torch::save(std::static_pointer_cast<torch::nn::Module>(wrapper), flat);
  {
    const auto scope = wrapper->unflatten_as_params();
    torch::save(std::static_pointer_cast<torch::nn::Module>(wrapper), unflattened);
  }
  {
    const at::NoGradGuard no_grad;
    wrapper->flat_param().zero_();
    other->parameters()[2].zero_();
  }
  // What was saved in the scope is a checkpoint of the plain module.
  Stack from_wrapper = other;
  torch::load(from_wrapper, unflattened);
  EXPECT_TRUE(at::equal(weight_of(*other, 4), weight_of(*plain, 4)));
  std::shared_ptr<torch::nn::Module> target = wrapper;
  torch::load(target, flat);
  EXPECT_TRUE(at::equal(weight_of(*stack, 4), weight_of(*plain, 4)));
  const at::Tensor x = at::ones({1, 10});
  EXPECT_TRUE(at::equal(wrapper->forward(x), plain.get()->forward(x)));
  {
    // Loading replaces the leaves' storage; the end of the scope copies the values to the flat
    // parameter.
    const at::NoGradGuard no_grad;
    wrapper->flat_param().zero_();
    const auto scope = wrapper->unflatten_as_params();
    unflattened.clear();
    unflattened.seekg(0);
    torch::load(target, unflattened);
  }
  EXPECT_TRUE(at::equal(wrapper->forward(x), plain.get()->forward(x)));
}

}  // namespace
}  // namespace shardlens::fsdp
