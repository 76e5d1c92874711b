#include "core/replicate/replicate.h"

#include <fstream>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <torch/nn/modules/container/modulelist.h>

#include "core/base/error.h"
#include "core/composable/contract.h"
#include "core/schedule/buckets.h"
#include "tests/support/ranks.h"

namespace shardlens::replicate {
namespace {

using nlohmann::json;
using test::run_ranks;
using ::testing::HasSubstr;

at::Tensor values(at::IntArrayRef shape, double seed) {
  int64_t numel = 1;
  for (const int64_t size : shape) {
    numel *= size;
  }
  return at::arange(numel, at::kFloat).mul(0.7).add(seed).sin().mul(0.3).view(shape);
}

struct LayerImpl : torch::nn::Module {
  LayerImpl(int64_t in, int64_t out, double seed)
      : weight(register_parameter("weight", values({out, in}, seed))) {}
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight); }
  at::Tensor weight;
};
SHARDLENS_MODULE(Layer);

// The net of PyTorch's test_replicate.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(double seed = 0)
      : fc1(register_module("fc1", Layer(2, 10, seed))),
        fc2(register_module("fc2", Layer(10, 50, seed + 1))),
        fc3(register_module("fc3", Layer(50, 4, seed + 2))),
        buffer(register_buffer("buffer", at::ones({3}).mul(seed))) {}
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor hidden = at::relu(fc1(x));
    hidden = uses_fc2 ? fc2(hidden) : at::zeros({x.size(0), 50});
    if (fails) {
      throw std::runtime_error("forward fails");
    }
    return fc3(at::relu(hidden)).softmax(1);
  }
  Layer fc1, fc2, fc3;
  at::Tensor buffer;
  bool uses_fc2 = true, fails = false;
};
SHARDLENS_MODULE(Net);

Options options(dist::World& world) {
  Options out;
  out.world = &world;
  return out;
}

at::Tensor input(int rank, int step) {
  return values({3, 2}, 10 * rank + step).mul(5);
}
at::Tensor loss_of(const at::Tensor& output) {
  return (output - 0.5).square().mean();
}

void step(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : module.parameters()) {
    if (parameter.grad().defined()) {
      parameter.add_(parameter.grad(), -0.5);
      parameter.mutable_grad().reset();
    }
  }
}

// Parameters of one process that has every rank's data. A step sums `microbatches` losses per rank.
std::vector<at::Tensor> expected(int world, int steps, int microbatches = 1) {
  Net net;
  for (int i = 0; i < steps; ++i) {
    for (int rank = 0; rank < world; ++rank) {
      for (int m = 0; m < microbatches; ++m) {
        loss_of(net->forward(input(rank, i * microbatches + m))).div(world).backward();
      }
    }
    step(*net);
  }
  return net->parameters();
}

void expect_close(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(at::allclose(found[i], wanted[i], 1.3e-6, 5e-5)) << i;
  }
}

class Parity : public ::testing::TestWithParam<int> {};

TEST_P(Parity, SingleModuleTrainsLikeOneProcess) {
  const int world_size = GetParam();
  run_ranks(world_size, [&](dist::World& world) {
    Net net(world.rank());  // rank 0's values are broadcast
    const auto names = net->named_parameters().keys();
    const auto state = replicate(net.ptr(), options(world));
    for (int i = 0; i < 3; ++i) {
      loss_of(net->forward(input(world.rank(), i))).backward();
      step(*net);
    }
    expect_close(net->parameters(), expected(world_size, 3));
    EXPECT_TRUE(at::equal(net->buffer, at::zeros({3})));
    EXPECT_EQ(net->named_parameters().keys(), names);
    EXPECT_EQ(composable::module_state(*net->fc1).get(), state.get());
  });
}

TEST_P(Parity, EveryLayerOnItsOwn) {
  run_ranks(GetParam(), [&](dist::World& world) {
    Net net(world.rank());
    for (const auto& layer : {net->fc1, net->fc2, net->fc3}) {
      replicate(layer.ptr(), options(world));
    }
    for (int i = 0; i < 3; ++i) {
      loss_of(net->forward(input(world.rank(), i))).backward();
      step(*net);
    }
    expect_close(net->parameters(), expected(GetParam(), 3));
  });
}

