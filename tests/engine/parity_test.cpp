#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/weights/checkpoint_layout.h"
#include "core/weights/safetensors.h"
#include "tests/core/weights/checkpoint_builder.h"
#include "tests/engine/worker_process.h"
#include "tests/support/case_name.h"

// Worker processes compared with recordings of PyTorch (tests/data/RECORDED.md).
namespace shardlens {
namespace {

using models::testing::TemporaryDirectory;
using nlohmann::json;

const std::filesystem::path kData = SHARDLENS_TEST_DATA;

struct Tolerance {
  double loss = 1e-5, grad_norm = 1e-4, parameter = 1e-5;
};
// bf16 rounds at 2^-8; sums of many roundings differ where kernels add in another order.
constexpr Tolerance kBf16{1e-2, 1e-2, 1e-2};

constexpr const char* kFrozenViews = R"({"version": 1, "views": "frozen"})";

// FSDP1's flat parameters; attention and experts as units of their own, checkpointed; and a mesh
// that replicates.
constexpr const char* kPlans[] = {
    R"({"version": 1, "dialect": "fsdp1", "units": [{"modules": "model.layers.*"}, {"modules": ""}],
        "activation_checkpointing": ["model.layers.*"]})",
    R"({"version": 1, "units": [{"modules": "**.self_attn"}, {"modules": "**.mlp"}, {"modules": ""}],
        "activation_checkpointing": ["**.mlp"]})",
    R"({"version": 1, "mesh": {"replicate": 2, "shard": 1},
        "units": [{"modules": "model.layers.*"}, {"modules": ""}]})"};

struct Case {
  std::string model;
  std::string recorded;  // "<model>.<recorded>.json"
  int world_size = 1;
  std::vector<std::string> flags;
  Tolerance tolerance = {};
  std::string plan = {};  // JSON; empty: the strategy of the flags
};

void PrintTo(const Case& run, std::ostream* out) {
  *out << run.model << "." << run.recorded;
  for (const std::string& flag : run.flags) {
    *out << " " << flag;
  }
  *out << " " << run.plan;
}

struct Outcome {
  std::vector<json> metrics;
  std::map<std::string, std::vector<float>> parameters;
};

// `keep`: where to save the model if the test needs it afterwards.
Outcome train(const Case& run, const std::filesystem::path& keep = {}) {
  const TemporaryDirectory directory;
  const auto save = keep.empty() ? directory.path() / "saved" : keep;
  std::vector<std::string> flags{"--model",       (kData / run.model).string(),
                                 "--tokens",      (kData / "tokens.u16.bin").string(),
                                 "--out",         (directory.path() / "out").string(),
                                 "--save",        save.string(),
                                 "--save-format", "full"};
  flags.insert(flags.end(), run.flags.begin(), run.flags.end());
  if (!run.plan.empty()) {
    std::ofstream(directory.path() / "plan.json") << run.plan;
    flags.insert(flags.end(), {"--plan", (directory.path() / "plan.json").string()});
  }
  std::filesystem::create_directories(directory.path() / "out");
  auto ranks = testing::start_world(run.world_size, directory.path(), flags);
  for (testing::WorkerProcess& rank : ranks) {
    EXPECT_EQ(rank.wait(), 0) << rank.messages();
  }
  Outcome outcome;
  std::ifstream in(directory.path() / "out" / "metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    outcome.metrics.push_back(json::parse(line));
  }
  const auto saved = models::Checkpoint::open(save);
  const plan::ModelConfig config = plan::load_model_config(save);
  for (const plan::Parameter& parameter : plan::module_tree(config).parameters) {
    std::vector<float>& values = outcome.parameters[parameter.fqn];
    values.resize(static_cast<size_t>(parameter.numel));
    models::CheckpointParameter(saved, config, parameter).read(0, values);
  }
  return outcome;
}

class ParityTest : public ::testing::TestWithParam<Case> {};

