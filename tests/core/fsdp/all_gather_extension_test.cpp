// All-gathers that carry something else than the shard.
#include "core/fsdp/unit/all_gather_extension.h"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/adamw.h>

#include "core/base/recorder.h"
#include "core/dist/world.h"
#include "core/fsdp/apply/fully_shard.h"
#include "core/fsdp/unit/float8_all_gather.h"
#include "tests/core/fsdp/emulated_world.h"
#include "tests/core/fsdp/fake_device.h"
#include "tests/core/fsdp/mlp.h"
#include "tests/core/fsdp/seeded.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks.h"

namespace shardlens::fsdp {
namespace {

// Sends the shard twice, in another order of elements, and counts its calls.
class Reversed final : public AllGatherExtension {
 public:
  explicit Reversed(const ExtendedUnit& unit) : dtype_(unit.param_dtype) {}
  at::Tensor pre_all_gather(const at::Tensor& shard) override {
    ++pre;
    const at::Tensor sent = shard.to(dtype_).flip({0});
    return at::cat({sent, sent});
  }
  void post_all_gather(const at::Tensor& gathered, const at::Tensor& shards) override {
    ++post;
    shards.copy_(gathered.narrow(1, 0, shards.size(1)).flip({1}));
  }
  int pre = 0, post = 0;

 private:
  at::ScalarType dtype_;
};

// The bytes that the units' all-gathers return, as a trace has them.
class GatheredBytes final : public NullRecorder {
 public:
  explicit GatheredBytes(dist::World& world) : world_(world) { world_.set_recorder(this); }
  ~GatheredBytes() override { world_.set_recorder(nullptr); }
  GatheredBytes(const GatheredBytes&) = delete;
  GatheredBytes& operator=(const GatheredBytes&) = delete;
  void collective(const CollectiveRecord& record) override {
    if (record.kind == CollectiveKind::kAllGather && record.unit != kNoUnit) {
      bytes += record.out_nelems * size_of(record.dtype);
    }
  }
  std::atomic<int64_t> bytes = 0;

