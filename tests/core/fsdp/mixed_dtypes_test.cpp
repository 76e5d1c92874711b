// Units whose frozen parameters have other dtypes than the trained ones, compared with PyTorch
// (tests/tools/mixed_dtypes_reference.py) and with one process.
#include <cmath>
#include <fstream>
#include <mutex>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/sgd.h>

#include "core/base/error.h"
#include "core/base/recorder.h"
#include "core/dist/world.h"
#include "core/fsdp/apply/fully_shard.h"
#include "core/module/hookable.h"
#include "core/plan/unit_sizes.h"
#include "tests/core/fsdp/seeded.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks.h"

namespace shardlens::fsdp {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

at::Tensor cast_as(const at::Tensor& x, const at::Tensor& parameter) {
  return parameter.to(x.scalar_type());
}

// The chunk of a rank has odd numbers of bf16 before its fp64.
struct AdapterImpl : torch::nn::Module {
  AdapterImpl()
      : base(register_parameter("base", at::zeros({5, 5}, at::kBFloat16), false)),
        gain(register_parameter("gain", at::zeros({5}, at::kDouble), false)),
        down(register_parameter("down", at::zeros({3, 5}))),
        up(register_parameter("up", at::zeros({5, 3}))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor frozen = at::matmul(x, cast_as(x, base).t()) * cast_as(x, gain);
    return at::tanh(frozen + at::matmul(at::matmul(x, down.t()), up.t()));
  }
  at::Tensor base, gain, down, up;
};
SHARDLENS_MODULE(Adapter);

struct AdaptedImpl : torch::nn::Module {
  AdaptedImpl()
      : shift(register_parameter("shift", at::zeros({5}, at::kHalf), false)),
        first(register_module("first", Adapter())),
        second(register_module("second", Adapter())),
        head(register_parameter("head", at::zeros({2, 5}))) {}
  at::Tensor forward(const at::Tensor& x) {
    return at::matmul(second(first(x + cast_as(x, shift))), head.t());
  }
  at::Tensor shift;
  Adapter first, second;
  at::Tensor head;
};
SHARDLENS_MODULE(Adapted);

// Parameters by name: `parameters()` has the root's own first, as in PyTorch.
std::vector<at::Tensor> in_order(Adapted& model) {
  std::vector<at::Tensor> all{model->shift, model->head};
  for (Adapter each : {model->first, model->second}) {
    all.insert(all.end(), {each->base, each->gain, each->down, each->up});
  }
  return all;
}

Adapted make_adapted() {
  Adapted model;
  const at::NoGradGuard no_grad;
  uint64_t seed = 1;
  for (at::Tensor& p : in_order(model)) {
    p.copy_(test::seeded(p.sizes(), seed++) * 0.4);
  }
  return model;
}

at::Tensor adapted_loss(Adapted& model, int step, int rank) {
  const at::Tensor x = test::seeded({3, 5}, static_cast<uint64_t>(100 + 10 * step + rank));
  return model(x).to(at::kFloat).pow(2).mean();
}

plan::Plan adapter_plan(const std::string& keys) {
  return plan::parse_plan(
      R"({"version": 1, "units": [{"modules": ""}, {"modules": ["first"]}, {"modules": ["second"]}])" +
          keys + "}",
      "test");
}

// Dtype and bytes of collectives, and whether they are the planned ones.
struct Issued : NullRecorder {
  void collective(const CollectiveRecord& record) override {
    if (record.unit == kNoUnit) {
      return;
    }
    const std::lock_guard lock(mutex);
    const int64_t numel = std::max(record.in_nelems, record.out_nelems);
    of.push_back({record.kind, record.unit, record.dtype, numel * size_of(record.dtype)});
  }
  struct One {
    CollectiveKind kind;
    UnitId unit;
    DType dtype;
    Bytes bytes;
  };
  [[nodiscard]] json all(CollectiveKind kind) const {
    json seen = json::array();
    for (const One& each : of) {
      if (each.kind == kind) {
        const std::string name(kineto_name(each.dtype));
        const std::string torch_name = name == "Byte"       ? "uint8"
                                       : name == "BFloat16" ? "bfloat16"
                                                            : "float32";
        seen.push_back({torch_name, each.bytes});
      }
    }
    return seen;
  }
  void expect_planned(const plan::ResolvedPlan& plan) const {
    const std::vector<plan::UnitSize> sizes = plan::unit_sizes(plan);
    for (const One& each : of) {
      const plan::UnitMessages planned = plan::unit_messages(plan, each.unit, sizes[each.unit]);
      const bool gathers = each.kind == CollectiveKind::kAllGather;
      const bool reduces = each.kind == CollectiveKind::kReduceScatter;
      EXPECT_EQ(each.bytes, gathers             ? planned.all_gather
                            : reduces           ? planned.reduce_scatter
                            : plan.shards() > 1 ? planned.all_reduce_shard
                                                : planned.all_reduce_full)
          << kineto_name(each.kind) << " of unit " << each.unit;
      EXPECT_EQ(each.dtype, gathers ? plan.gather_dtype(each.unit) : plan.reduce_dtype(each.unit));
    }
  }
  std::mutex mutex;
  std::vector<One> of;
};

// The rank's parts of `wanted`, by parameter (undefined: no gradient), are its gradients.
void expect_gradients(const ShardedModel& sharded,
                      Adapted& model,
                      const std::vector<at::Tensor>& wanted,
                      double share) {
  double error = 0, norm = 0;
  const std::vector<at::Tensor> parameters = model->parameters();
  for (const ParameterSlice& slice : sharded.slices()) {
    const at::Tensor grad = parameters[slice.parameter].grad();
    const at::Tensor& whole = wanted[slice.parameter];
    ASSERT_EQ(grad.defined(), whole.defined()) << slice.parameter;
    if (whole.defined()) {
      const at::Tensor part = whole.reshape({-1}).narrow(0, slice.offset, slice.values.numel());
      error += (grad - part).to(at::kDouble).pow(2).sum().item<double>();
      norm += whole.to(at::kDouble).pow(2).sum().item<double>();
    }
  }
  EXPECT_LE(std::sqrt(error), share * std::sqrt(norm));
}

TEST(MixedDtypesTest, EqualsWhatPyTorchRecorded) {
  json recorded;
  std::ifstream(std::string(SHARDLENS_TEST_DATA) + "/mixed_dtypes.json") >> recorded;
  ASSERT_EQ(recorded["cases"].size(), 3U);
  for (const json& each : recorded["cases"]) {
    EXPECT_EQ(each["refused"], "AssertionError");  // trained parameters of two dtypes
    const bool bf16 = !each["mixed_precision"].empty();
    test::run_ranks(each["ranks"], [&](dist::World& world) {
      SCOPED_TRACE(each["ranks"].dump() + each["mixed_precision"].dump());
      Issued issued;
      world.set_recorder(&issued);
      Adapted model = make_adapted();
      const auto sharded =
          fully_shard(model.ptr(),
                      adapter_plan(R"(, "layout": "per_parameter", "mixed_precision": )" +
                                   each["mixed_precision"].dump()),
                      {.world = &world, .check_ledger = true});
      torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
      int number = 0;
      for (const json& step : each["steps"]) {
        issued.of.clear();
        adapted_loss(model, number++, world.rank()).backward();
        EXPECT_EQ(issued.all(CollectiveKind::kAllGather), step["gathered"]);
        EXPECT_EQ(issued.all(CollectiveKind::kReduceScatter), step["reduced"]);
        issued.expect_planned(sharded->plan());
        std::vector<at::Tensor> wanted;
        for (const json& grad : step["grads"]) {
          wanted.push_back(grad.is_null() ? at::Tensor()
                                          : at::tensor(grad.get<std::vector<float>>()));
        }
        expect_gradients(*sharded, model, wanted, bf16 ? 1e-2 : 1e-6);
        optimizer.step();
        optimizer.zero_grad();
        sharded->optimizer_done();
      }
      world.set_recorder(nullptr);
    });
  }
}

struct Choice {
  int ranks = 2, replicate = 1;
  std::string keys;
  bool force_collectives = false;
};

// Trains two steps, the first of two microbatches, and evaluates between them.
void expect_one_process(const Choice& choice) {
  Adapted plain = make_adapted();
  std::vector<std::vector<at::Tensor>> wanted;
  torch::optim::SGD stepper(plain->parameters(), torch::optim::SGDOptions(0.1));
  for (int step = 0; step < 2; ++step) {
    for (int rank = 0; rank < choice.ranks; ++rank) {
      (adapted_loss(plain, step, rank) / choice.ranks).backward();
      if (step == 0) {
        (adapted_loss(plain, 7, rank) / choice.ranks).backward();
      }
    }
    wanted.emplace_back();
    for (const at::Tensor& p : plain->parameters()) {
      wanted.back().push_back(p.grad().defined() ? p.grad().clone() : at::Tensor());
    }
    stepper.step();
    stepper.zero_grad();
  }
  test::run_ranks(choice.ranks, [&](dist::World& world) {
    SCOPED_TRACE(
        fmt::format("{} ranks, {} replicas{}", choice.ranks, choice.replicate, choice.keys));
    Issued issued;
    world.set_recorder(&issued);
    Adapted model = make_adapted();
    const auto sharded = fully_shard(
        model.ptr(), adapter_plan(choice.keys),
        {.world = &world, .check_ledger = true, .force_collectives = choice.force_collectives});
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
    for (int step = 0; step < 2; ++step) {
      sharded->set_requires_gradient_sync(step == 1);
      if (step == 0) {
        adapted_loss(model, 7, world.rank()).backward();
        sharded->set_requires_gradient_sync(true);
      }
      {
        const at::NoGradGuard no_grad;
        adapted_loss(model, 9, world.rank());
      }
      adapted_loss(model, step, world.rank()).backward();
      expect_gradients(*sharded, model, wanted[static_cast<size_t>(step)], 1e-6);
      optimizer.step();
      optimizer.zero_grad();
      sharded->optimizer_done();
    }
    if (choice.ranks > 1) {
      issued.expect_planned(sharded->plan());
    }
    const std::vector<at::Tensor> all = plain->parameters();
    for (uint32_t i = 0; i < all.size(); ++i) {
      const at::Tensor whole = sharded->full_parameter(i);
      ASSERT_EQ(whole.scalar_type(), all[i].scalar_type());
      EXPECT_TRUE(all[i].requires_grad() ? at::allclose(whole, all[i], 1e-5, 1e-6)
                                         : at::equal(whole, all[i]))
          << i;
    }
    world.set_recorder(nullptr);
  });
}

TEST(MixedDtypesTest, GradientsAreThoseOfOneProcess) {
  const std::string layout = R"(, "layout": "per_parameter")";
  for (const std::string dialect : {R"(, "dialect": "fsdp2")", R"(, "dialect": "fsdp1")"}) {
    for (const int ranks : {1, 2, 3, 4, 6}) {  // with six, some ranks store nothing of a parameter
      expect_one_process({ranks, 1, layout + dialect});
    }
    expect_one_process({4, 2, layout + dialect + R"(, "mesh": {"replicate": 2, "shard": 2})"});
    expect_one_process({3, 1, layout + dialect + R"(, "reshard_after_forward": false)"});
    expect_one_process({2, 1, layout + dialect + R"(, "views": "frozen")"});
    // fp32 holds bf16 and fp16 exactly, and these values of fp64 nearly.
    for (const int ranks : {1, 3}) {
      expect_one_process(
          {ranks, 1, layout + dialect + R"(, "mixed_precision": {"param_dtype": "fp32"})"});
    }
  }
  expect_one_process({4, 1, layout + R"(, "reshard_after_forward": 2)"});
  expect_one_process({1, 1, layout, true});
}

TEST(MixedDtypesTest, AssignedValuesReachTheShards) {
  test::run_ranks(3, [](dist::World& world) {
    Adapted model = make_adapted();
    const auto sharded =
        fully_shard(model.ptr(), adapter_plan(R"(, "layout": "per_parameter")"), {.world = &world});
    const at::Tensor values = test::seeded({5, 5}, 77).to(at::kBFloat16);
    model->first->base.set_data(values.clone());
    adapted_loss(model, 0, world.rank()).backward();
    const std::vector<at::Tensor> all = model->parameters();
    for (uint32_t i = 0; i < all.size(); ++i) {
      if (all[i].is_same(model->first->base)) {
        EXPECT_TRUE(at::equal(sharded->full_parameter(i), values));
      }
    }
    model->first->base.set_data(values.to(at::kFloat));
    EXPECT_THAT(test::message_of<UsageError>([&] { adapted_loss(model, 0, world.rank()); }),
                HasSubstr("'first.base' was BFloat16 cpu when it was sharded, and is now Float"));
  });
}

TEST(MixedDtypesTest, AFlatParameterAndTrainedParametersHaveOneDtype) {
  test::run_ranks(2, [](dist::World& world) {
    Adapted model = make_adapted();
    const auto refusal = [&](const std::string& keys) {
      return test::message_of<UsageError>([&] {
        static_cast<void>(fully_shard(model.ptr(), adapter_plan(keys), {.world = &world}));
      });
    };
    EXPECT_THAT(refusal(""),
                AllOf(HasSubstr("unit the root mixes dtypes: 'shift' is Half, 'head' is Float"),
                      HasSubstr("a unit of their own"), HasSubstr("use the layout per_parameter")));
    model->first->down.set_data(model->first->down.to(at::kDouble));
    EXPECT_THAT(
        refusal(R"(, "layout": "per_parameter")"),
        AllOf(HasSubstr("unit 'first' mixes dtypes: 'first.down' is Double, 'first.up' is Float"),
              HasSubstr("one dtype for all that are not frozen"),
              HasSubstr("a unit of their own")));
    model->first->down.set_data(model->first->down.to(at::kFloat));  // nothing is sharded yet
    EXPECT_EQ(refusal(R"(, "layout": "per_parameter")"), "accepted");
  });
}

}  // namespace
}  // namespace shardlens::fsdp