TEST_P(ParityTest, EqualsWhatPyTorchRecorded) {
  const Case& run = GetParam();
  json expected;
  std::ifstream(kData / (run.model + "." + run.recorded + ".json")) >> expected;
  const Outcome outcome = train(run);
  ASSERT_EQ(outcome.metrics.size(), expected["loss"].size());
  for (size_t step = 0; step < outcome.metrics.size(); ++step) {
    const double loss = expected["loss"][step];
    const double grad_norm = expected["grad_norm"][step];
    EXPECT_NEAR(outcome.metrics[step]["loss"], loss, run.tolerance.loss * loss) << "step " << step;
    EXPECT_NEAR(outcome.metrics[step]["grad_norm"], grad_norm, run.tolerance.grad_norm * grad_norm)
        << "step " << step;
  }
  size_t compared = 0;
  for (const auto& [name, values] : outcome.parameters) {
    double squares = 0;
    for (const float value : values) {
      squares += static_cast<double>(value) * value;
    }
    const double want = expected["param_norm"][name];
    // The key bias has no gradient: AdamW steps on its rounding noise, which bf16 makes larger.
    const bool noise = name.ends_with("c_attn.bias");
    const double tolerance = noise ? 100 * run.tolerance.parameter : run.tolerance.parameter;
    EXPECT_NEAR(std::sqrt(squares), want, tolerance * want) << name;
    ++compared;
  }
  // A tied head is saved once; everything else that was recorded is there.
  const size_t tied = plan::load_model_config(kData / run.model).tie_word_embeddings ? 1 : 0;
  EXPECT_EQ(compared + tied, expected["param_norm"].size());
}

std::vector<Case> recorded_runs() {
  std::vector<Case> runs;
  for (const std::string model : {"llama-tiny", "gpt2-tiny"}) {
    for (const int world_size : {1, 2, 3}) {
      for (const std::string strategy : {"full_shard", "shard_grad_op"}) {
        runs.push_back(
            {model, "fsdp2.w" + std::to_string(world_size), world_size, {"--strategy", strategy}});
      }
    }
    for (const int world_size : {1, 2, 3}) {
      runs.push_back(
          {model, "ddp.w" + std::to_string(world_size), world_size, {"--strategy", "replicate"}});
    }
    const std::string accumulated = "fsdp2.accumulate3.w2";
    runs.push_back({model, accumulated, 2, {"--accumulate", "3"}});
    runs.push_back({model, accumulated, 2, {"--accumulate", "3", "--no-sync"}});
    for (const std::string sync : {"", "--no-sync"}) {
      std::vector<std::string> flags{"--accumulate", "3", "--strategy", "replicate"};
      if (!sync.empty()) {
        flags.push_back(sync);
      }
      runs.push_back({model, "ddp.accumulate3.w2", 2, flags});
    }
    runs.push_back({model, "fsdp2.bf16.w2", 2, {"--precision", "bf16"}, kBf16});
  }
  for (const std::string model : {"llama-tiny", "gpt2-tiny"}) {
    runs.push_back({model, "fsdp2.w2", 2, {}, {}, kFrozenViews});
  }
  for (const std::string model : {"mistral-tiny", "qwen2-tiny", "qwen3-tiny", "gemma2-tiny",
                                  "gemma3-tiny", "mixtral-tiny", "qwen3-moe-tiny"}) {
    for (const int world_size : {2, 3}) {  // models_test trains them on one rank
      runs.push_back({model, "fsdp2.w" + std::to_string(world_size), world_size});
    }
  }
  for (const std::string model : {"gemma3-tiny", "qwen3-moe-tiny"}) {
    runs.push_back({model, "fsdp2.w2", 2, {"--strategy", "shard_grad_op"}});
    runs.push_back({model, "fsdp2.w2", 2, {"--strategy", "replicate"}});
    for (const char* plan : kPlans) {
      runs.push_back({model, "fsdp2.w2", 2, {}, {}, plan});
    }
  }
  runs.push_back({"llama-tiny",
                  "fsdp2.sgd.w2",
                  2,
                  {"--optimizer", "sgd", "--lr", "0.1", "--weight-decay", "0"}});
  runs.push_back({"llama-tiny", "fsdp2.clip.w2", 2, {"--clip", "0.5"}});
  runs.push_back({"llama-tiny", "ddp.clip.w2", 2, {"--clip", "0.5", "--strategy", "replicate"}});
  return runs;
}

INSTANTIATE_TEST_SUITE_P(Recorded,
                         ParityTest,
                         ::testing::ValuesIn(recorded_runs()),
                         [](const auto& run) {
                           return test::case_name(::testing::PrintToString(run.param));
                         });

TEST(RerunTest, SameSeedGivesTheSameBits) {
  const Case run{"llama-tiny", "", 2, {"--steps", "5"}};
  const Outcome first = train(run);
  const Outcome second = train(run);
  EXPECT_EQ(first.parameters, second.parameters);
  for (size_t step = 0; step < first.metrics.size(); ++step) {
    EXPECT_EQ(first.metrics[step]["loss"], second.metrics[step]["loss"]);
    EXPECT_EQ(first.metrics[step]["grad_norm"], second.metrics[step]["grad_norm"]);
  }
}

