#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/weights/checkpoint_builder.h"
#include "tests/engine/worker_process.h"

// Every failure of a run gives one clear message and the right exit code.
namespace shardlens {
namespace {

using models::testing::TemporaryDirectory;
using models::testing::write;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::filesystem::path kData = SHARDLENS_TEST_DATA;

class WorkerFaultsTest : public ::testing::Test {
 protected:
  struct Ended {
    int code = 0;
    std::string messages;
  };

  [[nodiscard]] std::vector<std::string> flags(const std::vector<std::string>& more) const {
    std::vector<std::string> out{"--model",  (kData / "llama-tiny").string(),
                                 "--tokens", (kData / "tokens.u16.bin").string(),
                                 "--out",    (directory_.path() / "out").string()};
    // A flag may not be given twice, so `more` replaces the defaults.
    for (size_t i = 0; i + 1 < more.size(); i += 2) {
      const auto found = std::find(out.begin(), out.end(), more[i]);
      if (found != out.end()) {
        *(found + 1) = more[i + 1];
      } else {
        out.insert(out.end(), {more[i], more[i + 1]});
      }
    }
    return out;
  }
  std::vector<Ended> run(int world_size, const std::vector<std::string>& more) {
    std::filesystem::create_directories(directory_.path() / "out");
    std::vector<Ended> out;
    auto ranks = testing::start_world(world_size, directory_.path(), flags(more));
    for (testing::WorkerProcess& rank : ranks) {
      const int code = rank.wait();
      out.push_back({code, rank.messages()});
    }
    return out;
  }
  static int lines_of(const std::string& text) {
    return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
  }
  // A copy of llama-tiny whose files a test may damage.
  std::filesystem::path model_copy() {
    const auto copy = directory_.path() / "model";
    std::filesystem::copy(kData / "llama-tiny", copy);
    return copy;
  }
  TemporaryDirectory directory_;
};

TEST_F(WorkerFaultsTest, TruncatedCheckpoint) {
  const auto model = model_copy();
  std::filesystem::resize_file(model / "model.safetensors", 100000);
  for (const Ended& rank : run(2, {"--model", model.string()})) {
    EXPECT_EQ(rank.code, 3);
    EXPECT_THAT(rank.messages,
                AllOf(HasSubstr("model.safetensors: byte "), HasSubstr("truncated")));
    EXPECT_EQ(lines_of(rank.messages), 1) << rank.messages;
  }
}

TEST_F(WorkerFaultsTest, HeaderThatClaimsTwoToTheSixty) {
  const auto model = model_copy();
  write(model / "model.safetensors", std::string("\0\0\0\0\0\0\0\x10{}", 10));
  const auto ended = run(1, {"--model", model.string()});
  EXPECT_EQ(ended[0].code, 3);
  EXPECT_THAT(ended[0].messages, HasSubstr("header of 1152921504606846976 bytes"));
}

TEST_F(WorkerFaultsTest, MissingShardOfACheckpoint) {
  const auto model = model_copy();
  std::filesystem::remove(model / "model.safetensors");
  write(model / "model.safetensors.index.json",
        R"({"weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors"}})");
  const auto ended = run(1, {"--model", model.string()});
  EXPECT_EQ(ended[0].code, 3);
  EXPECT_THAT(ended[0].messages, HasSubstr("shard 'model-00001-of-00002.safetensors' is missing"));
}

TEST_F(WorkerFaultsTest, CheckpointOfAnotherShape) {
  const auto model = model_copy();
  std::ifstream in(model / "config.json");
  std::string config{std::istreambuf_iterator<char>(in), {}};
  config.replace(config.find("\"intermediate_size\": 172"), 24, "\"intermediate_size\": 176");
  write(model / "config.json", config);
  const auto ended = run(1, {"--model", model.string()});
  EXPECT_EQ(ended[0].code, 3);
  EXPECT_THAT(ended[0].messages, HasSubstr("tensor 'model.layers.0.mlp.gate_proj.weight' has shape "
                                           "[172, 64], the model's config needs [176, 64]"));
}

TEST_F(WorkerFaultsTest, LossThatIsNotANumberEndsEveryRank) {
  for (const Ended& rank : run(2, {"--lr", "1e30", "--steps", "50"})) {
    EXPECT_EQ(rank.code, 4);
    EXPECT_THAT(rank.messages, AllOf(HasSubstr("step "), HasSubstr(": the loss of rank 0 is ")));
  }
}

TEST_F(WorkerFaultsTest, MoreRanksThanSamples) {
  const auto tokens = write(directory_.path() / "few.bin", std::string(2 * 200, '\1'));
  for (const Ended& rank : run(2, {"--tokens", tokens.string(), "--seq", "150"})) {
    EXPECT_EQ(rank.code, 3);
    EXPECT_THAT(rank.messages, HasSubstr("few.bin"));
  }
}

TEST_F(WorkerFaultsTest, TokenOutsideTheVocabulary) {
  const auto tokens =
      write(directory_.path() / "outside.bin", std::string(2 * 2000, '\1'));  // ids 257
  for (const Ended& rank : run(2, {"--tokens", tokens.string()})) {
    EXPECT_EQ(rank.code, 3);
    EXPECT_THAT(rank.messages,
                HasSubstr("token 0 has id 257, but the model's vocabulary has 256 ids"));
  }
}

TEST_F(WorkerFaultsTest, SequenceLongerThanThePositions) {
  const auto ended = run(1, {"--seq", "512"});
  EXPECT_EQ(ended[0].code, 3);
  EXPECT_THAT(ended[0].messages, AllOf(HasSubstr("512"), HasSubstr("256")));
}

TEST_F(WorkerFaultsTest, NoGpu) {
  const auto ended = run(1, {"--device", "cuda"});
  EXPECT_EQ(ended[0].code, 3);
  EXPECT_THAT(ended[0].messages,
              HasSubstr("--device cuda: the NVIDIA driver of this machine is not loaded"));
}

TEST_F(WorkerFaultsTest, MissingModelAndBadFlag) {
  auto ended = run(1, {"--model", "/nonexistent/model"});
  EXPECT_EQ(ended[0].code, 3);
  EXPECT_THAT(ended[0].messages, HasSubstr("/nonexistent/model"));
  ended = run(1, {"--steps", "many"});
  EXPECT_EQ(ended[0].code, 2);
}

bool wait_for_line(const std::filesystem::path& path) {
  for (int i = 0; i < 400; ++i) {
    std::ifstream in(path);
    std::string line;
    if (std::getline(in, line)) {
      return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return false;
}

TEST_F(WorkerFaultsTest, KilledPeerEndsTheOthersSoonAndKeepsTheirSpool) {
  std::filesystem::create_directories(directory_.path() / "out");
  auto ranks = testing::start_world(2, directory_.path(), flags({"--steps", "1000000"}));
  ASSERT_TRUE(wait_for_line(directory_.path() / "out" / "metrics.jsonl"));
  const auto killed = std::chrono::steady_clock::now();
  ranks[1].send(SIGKILL);
  EXPECT_EQ(ranks[0].wait(), 4);
  EXPECT_LT(std::chrono::steady_clock::now() - killed, std::chrono::seconds(30));
  EXPECT_THAT(ranks[0].messages(), AllOf(HasSubstr("[rank 0] "), HasSubstr("failed")));
  EXPECT_GT(std::filesystem::file_size(directory_.path() / "out" / "rank0.spool"), 0U);
  EXPECT_GT(std::filesystem::file_size(directory_.path() / "out" / "rank1.spool"), 0U);
}

TEST_F(WorkerFaultsTest, InterruptEndsAfterTheStepWithATrace) {
  std::filesystem::create_directories(directory_.path() / "out");
  auto ranks = testing::start_world(1, directory_.path(), flags({"--steps", "1000000"}));
  ASSERT_TRUE(wait_for_line(directory_.path() / "out" / "metrics.jsonl"));
  ranks[0].send(SIGINT);
  EXPECT_EQ(ranks[0].wait(), 4);
  EXPECT_THAT(ranks[0].messages(), HasSubstr("stopped by a signal after"));
  EXPECT_TRUE(std::filesystem::exists(directory_.path() / "out" / "rank0.pt.trace.json.gz"));
}

// Signals reach the ranks of a job in different steps, and here only one of them.
TEST_F(WorkerFaultsTest, AnInterruptOfOneRankEndsAllAfterTheSameStep) {
  std::filesystem::create_directories(directory_.path() / "out");
  auto ranks = testing::start_world(2, directory_.path(), flags({"--steps", "1000000"}));
  ASSERT_TRUE(wait_for_line(directory_.path() / "out" / "metrics.jsonl"));
  ranks[1].send(SIGTERM);
  std::vector<std::string> said;
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(ranks[rank].wait(), 4);
    const std::string messages = ranks[rank].messages();
    const size_t at = messages.find("stopped by a signal after");
    ASSERT_NE(at, std::string::npos) << messages;
    said.push_back(messages.substr(at));
    EXPECT_TRUE(std::filesystem::exists(directory_.path() / "out" /
                                        ("rank" + std::to_string(rank) + ".pt.trace.json.gz")));
  }
  EXPECT_EQ(said[0], said[1]);
}

// A launcher can start ranks with different flags. The norm's all-reduce of one number would then
// meet another all-reduce of one number, and all ranks would train on with wrong gradients.
TEST_F(WorkerFaultsTest, RanksWithDifferentFlagsModelsOrPlansAreRefused) {
  const std::vector<std::vector<std::string>> differences{
      {"--clip", "1"},
      {"--model", (kData / "gpt2-tiny").string()},
      {"--strategy", "shard_grad_op"}};
  std::filesystem::create_directories(directory_.path() / "out");
  for (const auto& different : differences) {
    std::filesystem::remove(directory_.path() / "store");
    std::vector<testing::WorkerProcess> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back(rank, 2, directory_.path() / "store",
                         directory_.path() / ("messages." + std::to_string(rank)),
                         rank == 0 ? flags({}) : flags(different));
    }
    for (testing::WorkerProcess& rank : ranks) {
      EXPECT_EQ(rank.wait(), 4);
      EXPECT_THAT(
          rank.messages(),
          AllOf(HasSubstr("rank 0: shardlens "), HasSubstr("rank 1: shardlens "),
                HasSubstr(" trains from step 0 with default flags, model "), HasSubstr(", plan ")));
    }
    EXPECT_EQ(ranks[0].messages().find("--clip 1") != std::string::npos, different[0] == "--clip");
  }
}

}  // namespace
}  // namespace shardlens
