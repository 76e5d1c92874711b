// Sharded models whose forwards take and return what programs use: caches by reference, structs,
// maps, overloads.
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/stack.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>

#include "core/dist/world.h"
#include "core/fsdp/apply/fully_shard.h"
#include "core/module/hookable.h"
#include "tests/core/fsdp/seeded.h"
#include "tests/support/ranks.h"

namespace shardlens::fsdp {
namespace {

constexpr int kProgramRanks = 2;

// Keys of earlier layers. It cannot be copied, so a forward that got a copy would not compile.
class KeyCache {
 public:
  KeyCache() = default;
  KeyCache(const KeyCache&) = delete;
  KeyCache& operator=(const KeyCache&) = delete;
  void add(const at::Tensor& key) { keys_.push_back(key); }
  [[nodiscard]] at::Tensor sum() const { return at::stack(keys_).sum(0); }
  friend void for_each_tensor(KeyCache& cache, const auto& visit) { visit(cache.keys_); }

 private:
  std::vector<at::Tensor> keys_;
};

struct LayerOutput {
  at::Tensor hidden;
  std::optional<at::Tensor> loss;
  std::map<std::string, at::Tensor> extra;
};

struct CachedLayerImpl : torch::nn::Module {
  CachedLayerImpl()
      : key(register_module("key", torch::nn::Linear(4, 4))),
        value(register_module("value", torch::nn::Linear(4, 4))) {}
  LayerOutput forward(const at::Tensor& x, KeyCache& cache) {
    cache.add(key(x));
    const at::Tensor hidden = value(x).tanh();
    return {hidden, hidden.pow(2).mean(), {{"keys", cache.sum()}}};
  }
  // A step without loss, as in generation.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const {
    return const_cast<torch::nn::Linear&>(value)(x).tanh();  // NOLINT: LibTorch's is not const
  }
  torch::nn::Linear key, value;
};
SHARDLENS_MODULE(CachedLayer);

struct CachedModelImpl : torch::nn::Module {
  CachedModelImpl() {
    for (int i = 0; i < 3; ++i) {
      layers->push_back(CachedLayer());
    }
    register_module("layers", layers);
    head = register_module("head", torch::nn::Linear(4, 2));
  }
  // The loss of the last layer uses the keys of all layers, which are in the cache alone.
  LayerOutput forward(const at::Tensor& x, KeyCache& cache, bool only_cache = false) {
    at::Tensor hidden = x;
    at::Tensor loss;
    for (const auto& module : *layers) {
      auto& layer = *module->as<CachedLayer>();
      LayerOutput output = layer.forward(hidden, cache);
      loss = loss.defined() ? loss + *output.loss : *output.loss;
      hidden = output.hidden + layer.forward(hidden);
    }
    const at::Tensor keys = cache.sum();
    return {only_cache ? keys : head(hidden), loss, {{"keys", keys}}};
  }
  torch::nn::ModuleList layers;
  torch::nn::Linear head{nullptr};
};
SHARDLENS_MODULE(CachedModel);

CachedModel make_cached_model() {
  CachedModel model;
  const at::NoGradGuard no_grad;
  uint64_t seed = 1;
  for (at::Tensor& p : model->parameters()) {
    p.copy_(test::seeded(p.sizes(), seed++).mul(0.5));
  }
  return model;
}

at::Tensor loss_of(CachedModel& model, int rank, bool only_cache) {
  KeyCache cache;
  const LayerOutput output =
      model(test::seeded({3, 4}, 50 + static_cast<uint64_t>(rank)), cache, only_cache);
  return output.hidden.pow(2).mean() + *output.loss + output.extra.at("keys").pow(2).mean();
}

class ProgramForwardsTest : public testing::TestWithParam<const char*> {};

TEST_P(ProgramForwardsTest, HaveTheGradientsOfOneProcess) {
  for (const bool only_cache : {false, true}) {
    SCOPED_TRACE(only_cache);
    CachedModel plain = make_cached_model();
    for (int rank = 0; rank < kProgramRanks; ++rank) {
      (loss_of(plain, rank, only_cache) / kProgramRanks).backward();
    }
    test::run_ranks(kProgramRanks, [&](dist::World& world) {
      CachedModel model = make_cached_model();
      const auto sharded = fully_shard(model.ptr(), plan::parse_plan(GetParam(), "test"),
                                       {.world = &world, .check_ledger = true});
      for (int step = 0; step < 2; ++step) {
        sharded->zero_grad();
        loss_of(model, world.rank(), only_cache).backward();
        EXPECT_EQ(sharded->unsharded_bytes(), 0);
        for (const ParameterSlice& slice : sharded->slices()) {
          const at::Tensor shown = model->parameters()[slice.parameter].grad();
          const at::Tensor wanted = plain->parameters()[slice.parameter].grad();
          if (!wanted.defined()) {
            EXPECT_TRUE(!shown.defined() || shown.abs().sum().item<double>() == 0);
            continue;
          }
          EXPECT_TRUE(at::allclose(shown.flatten(),
                                   wanted.reshape({-1}).narrow(0, slice.offset, shown.numel()),
                                   1e-5, 1e-6))
              << slice.parameter;
        }
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Plans,
    ProgramForwardsTest,
    testing::Values(
        R"({"version": 1, "units": [{"modules": ""}, {"modules": "layers.*"}]})",
        R"({"version": 1, "units": [{"modules": ""}, {"modules": "layers.*"}], "layout": "per_parameter"})",
        R"({"version": 1, "units": [{"modules": ""}, {"modules": "layers.*"}], "dialect": "fsdp1"})"));

// A program that keeps its model in a static variable: the tables of the library, made later, must
// still be there when it is destroyed.
TEST(StaticModelTest, IsDestroyedAtTheProgramsEnd) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        static std::unique_ptr<dist::World> world;
        static std::shared_ptr<ShardedModel> sharded;
        static CachedModel model{nullptr};
        world = dist::World::join({.backend = dist::BackendKind::kEmulated, .world_size = 2});
        model = make_cached_model();
        sharded = fully_shard(
            model.ptr(), plan::parse_plan(R"({"version": 1, "units": [{"modules": ""}]})", "test"),
            {.world = world.get()});
        loss_of(model, 0, false).backward();
        std::exit(0);
      },
      testing::ExitedWithCode(0), "");
}

// A leaf input that a program uses in every step, and that requires a gradient.
TEST(InputHooksTest, DoNotPileUpOnALeaf) {
  for (const char* dialect : {"fsdp1", "fsdp2"}) {
    test::run_ranks(kProgramRanks, [&](dist::World& world) {
      CachedLayer model;
      for (const at::Tensor& p : model->parameters()) {
        p.requires_grad_(false);
      }
      const auto sharded = fully_shard(
          model.ptr(),
          plan::parse_plan(R"({"version": 1, "units": [{"modules": ""}], "dialect": ")" +
                               std::string(dialect) + "\"}",
                           "test"),
          {.world = &world, .check_ledger = true});
      const at::Tensor x = test::seeded({3, 4}, 1).requires_grad_();
      at::Tensor first;
      for (int step = 0; step < 3; ++step) {
        model(x).sum().backward();
        const auto* meta = torch::autograd::impl::get_autograd_meta(x);
        EXPECT_TRUE(meta->hooks_.empty() && meta->cpp_hooks_list_ == nullptr) << step;
        if (step == 0) {
          first = x.grad().clone();
        }
      }
      EXPECT_TRUE(at::allclose(x.grad(), first * 3));
      EXPECT_EQ(sharded->unsharded_bytes(), 0);
    });
  }
}

struct EmptyPartImpl : torch::nn::Module {
  EmptyPartImpl()
      : empty(register_parameter("empty", at::empty({0, 4}))),
        linear(register_module("linear", torch::nn::Linear(4, 3))) {}
  at::Tensor forward(const at::Tensor& x) {
    return at::cat({at::matmul(x, empty.t()), linear(x)}, 1);
  }
  at::Tensor empty;
  torch::nn::Linear linear;
};
SHARDLENS_MODULE(EmptyPart);
struct AllEmptyImpl : torch::nn::Module {
  AllEmptyImpl()
      : part(register_module("part", EmptyPart())),
        none(register_parameter("none", at::empty({0, 2}))) {}
  at::Tensor forward(const at::Tensor& x) { return part(x) + none.sum(); }
  EmptyPart part;
  at::Tensor none;
};
SHARDLENS_MODULE(AllEmpty);

// Parameters without elements, also a unit that has no others.
TEST_P(ProgramForwardsTest, ParametersWithoutElements) {
  const auto make = [] {
    AllEmpty model;
    const at::NoGradGuard no_grad;
    for (at::Tensor& p : model->parameters()) {
      p.copy_(test::seeded(p.sizes(), 3));
    }
    return model;
  };
  AllEmpty plain = make();
  for (int rank = 0; rank < kProgramRanks; ++rank) {
    (plain(test::seeded({3, 4}, static_cast<uint64_t>(rank))).pow(2).mean() / kProgramRanks)
        .backward();
  }
  std::string text = GetParam();
  text.replace(text.find("layers.*"), 8, "part");
  test::run_ranks(kProgramRanks, [&](dist::World& world) {
    AllEmpty model = make();
    const auto sharded = fully_shard(model.ptr(), plan::parse_plan(text, "test"),
                                     {.world = &world, .check_ledger = true});
    for (int step = 0; step < 2; ++step) {
      sharded->zero_grad();
      model(test::seeded({3, 4}, static_cast<uint64_t>(world.rank()))).pow(2).mean().backward();
      EXPECT_EQ(sharded->unsharded_bytes(), 0);
      for (const ParameterSlice& slice : sharded->slices()) {
        const at::Tensor shown = model->parameters()[slice.parameter].grad();
        const at::Tensor wanted = plain->parameters()[slice.parameter].grad();
        if (shown.defined() && shown.numel() > 0) {
          EXPECT_TRUE(at::allclose(shown.flatten(),
                                   wanted.reshape({-1}).narrow(0, slice.offset, shown.numel()),
                                   1e-5, 1e-6));
        }
      }
    }
  });
}

}  // namespace
}  // namespace shardlens::fsdp