TEST(RerunTest, FrozenViewsGiveTheSameBits) {
  const std::vector<std::string> flags{"--steps", "5"};
  const Outcome fresh = train({"llama-tiny", "", 2, flags});
  const Outcome frozen = train({"llama-tiny", "", 2, flags, {}, kFrozenViews});
  EXPECT_EQ(fresh.parameters, frozen.parameters);
  for (size_t step = 0; step < fresh.metrics.size(); ++step) {
    EXPECT_EQ(fresh.metrics[step]["loss"], frozen.metrics[step]["loss"]);
  }
}

// Checkpoints in blocks, of blocks and around units, with each combination of the settings below.
TEST(RerunTest, CheckpointsGiveTheSameBits) {
  const std::vector<std::string> flags{"--steps", "2", "--accumulate", "2", "--no-sync"};
  for (const char* held : {R"({})", R"({"mesh": {"shard": 1}})",
                           R"({"units": [{"modules": "**.mlp"}, {"modules": ""}]})",
                           R"({"units": [{"modules": "", "api": "replicate"}]})"}) {
    json plan = json::parse(held);
    plan["version"] = 1;
    SCOPED_TRACE(plan.dump());
    const Outcome plain = train({"llama-tiny", "", 2, flags, {}, plan.dump()});
    plan["activation_checkpointing"] = {"model.layers.*", "lm_head"};
    const Outcome checkpointed = train({"llama-tiny", "", 2, flags, {}, plan.dump()});
    EXPECT_EQ(plain.parameters, checkpointed.parameters);
    for (size_t step = 0; step < plain.metrics.size(); ++step) {
      EXPECT_EQ(plain.metrics[step]["loss"], checkpointed.metrics[step]["loss"]);
    }
  }
}

TEST(RandomWeightsTest, AreTheSameForEveryWorldSize) {
  const TemporaryDirectory directory;
  std::filesystem::copy_file(kData / "gpt2-tiny" / "config.json", directory.path() / "config.json");
  // lr 0 keeps the weights, so what is saved is what was drawn.
  const auto drawn = [&](int world_size, const std::string& seed) {
    return train({directory.path().string(),
                  "",
                  world_size,
                  {"--steps", "1", "--lr", "0", "--seed", seed}})
        .parameters;
  };
  const auto one = drawn(1, "5");
  EXPECT_EQ(one, drawn(3, "5"));
  EXPECT_NE(one, drawn(1, "6"));
}

// Prints transformers' loss for a saved directory, on the batch that the next step would read.
constexpr const char* kNextLoss = R"(
import sys, numpy, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], attn_implementation="sdpa", experts_implementation="eager",
                                             dtype=torch.float32)
data = torch.from_numpy(numpy.fromfile(sys.argv[2], dtype="<u2").astype(numpy.int64))
x = torch.stack([data[i * 64:i * 64 + 65] for i in (10, 11)])
logits = model(input_ids=x[:, :-1]).logits.float()
loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten()).item()
wanted = float(sys.argv[3])
sys.exit(0 if abs(loss - wanted) < 1e-5 * wanted else f"loss {loss}, expected {wanted}")
)";

TEST(SavedModelTest, TransformersLoadsItAndGetsTheSameLoss) {
  const char* python = std::getenv("SHARDLENS_TEST_PYTHON");
  if (python == nullptr) {
    GTEST_SKIP() << "SHARDLENS_TEST_PYTHON is not set";
  }
  for (const std::string model :
       {"llama-tiny", "gpt2-tiny", "gemma3-tiny", "mixtral-tiny", "qwen3-moe-tiny"}) {
    const TemporaryDirectory directory;
    const auto script = models::testing::write(directory.path() / "next_loss.py", kNextLoss);
    const double loss = train({model, "", 1, {"--steps", "6"}}).metrics[5]["loss"];
    const auto saved = directory.path() / "five-steps";
    train({model, "", 1, {"--steps", "5"}}, saved);
    const std::string command = std::string(python) + " " + script.string() + " " + saved.string() +
                                " " + (kData / "tokens.u16.bin").string() + " " + json(loss).dump();
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
  }
}

}  // namespace
}  // namespace shardlens