 private:
  dist::World& world_;
};

struct ExtensionOutcome {
  std::vector<double> losses;
  std::vector<at::Tensor> shards;
  int64_t bytes = 0;
};

ExtensionOutcome train_extended(dist::World& world,
                                const std::string& plan,
                                const MakeAllGatherExtension& extension,
                                int64_t width = 5,
                                bool starts_on_host = true) {
  const c10::Device device = world.world().device();
  test::Mlp model = test::make_mlp(width, 3);
  if (!device.is_cpu() && !starts_on_host) {
    test::move_to_device(*model);
  }
  const bool wide = width > 5;  // learns one batch, from values that suit this many elements
  if (wide) {
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : model->parameters()) {
      parameter.mul_(0.3);
    }
  }
  const GatheredBytes gathered(world);
  const auto sharded =
      fully_shard(model.ptr(), test::mlp_plan("null", plan),
                  {.world = &world, .check_ledger = true, .all_gather_extension = extension});
  torch::optim::AdamW optimizer(model->parameters(),
                                torch::optim::AdamWOptions(wide ? 2e-3 : 1e-2));
  ExtensionOutcome outcome;
  for (uint64_t step = 0; step < 6; ++step) {
    const uint64_t seed = (wide ? 0 : 100 * step) + static_cast<uint64_t>(world.rank());
    const at::Tensor x = test::seeded({8, width}, seed);
    const at::Tensor y = x.narrow(1, 0, 2).sin();
    const at::Tensor loss = (model(x.to(device)).to(at::kFloat) - y.to(device)).pow(2).mean();
    loss.backward();
    outcome.losses.push_back(loss.item<double>());
    optimizer.step();
    sharded->optimizer_done();
    optimizer.zero_grad();
  }
  for (const at::Tensor& shard : sharded->flat_shards()) {
    outcome.shards.push_back(shard.detach().cpu().clone());
  }
  outcome.bytes = gathered.bytes;
  return outcome;
}

struct ExtensionCase {
  const char* name;
  std::string plan;
  int ranks = 2, replicate = 1;
};

void PrintTo(const ExtensionCase& c, std::ostream* out) {
  *out << c.name;
}

class AllGatherExtensionTest : public testing::TestWithParam<ExtensionCase> {};

TEST_P(AllGatherExtensionTest, WhatArrivesIsUsed) {
  const ExtensionCase& c = GetParam();
  test::run_ranks(c.ranks, [&](dist::World& world) {
    std::vector<std::shared_ptr<Reversed>> made;
    const ExtensionOutcome without = train_extended(world, c.plan, {});
    const ExtensionOutcome with = train_extended(world, c.plan, [&](const ExtendedUnit& unit) {
      EXPECT_EQ(unit.ranks, c.ranks / c.replicate);
      made.push_back(std::make_shared<Reversed>(unit));
      return made.back();
    });
    EXPECT_EQ(with.losses, without.losses);
    ASSERT_EQ(with.shards.size(), without.shards.size());
    for (size_t i = 0; i < with.shards.size(); ++i) {
      EXPECT_TRUE(with.shards[i].equal(without.shards[i])) << "shard " << i;
    }
    EXPECT_EQ(with.bytes, 2 * without.bytes);
    ASSERT_EQ(made.size(), 4U);  // the root and three blocks
    for (const auto& each : made) {
      EXPECT_GE(each->pre, 6);
      EXPECT_EQ(each->post, each->pre);
    }
  });
}

// On a device nothing but streams and events orders hooks, collectives and the use.
TEST_P(AllGatherExtensionTest, HooksAreOrderedByEventsOnADevice) {
  const ExtensionCase& c = GetParam();
  const auto emulated = [&](c10::Device device, bool extend) {
    const auto world = test::emulated_world(c.ranks, device);
    const bool offloads = c.plan.find("cpu_offload") != std::string::npos;
    const MakeAllGatherExtension reversed = [](const ExtendedUnit& unit) {
      return std::make_shared<Reversed>(unit);
    };
    return train_extended(*world, c.plan, extend ? reversed : MakeAllGatherExtension(), 5,
                          offloads);
  };
  const ExtensionOutcome cpu = emulated(c10::kCPU, false);
  for (uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const test::DeviceScope scope(seed);
    const ExtensionOutcome device = emulated(test::kFakeDevice, true);
    for (size_t i = 0; i < cpu.shards.size(); ++i) {
      EXPECT_TRUE(at::allclose(device.shards[i], cpu.shards[i], 1e-3, 1e-4)) << "shard " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Plans,
    AllGatherExtensionTest,
    testing::Values(ExtensionCase{"flat", ""},
                    ExtensionCase{"per_parameter", R"(, "layout": "per_parameter")", 3},
                    ExtensionCase{"prefetch", R"(, "forward_prefetch": 2)"},
                    ExtensionCase{"fsdp1", R"(, "dialect": "fsdp1")"},
                    ExtensionCase{"fsdp1_prefetch",
                                  R"(, "dialect": "fsdp1", "forward_prefetch": 1)"},
                    ExtensionCase{"bf16", R"(, "mixed_precision": {"param_dtype": "bf16"})"},
                    ExtensionCase{"hybrid", R"(, "mesh": {"replicate": 2, "shard": 2})", 4, 2},
                    ExtensionCase{"offloaded", R"(, "cpu_offload": true)"}),
    [](const auto& each) { return std::string(each.param.name); });

// The scale of each rank's part of a matrix is amax / 448, and vectors are sent as they are.
TEST(Float8AllGatherTest, RoundsMatricesToThreeBitsAndKeepsVectors) {
  ExtendedUnit unit;
  unit.ranks = 2;
  unit.shard_numel = 8;
  unit.param_dtype = at::kFloat;
  unit.parameters = {{"weight", {3, 4}, {{0, 8}, {0, 4}}}, {"bias", {3}, {{0, 0}, {4, 3}}}};
  const at::Tensor shards = at::zeros({2, 8});
  std::vector<at::Tensor> messages, values;
  for (int64_t rank = 0; rank < 2; ++rank) {
    unit.rank = rank;
    Float8AllGather sender(unit);
    values.push_back(test::seeded({8}, static_cast<uint64_t>(rank)).mul(rank == 0 ? 1e-6 : 1e4));
    messages.push_back(sender.pre_all_gather(values.back()));
    EXPECT_EQ(messages.back().numel(), sender.message_bytes());
  }
  Float8AllGather(unit).post_all_gather(at::stack(messages), shards);
  // Half a unit of the last of three bits; the smallest numbers have fewer.
  const auto close = [](const at::Tensor& seen, const at::Tensor& sent) {
    const double most = sent.abs().max().item<double>();
    return at::allclose(seen, sent, 1.0 / 16, most / 448 / 1024);
  };
  EXPECT_TRUE(close(shards[0], values[0])) << shards[0] << values[0];
  EXPECT_TRUE(close(shards[1].narrow(0, 0, 4), values[1].narrow(0, 0, 4)));
  EXPECT_TRUE(shards[1].narrow(0, 4, 3).equal(values[1].narrow(0, 4, 3)));
  EXPECT_FALSE(shards[0].equal(values[0]));
}

TEST(Float8AllGatherTest, TrainsLikeBf16WithHalfTheBytes) {
  for (const char* layout : {"flat", "per_parameter"}) {
    SCOPED_TRACE(layout);
    test::run_ranks(2, [&](dist::World& world) {
      const std::string plan = std::string(R"(, "mixed_precision": {"param_dtype": "bf16",)") +
                               R"( "reduce_dtype": "fp32"}, "layout": ")" + layout + "\"";
      const ExtensionOutcome bf16 = train_extended(world, plan, {}, 64);
      const ExtensionOutcome fp8 = train_extended(
          world, plan,
          [](const ExtendedUnit& unit) { return std::make_shared<Float8AllGather>(unit); }, 64);
      for (size_t i = 0; i < bf16.losses.size(); ++i) {
        EXPECT_NEAR(fp8.losses[i], bf16.losses[i], 0.1 * bf16.losses[0]) << "step " << i;
      }
      EXPECT_LT(bf16.losses.back(), 0.7 * bf16.losses.front());
      EXPECT_LT(fp8.losses.back(), 0.7 * fp8.losses.front());
      const double share = static_cast<double>(fp8.bytes) / static_cast<double>(bf16.bytes);
      EXPECT_GT(share, 0.5);
      EXPECT_LT(share, 0.53);  // and the vectors and scales
    });
  }
}

TEST(AllGatherExtensionMisuseTest, WhatCannotBeExtendedIsNamed) {
  test::run_ranks(4, [&](dist::World& world) {
    EXPECT_THAT(test::message_of<UsageError>([&] {
                  train_extended(world, R"(, "mesh": {"shard": 4})", [](const ExtendedUnit& unit) {
                    EXPECT_EQ(unit.ranks, 4);
                    struct Two final : AllGatherExtension {
                      at::Tensor pre_all_gather(const at::Tensor& shard) override {
                        return shard.view({1, -1});
                      }
                      void post_all_gather(const at::Tensor&, const at::Tensor&) override {}
                    };
                    return std::make_shared<Two>();
                  });
                }),
                testing::HasSubstr("pre_all_gather() should return a 1-D tensor on cpu"));
    test::Mlp model = test::make_mlp(5, 3);
    EXPECT_THAT(test::message_of<UsageError>([&] {
                  static_cast<void>(fully_shard(
                      model.ptr(), test::mlp_plan("2"),
                      {.world = &world, .all_gather_extension = [](const ExtendedUnit& unit) {
                         return std::make_shared<Reversed>(unit);
                       }}));
                }),
                testing::HasSubstr("has reshard_after_forward over a smaller mesh"));
  });
}

}  // namespace
}  // namespace shardlens::fsdp