TEST_P(Parity, AccumulatesWithoutSync) {
  run_ranks(GetParam(), [&](dist::World& world) {
    Net net(world.rank());
    const auto state = replicate(net.ptr(), options(world));
    for (int i = 0; i < 2; ++i) {
      for (int m = 0; m < 3; ++m) {
        state->set_requires_gradient_sync(m == 2);
        loss_of(net->forward(input(world.rank(), 3 * i + m))).backward();
      }
      step(*net);
    }
    expect_close(net->parameters(), expected(GetParam(), 2, 3));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Parity, ::testing::Values(1, 2, 3), [](const auto& each) {
  return "ranks_" + std::to_string(each.param);
});

struct Setting {
  const char* name;
  void (*set)(Options&);
};
void PrintTo(const Setting& setting, std::ostream* out) {
  *out << setting.name;
}
class SettingTest : public ::testing::TestWithParam<Setting> {};

TEST_P(SettingTest, TrainsLikeOneProcess) {
  run_ranks(2, [&](dist::World& world) {
    Net net(world.rank());
    Options with = options(world);
    GetParam().set(with);
    replicate(net.ptr(), with);
    for (int i = 0; i < 4; ++i) {
      loss_of(net->forward(input(world.rank(), i))).backward();
      if (with.gradient_as_bucket_view && i == 3) {  // one buffer for all gradients
        EXPECT_EQ(net->fc1->weight.grad().storage().data(),
                  net->fc3->weight.grad().storage().data());
      }
      step(*net);
    }
    expect_close(net->parameters(), expected(2, 4));
  });
}

INSTANTIATE_TEST_SUITE_P(
    Settings,
    SettingTest,
    ::testing::Values(Setting{"cap", [](Options& o) { o.bucket_cap_mb = 0.0001; }},
                      Setting{"view", [](Options& o) { o.gradient_as_bucket_view = true; }},
                      Setting{"unused", [](Options& o) { o.find_unused_parameters = true; }},
                      Setting{"static", [](Options& o) { o.static_graph = true; }}),
    [](const auto& setting) { return std::string(setting.param.name); });

TEST(ReplicateTest, IgnoredModulesKeepTheirOwnGradients) {
  std::vector<std::vector<at::Tensor>> grads(2);
  run_ranks(2, [&](dist::World& world) {
    Net net;
    const std::vector<std::shared_ptr<torch::nn::Module>> ignored{net->fc1.ptr()};
    const auto state = replicate(net.ptr(), options(world), ignored);
    loss_of(net->forward(input(world.rank(), 0))).backward();
    ASSERT_EQ(state->parameters().size(), 2U);
    EXPECT_EQ(state->parameters()[0].name, "fc2.weight");
    for (const at::Tensor& parameter : net->parameters()) {
      grads[static_cast<size_t>(world.rank())].push_back(parameter.grad().clone());
    }
  });
  EXPECT_FALSE(at::equal(grads[0][0], grads[1][0]));
  EXPECT_TRUE(at::equal(grads[0][1], grads[1][1]));
  EXPECT_TRUE(at::equal(grads[0][2], grads[1][2]));
}

TEST(ReplicateTest, PartsThatAreReplicatedOnTheirOwnAreLeftOut) {
  run_ranks(2, [&](dist::World& world) {
    Net net(world.rank());
    const auto inner = replicate(net->fc2.ptr(), options(world));
    const auto outer = replicate(net.ptr(), options(world));
    for (int i = 0; i < 3; ++i) {
      loss_of(net->forward(input(world.rank(), i))).backward();
      step(*net);
    }
    expect_close(net->parameters(), expected(2, 3));
    EXPECT_EQ(inner->parameters().size(), 1U);
    EXPECT_EQ(outer->parameters().size(), 2U);
  });
}

TEST(ReplicateTest, UnusedParametersAreNamedByTheNextForward) {
  run_ranks(2, [&](dist::World& world) {
    Net net;
    replicate(net.ptr(), options(world));
    net->uses_fc2 = false;
    loss_of(net->forward(input(world.rank(), 0))).backward();
    try {
      net->forward(input(world.rank(), 1));
      ADD_FAILURE() << "the forward was accepted";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("Expected to have finished reduction in the prior"));
      EXPECT_THAT(error.what(), HasSubstr("no gradient came for 'fc1.weight', 'fc2.weight';"));
    }
  });
}

TEST(ReplicateTest, UnusedParametersAreFoundAndLeftAlone) {
  for (const bool static_graph : {false, true}) {
    run_ranks(2, [&](dist::World& world) {
      Net net;
      Options with = options(world);
      with.find_unused_parameters = !static_graph;
      with.static_graph = static_graph;
      replicate(net.ptr(), with);
      net->uses_fc2 = false;
      for (int i = 0; i < 3; ++i) {
        loss_of(net->forward(input(world.rank(), i))).backward();
        EXPECT_FALSE(net->fc2->weight.grad().defined());
        EXPECT_TRUE(net->fc3->weight.grad().defined());
        step(*net);
      }
    });
  }
}

TEST(ReplicateTest, ShapesThatDifferBetweenRanksAreNamed) {
  std::vector<std::string> messages(2);
  const auto run = [&](auto make) {
    run_ranks(2, [&](dist::World& world) {
      try {
        auto layer = make(world.rank());
        replicate(layer.ptr(), options(world));
        layer->forward(values({1, layer->weight.size(1)}, 0));
      } catch (const UsageError& error) {
        messages[static_cast<size_t>(world.rank())] = error.what();
      }
    });
  };
  run([](int rank) { return Layer(4, 3 + rank, 0); });
  EXPECT_THAT(messages[0], HasSubstr("('weight') is of shape [3, 4] here and of shape [4, 4] on"));
  EXPECT_THAT(messages[1], HasSubstr("('weight') is of shape [4, 4] here and of shape [3, 4] on"));
}

TEST(ReplicateTest, NumbersOfParametersThatDifferBetweenRanksAreNamed) {
  std::vector<std::string> messages(2);
  run_ranks(2, [&](dist::World& world) {
    Net net;
    std::vector<std::shared_ptr<torch::nn::Module>> ignored;
    if (world.rank() == 1) {
      ignored.push_back(net->fc3.ptr());
    }
    replicate(net.ptr(), options(world), ignored);
    try {
      net->forward(input(0, 0));
    } catch (const UsageError& error) {
      messages[static_cast<size_t>(world.rank())] = error.what();
    }
  });
  EXPECT_THAT(messages[0],
              HasSubstr("'fc3.weight') is of shape [4, 50] here and missing on rank 1"));
  EXPECT_THAT(messages[1], HasSubstr("missing here and of shape [4, 50] on rank 0"));
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ReplicateTest, RefusesWhatItCannotManage) {
  run_ranks(1, [&](dist::World& world) {
    Net net;
    replicate(net.ptr(), options(world));
    EXPECT_THAT(error_of([&] { replicate(net.ptr(), options(world)); }),
                HasSubstr("replicate has already been applied to the following module"));
    torch::nn::ModuleList list;
    EXPECT_THAT(error_of([&] { replicate(list.ptr(), options(world)); }),
                HasSubstr("does not support containers that do not implement forward"));
    const auto plain = std::make_shared<LayerImpl>(1, 1, 0);
    EXPECT_THAT(error_of([&] { replicate(plain, options(world)); }),
                HasSubstr("has no hooks; declare it with SHARDLENS_MODULE"));
    Net other;
    static const composable::Api sharding("fully_shard");
    const auto state = std::make_shared<composable::State>();
    composable::apply(sharding, {other.ptr()}, state,
                      [](const composable::Modules& given) { return given; });
    EXPECT_THAT(error_of([&] { replicate(other.ptr(), options(world)); }),
                HasSubstr("Cannot apply `replicate()` on a Module already managed by "
                          "`fully_shard`"));
    EXPECT_FALSE(composable::has_api(*other, "replicate"));
  });
}

TEST(ReplicateTest, StatesDieWithTheModule) {
  run_ranks(1, [&](dist::World& world) {
    const int64_t before = ReplicateState::live();
    {
      Net net;
      std::weak_ptr<ReplicateState> state = replicate(net.ptr(), options(world));
      EXPECT_EQ(ReplicateState::live(), before + 1);
      for (int i = 0; i < 2; ++i) {
        loss_of(net->forward(input(0, i))).backward();
      }
      EXPECT_FALSE(state.expired());
    }
    EXPECT_EQ(ReplicateState::live(), before);
  });
}

TEST(ReplicateTest, ForwardsThatAreNotFollowedByABackward) {
  run_ranks(2, [&](dist::World& world) {
    Net net(world.rank());
    const auto state = replicate(net.ptr(), options(world));
    for (int i = 0; i < 3; ++i) {
      {
        const at::NoGradGuard no_grad;
        net->forward(input(world.rank(), 7));
      }
      net->fails = true;
      EXPECT_THROW(net->forward(input(world.rank(), 7)), std::runtime_error);
      net->fails = false;
      loss_of(net->forward(input(world.rank(), i))).backward();
      step(*net);
    }
    expect_close(net->parameters(), expected(2, 3));
  });
}

TEST(ReplicateTest, AbortAfterAnExceptionInBackward) {
  run_ranks(2, [&](dist::World& world) {
    Net net(world.rank());
    const auto state = replicate(net.ptr(), options(world));
    for (int i = 0; i < 3; ++i) {
      at::Tensor output = net->forward(input(world.rank(), i));
      output.register_hook([](const at::Tensor& /*grad*/) -> at::Tensor {
        throw std::runtime_error("backward fails");
      });
      EXPECT_THROW(loss_of(output).backward(), std::runtime_error);
      state->abort();
      loss_of(net->forward(input(world.rank(), i))).backward();
      step(*net);
    }
    expect_close(net->parameters(), expected(2, 3));
  });
}

// A comm hook that records each bucket and returns it as it is.
using Seen = std::vector<std::pair<int64_t, std::vector<const c10::TensorImpl*>>>;
class Watching final : public c10d::CppCommHookInterface<Seen*> {
 public:
  using CppCommHookInterface::CppCommHookInterface;
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    auto& [bytes, parameters] = state_->emplace_back();
    bytes = static_cast<int64_t>(bucket.getBuffer().nbytes());
    for (const at::Tensor& parameter : bucket.getParameters()) {
      parameters.push_back(parameter.unsafeGetTensorImpl());
    }
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
    future->markCompleted(c10::IValue(bucket.getBuffer()));
    return future;
  }
};

