// The dtypes of a unit's computation, reduction and output.
#include <cmath>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>

#include "core/base/error.h"
#include "core/fsdp/apply/fully_shard.h"
#include "tests/core/fsdp/chain.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks.h"

namespace shardlens::fsdp {
namespace {

using test::Chain;
using test::make_chain;
using test::seeded;
using ::testing::HasSubstr;

// `mixed`: mixed_precision of the plan; `unit`: that of "layers.1", if given.
plan::Plan mixed_plan_of(const std::string& mixed, const std::string& unit = "") {
  std::string units = R"([{"modules": ""}, {"modules": "layers.0"}, {"modules": "layers.2"},
                          {"modules": "layers.1")";
  units += (unit.empty() ? "" : R"(, "mixed_precision": )" + unit) + "}]";
  return plan::parse_plan(
      R"({"version": 1, "units": )" + units + R"(, "mixed_precision": )" + mixed + "}",
      "plan.json");
}

struct Seen {
  at::ScalarType input = at::kByte, output = at::kByte, weight = at::kByte;
};

// The middle block's dtypes of input, weight and output, seen by hooks after the unit's own.
Seen run(Chain& model, const at::Tensor& x, at::Tensor* output = nullptr) {
  Seen seen;
  test::Link& link = model->links[1];
  const auto before = link->register_pre_forward([&](module::TensorRefs& inputs) {
    seen.input = inputs[0]->scalar_type();
    seen.weight = link->up->weight.scalar_type();
  });
  const auto after = link->register_post_forward(
      [&](module::TensorRefs& outputs) { seen.output = outputs[0]->scalar_type(); });
  const at::Tensor out = model(x);
  if (output != nullptr) {
    *output = out;
  }
  out.to(at::kFloat).sum().backward();
  return seen;
}

TEST(MixedPrecisionTest, OutputDtypeIsWhatAUnitHandsOn) {
  test::run_ranks(2, [](dist::World& world) {
    Chain model = make_chain({});
    const auto sharded =
        fully_shard(model.ptr(),
                    mixed_plan_of(R"({"param_dtype": "bf16", "reduce_dtype": "fp32"})",
                                  R"({"param_dtype": "bf16", "output_dtype": "fp32"})"),
                    {.world = &world, .check_ledger = true});
    at::Tensor out;
    const Seen seen = run(model, seeded({3, 5}, 1), &out);
    EXPECT_EQ(seen.input, at::kBFloat16);
    EXPECT_EQ(seen.weight, at::kBFloat16);
    EXPECT_EQ(seen.output, at::kFloat);  // the next unit casts it back
    EXPECT_EQ(out.scalar_type(), at::kBFloat16);
    for (const at::Tensor& shard : sharded->flat_shards()) {
      EXPECT_EQ(shard.grad().scalar_type(), at::kFloat);
    }
  });
}

TEST(MixedPrecisionTest, UnitsOverrideThePlan) {
  test::run_ranks(2, [](dist::World& world) {
    Chain model = make_chain({});
    const auto sharded = fully_shard(
        model.ptr(), mixed_plan_of(R"({"param_dtype": "bf16"})", R"({"param_dtype": "fp32"})"),
        {.world = &world, .check_ledger = true});
    const Seen seen = run(model, seeded({3, 5}, 1));
    EXPECT_EQ(seen.input, at::kFloat);
    EXPECT_EQ(seen.weight, at::kFloat);
    EXPECT_EQ(seen.output, at::kFloat);
  });
}

TEST(MixedPrecisionTest, InputsStayAsTheyAreWithoutCasting) {
  test::run_ranks(2, [](dist::World& world) {
    Chain model = make_chain({});
    const auto sharded = fully_shard(
        model.ptr(), mixed_plan_of(R"({"param_dtype": "bf16", "cast_forward_inputs": false})"),
        {.world = &world, .check_ledger = true});
    EXPECT_THROW(static_cast<void>(model(seeded({3, 5}, 1))), c10::Error);  // fp32 x bf16
    EXPECT_EQ(sharded->unsharded_bytes(), 0);
    EXPECT_EQ(run(model, seeded({3, 5}, 1).to(at::kBFloat16)).input, at::kBFloat16);
  });
}

TEST(MixedPrecisionTest, GradientsInEveryDtypeAreNearThoseInFp32) {
  const auto loss_of = [](Chain& model, int rank) {
    return model(seeded({4, 5}, static_cast<uint64_t>(rank))).to(at::kFloat).pow(2).mean();
  };
  for (const int ranks : {2, 3}) {
    Chain plain = make_chain({});
    for (int rank = 0; rank < ranks; ++rank) {
      (loss_of(plain, rank) / ranks).backward();
    }
    for (const std::string mixed :
         {R"({"param_dtype": "bf16"})", R"({"param_dtype": "bf16", "reduce_dtype": "fp32"})",
          R"({"param_dtype": "fp16"})", R"({"param_dtype": "fp16", "reduce_dtype": "fp32"})",
          R"({"reduce_dtype": "bf16"})", R"({"reduce_dtype": "fp16"})"}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + mixed);
      // bf16 has 8 significant bits, and rounding may change the sign of a ReLU's input.
      const double tolerance = mixed.find("bf16") == std::string::npos ? 1e-2 : 1e-1;
      test::run_ranks(ranks, [&](dist::World& world) {
        Chain model = make_chain({});
        const auto sharded =
            fully_shard(model.ptr(), mixed_plan_of(mixed), {.world = &world, .check_ledger = true});
        loss_of(model, world.rank()).backward();
        double error = 0, norm = 0;
        for (const ParameterSlice& slice : sharded->slices()) {
          const at::Tensor grad = model->parameters()[slice.parameter].grad();
          EXPECT_EQ(grad.scalar_type(), at::kFloat);
          const at::Tensor whole = plain->parameters()[slice.parameter].grad();
          const at::Tensor part = whole.reshape({-1}).narrow(0, slice.offset, slice.values.numel());
          error += (grad - part).pow(2).sum().item<double>();
          norm += part.pow(2).sum().item<double>();
        }
        EXPECT_LE(std::sqrt(error / norm), tolerance);
        EXPECT_GT(error, 0);  // something was rounded
      });
    }
  }
}

// FSDP1: buffers are cast once; inputs are cast at the root, elsewhere on demand.
struct BufferedImpl : torch::nn::Module {
  BufferedImpl()
      : scale(register_buffer("scale", at::ones({5}))),
        count(register_buffer("count", at::ones({1}, at::kLong))),
        link(register_module("link", test::Link(5))) {}
  at::Tensor forward(const at::Tensor& x) { return link(x.to(at::kFloat)) * scale; }
  at::Tensor scale, count;
  test::Link link;
};
SHARDLENS_MODULE(Buffered);

TEST(MixedPrecisionTest, Fsdp1CastsBuffersAndTheRootsInputs) {
  test::run_ranks(2, [](dist::World& world) {
    for (const bool everywhere : {false, true}) {
      Buffered model;
      const plan::Plan plan = plan::parse_plan(
          std::string(R"({"version": 1, "dialect": "fsdp1", "units": [{"modules": ""},
              {"modules": "link"}], "mixed_precision": {"param_dtype": "bf16",
              "reduce_dtype": "fp32", "buffer_dtype": "fp16")") +
              (everywhere ? R"(, "cast_forward_inputs": true}})" : "}}"),
          "plan.json");
      const auto sharded = fully_shard(model.ptr(), plan, {.world = &world, .check_ledger = true});
      EXPECT_EQ(model->scale.scalar_type(), at::kHalf);
      EXPECT_EQ(model->count.scalar_type(), at::kLong);
      if (everywhere) {
        EXPECT_EQ(model(seeded({2, 5}, 1)).scalar_type(), at::kFloat);  // bf16 x fp16
      } else {
        EXPECT_THROW(static_cast<void>(model(seeded({2, 5}, 1))), c10::Error);  // fp32 x bf16
      }
    }
  });
}

TEST(MixedPrecisionTest, KeysOfTheOtherDialectAreRefused) {
  test::run_ranks(1, [](dist::World& world) {
    Chain model = make_chain({});
    EXPECT_THAT(
        test::message_of<std::exception>([&] {
          static_cast<void>(fully_shard(model.ptr(), mixed_plan_of(R"({"buffer_dtype": "bf16"})"),
                                        {.world = &world}));
        }),
        HasSubstr("plan.json#/mixed_precision/buffer_dtype: FSDP2 never casts buffers"));
  });
}

TEST(MixedPrecisionTest, ParametersOfTwoDtypesInOneUnitAreNamed) {
  test::run_ranks(1, [](dist::World& world) {
    Chain model = make_chain({});
    model->links[1]->down->to(at::kDouble);
    const std::string message = test::message_of<std::exception>([&] {
      static_cast<void>(fully_shard(model.ptr(), mixed_plan_of("{}"), {.world = &world}));
    });
    EXPECT_THAT(message, HasSubstr("'layers.1.up.weight' is Float"));
    EXPECT_THAT(message, HasSubstr("'layers.1.down.weight' is Double"));
  });
}

}  // namespace
}  // namespace shardlens::fsdp