TEST(ReplicateTest, CommHooksWaitForTheReducerAndAreAtMostOne) {
  run_ranks(2, [&](dist::World& world) {
    Net net;
    const auto state = replicate(net.ptr(), options(world));
    state->register_comm_hook(BuiltinHook::kFp16Compress);
    EXPECT_THAT(error_of([&] { state->register_comm_hook(BuiltinHook::kAllReduce); }),
                HasSubstr("a comm hook has been registered already"));
    loss_of(net->forward(input(world.rank(), 0))).backward();
    step(*net);
    const std::vector<at::Tensor> wanted = expected(2, 1);
    for (size_t i = 0; i < wanted.size(); ++i) {  // gradients were rounded to fp16
      EXPECT_TRUE(at::allclose(net->parameters()[i], wanted[i], 1e-3, 1e-3));
    }
    EXPECT_FALSE(at::equal(net->fc3->weight, wanted[2]));
  });
}

struct ChainImpl : torch::nn::Module {
  explicit ChainImpl(const std::vector<int64_t>& widths) {
    for (size_t i = 0; i + 1 < widths.size(); ++i) {
      const std::string name = std::to_string(i);
      weights.push_back(register_parameter(name + "_weight", at::ones({widths[i + 1], widths[i]})));
      biases.push_back(register_parameter(name + "_bias", at::ones({widths[i + 1]})));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor hidden = x;
    for (size_t i = 0; i < weights.size(); ++i) {
      hidden = at::linear(hidden, weights[i], biases[i]);
    }
    return hidden;
  }
  std::vector<at::Tensor> weights, biases;
};
SHARDLENS_MODULE(Chain);

// Buckets as c10d's Reducer passes them to a hook, in launch order, compared with DDP in Python.
TEST(BucketsTest, AreThoseOfDdpOn64Megabytes) {
  json file;
  std::ifstream(std::string(SHARDLENS_TEST_DATA) + "/ddp_buckets_large.json") >> file;
  const auto widths = file["widths"].get<std::vector<int64_t>>();
  run_ranks(2, [&](dist::World& world) {
    for (const json& run : file["runs"]) {
      const json& kwargs = run["kwargs"];
      Chain chain(widths);
      Options with = options(world);
      if (kwargs.contains("bucket_cap_mb")) {
        with.bucket_cap_mb = kwargs["bucket_cap_mb"].get<double>();
      }
      with.find_unused_parameters = kwargs.value("find_unused_parameters", false);
      with.static_graph = kwargs.value("static_graph", false);
      with.gradient_as_bucket_view = kwargs.value("gradient_as_bucket_view", false);
      const auto state = replicate(chain.ptr(), with);
      Seen seen;
      state->register_comm_hook(std::make_unique<Watching>(&seen));
      std::unordered_map<const c10::TensorImpl*, uint32_t> index;
      for (const at::Tensor& parameter : chain->parameters()) {
        index.emplace(parameter.unsafeGetTensorImpl(), static_cast<uint32_t>(index.size()));
      }
      for (int iteration = 1; iteration <= 3; ++iteration) {
        seen.clear();
        chain->forward(at::ones({2, widths[0]}).mul(1e-9)).sum().backward();
        json found = json::array();
        for (const auto& [bytes, parameters] : seen) {
          std::vector<uint32_t> indices;
          for (const c10::TensorImpl* parameter : parameters) {
            indices.push_back(index.at(parameter));
          }
          found.push_back({bytes, indices});
        }
        EXPECT_EQ(found, run["it" + std::to_string(iteration)]["buckets"])
            << kwargs.dump() << " iteration " << iteration;
        for (at::Tensor& parameter : chain->parameters()) {
          parameter.mutable_grad().reset();
        }
      }
    }
  });
}

// The torch-free model compared with c10d's own function, on random parameters of two dtypes.
TEST(BucketsTest, TheModelAssignsAsC10dDoes) {
  std::mt19937 random(7);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int round = 0; round < 300; ++round) {
    std::vector<at::Tensor> tensors;
    std::vector<schedule::Gradient> gradients;
    for (int64_t n = pick(1, 40); n > 0; --n) {
      const bool half = round % 2 == 1 && pick(0, 2) == 0;
      tensors.push_back(
          at::zeros({pick(1, 500)}, at::TensorOptions(half ? at::kBFloat16 : at::kFloat)));
      gradients.push_back(
          {static_cast<Bytes>(tensors.back().nbytes()), half ? DType::kBF16 : DType::kF32});
    }
    std::vector<size_t> limits;
    std::vector<Bytes> model_limits;
    for (int64_t n = pick(1, 3); n > 0; --n) {
      model_limits.push_back(pick(1, 6000));
      limits.push_back(static_cast<size_t>(model_limits.back()));
    }
    std::vector<int64_t> order;
    std::vector<uint32_t> model_order;
    if (round % 3 == 0) {  // as in a rebuild: tensors in the order of their gradients
      for (uint32_t i = 0; i < tensors.size(); ++i) {
        model_order.push_back(i);
      }
      std::shuffle(model_order.begin(), model_order.end(), random);
      order.assign(model_order.begin(), model_order.end());
    }
    std::vector<at::Tensor> in_order;
    for (size_t i = 0; i < tensors.size(); ++i) {
      in_order.push_back(tensors[order.empty() ? i : static_cast<size_t>(order[i])]);
    }
    const auto [expected, unused] =
        c10d::compute_bucket_assignment_by_size(in_order, limits, {}, order);
    std::vector<std::vector<size_t>> found;
    for (const schedule::Bucket& bucket :
         schedule::assign_buckets(gradients, model_limits, model_order)) {
      found.emplace_back(bucket.gradients.begin(), bucket.gradients.end());
    }
    EXPECT_EQ(found, expected) << "round " << round;
  }
}

class Collected final : public NullRecorder {
 public:
  void collective(const CollectiveRecord& record) override {
    const std::lock_guard lock(mutex_);
    ++counts_[std::string(name_of(record.kind))];
  }
  int take(const std::string& kind) {
    const std::lock_guard lock(mutex_);
    return std::exchange(counts_[kind], 0);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, int> counts_;
};

// bn4x256 in ddp_buckets.json: one broadcast of buffers per forward and dtype, two more at the
// rebuild.
TEST(ReplicateTest, CollectivesAreRecordedAndAsManyAsDdps) {
  run_ranks(2, [&](dist::World& world) {
    Collected recorded;
    world.set_recorder(&recorded);
    {
      Net net(world.rank());
      const auto state = replicate(net.ptr(), options(world));
      for (int i = 1; i <= 3; ++i) {
        net->forward(input(world.rank(), i)).sum().backward();
        if (i == 1) {
          recorded.take("broadcast");  // initial values
        } else {
          EXPECT_EQ(recorded.take("broadcast"), 1 + (i == 2 ? 2 : 0)) << i;
        }
        EXPECT_EQ(recorded.take("all_reduce"), 1) << i;
        step(*net);
      }
      state->set_requires_gradient_sync(false);
      net->forward(input(world.rank(), 4)).sum().backward();
      EXPECT_EQ(recorded.take("all_reduce"), 0);
    }
    world.set_recorder(nullptr);
  });
}

}  // namespace
}  // namespace shardlens::replicate
