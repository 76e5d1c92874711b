// `shardlens capture` as a user runs it, with real workers.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include "profiler/record/host/rank_now.h"
#include "profiler/trace/kineto/kineto_reader.h"
#include "profiler/trace/spool/spool_format.h"

namespace shardlens::cli {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::string slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

// A run of `shardlens capture` in the background.
class Capture {
 public:
  Capture(const fs::path& folder, std::vector<std::string> arguments)
      : messages_(folder / "stderr") {
    arguments.insert(arguments.begin(), {std::string(SHARDLENS_BIN_DIR) + "/shardlens", "capture"});
    std::vector<char*> argv;
    for (std::string& argument : arguments) {
      argv.push_back(argument.data());
    }
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      const int fd = ::open(messages_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
      ::dup2(fd, STDERR_FILENO);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
  }
  ~Capture() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  // The exit code, or -1 after a minute.
  int wait() {
    for (int i = 0; i < 6000; ++i) {
      int status = 0;
      if (::waitpid(pid_, &status, WNOHANG) == pid_) {
        pid_ = -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return -1;
  }
  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] std::string messages() const { return slurp(messages_); }
  // Process ids of the workers, by rank.
  [[nodiscard]] std::vector<pid_t> workers() const {
    std::vector<std::pair<int, pid_t>> found;
    std::istringstream children(
        slurp("/proc/" + std::to_string(pid_) + "/task/" + std::to_string(pid_) + "/children"));
    for (pid_t child = 0; children >> child;) {
      const std::string environment = slurp("/proc/" + std::to_string(child) + "/environ");
      const size_t at = environment.find(std::string("\0RANK=", 6));
      if (environment.starts_with("RANK=") || at != std::string::npos) {
        found.emplace_back(
            std::atoi(environment.c_str() + (environment.starts_with("RANK=") ? 5 : at + 6)),
            child);
      }
    }
    std::sort(found.begin(), found.end());
    std::vector<pid_t> pids;
    for (const auto& [rank, child] : found) {
      pids.push_back(child);
    }
    return pids;
  }

 private:
  fs::path messages_;
  pid_t pid_ = -1;
};

class CaptureEngineTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "shardlens-capture-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  [[nodiscard]] fs::path out() const { return folder_ / "out"; }
  std::vector<std::string> flags(std::vector<std::string> more) const {
    std::vector<std::string> all{
        "--model", kData + "/llama-tiny", "--tokens", kData + "/tokens.u16.bin", "--out", out()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  // Waits until the rank has reached that step; false after a minute.
  bool trained(int rank, int64_t steps) const {
    for (int i = 0; i < 6000; ++i) {
      const auto now = record::read_rank_now(record::now_path(out(), rank));
      if (now && now->step >= steps) {
        return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  static bool alive(pid_t pid) { return ::kill(pid, 0) == 0; }

  const std::string kData = SHARDLENS_TEST_DATA;
  fs::path folder_;
};

TEST_F(CaptureEngineTest, WritesWhatTheManualPromises) {
  Capture capture(folder_, flags({"--steps", "4", "--warmup", "1", "--seq", "32"}));
  ASSERT_EQ(capture.wait(), 0) << capture.messages();
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(out())) {
    names.push_back(entry.path().filename());
  }
  EXPECT_THAT(names,
              testing::UnorderedElementsAre(".shardlens-capture", "config.json", "metrics.jsonl",
                                            "plan.json", "workload.json", "run.json",
                                            "rank0.pt.trace.json.gz", "rank1.pt.trace.json.gz"));
  const auto run = nlohmann::json::parse(slurp(out() / "run.json"));
  EXPECT_EQ(run.at("options").at("steps"), 4);
  EXPECT_EQ(run.at("options").at("world_size"), 2);
  EXPECT_THAT(
      run.at("versions").at("torch").get<std::string>(),
      testing::MatchesRegex("2\\.[0-9]+\\.[0-9]+.*"));  // of any torch: scripts/engine_torch
  const std::string metrics = slurp(out() / "metrics.jsonl");
  EXPECT_EQ(std::count(metrics.begin(), metrics.end(), '\n'), 4);
}

TEST_F(CaptureEngineTest, NamesAKilledRankAndItsLastActionAndKeepsTheSpools) {
  Capture capture(folder_, flags({"--steps", "100000"}));
  // Rank 0 may be behind rank 1, and is ended too.
  ASSERT_TRUE(trained(0, 4) && trained(1, 4)) << capture.messages();
  const std::vector<pid_t> workers = capture.workers();
  ASSERT_EQ(workers.size(), 2U);
  const auto start = std::chrono::steady_clock::now();
  ::kill(workers[1], SIGKILL);
  EXPECT_EQ(capture.wait(), 4);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  EXPECT_THAT(capture.messages(), HasSubstr("rank 1 was killed by signal 9"));
  EXPECT_THAT(
      capture.messages(),
      testing::ContainsRegex("it was (at|after) step [0-9]+, hook [a-z_]+ .*action [0-9]+"));
  EXPECT_THAT(capture.messages(), HasSubstr("rank1.spool"));
  EXPECT_FALSE(alive(workers[0]) || alive(workers[1]));
  for (const int rank : {0, 1}) {
    const trace::Spool spool = trace::read_spool(record::spool_path(out(), rank));
    EXPECT_FALSE(spool.ended);
    EXPECT_EQ(spool.damaged, 0);
    const auto ended = std::count_if(
        spool.records.begin(), spool.records.end(),
        [](const trace::SpoolRecord& record) { return record.type == trace::SpoolType::kStepEnd; });
    EXPECT_GE(ended, 3) << "rank " << rank;
  }
}

// Rank 1 is stopped until rank 0 waits for it in a bucket's all-reduce; then rank 1 is killed.
TEST_F(CaptureEngineTest, RankKilledInsideAnAllReduceOfReplicateEndsTheRun) {
  Capture capture(folder_, flags({"--strategy", "replicate", "--steps", "100000"}));
  ASSERT_TRUE(trained(1, 3)) << capture.messages();
  const std::vector<pid_t> workers = capture.workers();
  ASSERT_EQ(workers.size(), 2U);
  bool inside = false;
  for (int attempt = 0; attempt < 100 && !inside; ++attempt) {
    ::kill(workers[1], SIGSTOP);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const auto now = record::read_rank_now(record::now_path(out(), 0));
    inside = now && now->waits_for == schedule::Op::kAllReduce;
    if (!inside) {  // rank 0 waits for something else, for example the loss
      ::kill(workers[1], SIGCONT);
    }
  }
  ASSERT_TRUE(inside);
  const auto start = std::chrono::steady_clock::now();
  ::kill(workers[1], SIGKILL);
  EXPECT_EQ(capture.wait(), 4);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  EXPECT_THAT(capture.messages(), HasSubstr("rank 1 was killed by signal 9"));
  EXPECT_FALSE(alive(workers[0]) || alive(workers[1]));
  EXPECT_TRUE(fs::exists(record::spool_path(out(), 0)));
}

// Each signal to `capture` requests the recording of the next two steps.
TEST_F(CaptureEngineTest, RecordsTheStepsAfterASignal) {
  Capture capture(folder_, flags({"--steps", "200", "--on-signal", "2"}));
  ASSERT_TRUE(trained(1, 20)) << capture.messages();
  ::kill(capture.pid(), SIGUSR1);
  ASSERT_TRUE(trained(1, 60)) << capture.messages();
  ::kill(capture.pid(), SIGUSR1);
  EXPECT_EQ(capture.wait(), 0) << capture.messages();
  for (const int rank : {0, 1}) {
    const trace::Trace trace =
        trace::read_kineto(out() / ("rank" + std::to_string(rank) + ".pt.trace.json.gz"));
    std::vector<int64_t> steps;
    for (const trace::Event& event : trace.events) {
      if (trace.name(event).starts_with("ProfilerStep#")) {
        steps.push_back(std::stoll(std::string(trace.name(event).substr(13))));
      }
    }
    ASSERT_EQ(steps.size(), 4U) << "rank " << rank;
    EXPECT_GE(steps[0], 20);
    EXPECT_EQ(steps[1], steps[0] + 1);
    EXPECT_GE(steps[2], 60);
    EXPECT_EQ(steps[3], steps[2] + 1);
  }
}

TEST_F(CaptureEngineTest, EndsOnInterruptWithAReadableTrace) {
  Capture capture(folder_, flags({"--steps", "100000"}));
  ASSERT_TRUE(trained(0, 3)) << capture.messages();
  const std::vector<pid_t> workers = capture.workers();
  const auto start = std::chrono::steady_clock::now();
  ::kill(capture.pid(), SIGINT);
  EXPECT_EQ(capture.wait(), 128 + SIGINT);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  EXPECT_THAT(capture.messages(), HasSubstr("interrupted"));
  EXPECT_THAT(capture.messages(), HasSubstr("recorded until then: "));
  for (const pid_t worker : workers) {
    EXPECT_FALSE(alive(worker));
  }
  for (const int rank : {0, 1}) {
    const bool trace = fs::exists(out() / ("rank" + std::to_string(rank) + ".pt.trace.json.gz"));
    EXPECT_TRUE(trace || fs::exists(record::spool_path(out(), rank))) << rank;
  }
}

TEST_F(CaptureEngineTest, WorkersDieWithTheirParent) {
  Capture capture(folder_, flags({"--steps", "100000"}));
  ASSERT_TRUE(trained(0, 1)) << capture.messages();
  const std::vector<pid_t> workers = capture.workers();
  ASSERT_EQ(workers.size(), 2U);
  ::kill(capture.pid(), SIGKILL);
  (void)capture.wait();
  const auto running = [&] {
    return std::any_of(workers.begin(), workers.end(), [](pid_t pid) {
      return ::access(("/proc/" + std::to_string(pid) + "/exe").c_str(), R_OK) == 0;
    });
  };
  for (int i = 0; i < 1000 && running(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_FALSE(running());
}

TEST_F(CaptureEngineTest, RunsOneRankOfAnEmulatedWorld) {
  Capture capture(folder_, flags({"--steps", "2", "--backend", "emulated", "--world-size", "8",
                                  "--rank", "3", "--hardware", "ab:0:inf"}));
  ASSERT_EQ(capture.wait(), 0) << capture.messages();
  EXPECT_TRUE(fs::exists(out() / "rank3.pt.trace.json.gz"));
  EXPECT_THAT(slurp(out() / "metrics.jsonl"), HasSubstr("\"numerics\": \"emulated\""));
}

// As PyTorch's scaler does (tests/data/grad_scaler.json): a step whose gradients overflow is
// skipped and halves the scale; several good steps in a row double it.
TEST_F(CaptureEngineTest, Fp16SkipsStepsThatOverflowAndScalesTheLoss) {
  const auto run = [&](const std::string& scale) {
    Capture capture(folder_, flags({"--precision", "fp16", "--loss-scale", scale,
                                    "--loss-scale-interval", "2", "--steps", "4", "--seq", "16"}));
    EXPECT_EQ(capture.wait(), 0) << capture.messages();
    std::vector<nlohmann::json> lines;
    std::ifstream in(fs::path(out()) / "metrics.jsonl");
    for (std::string line; std::getline(in, line);) {
      lines.push_back(nlohmann::json::parse(line));
    }
    return lines;
  };
  const auto overflowing = run("1e20");
  ASSERT_EQ(overflowing.size(), 4U);
  for (size_t step = 0; step < 4; ++step) {
    EXPECT_TRUE(overflowing[step]["skipped"]);
    EXPECT_TRUE(overflowing[step]["grad_norm"].is_null());
    EXPECT_FLOAT_EQ(overflowing[step]["loss_scale"].get<float>(),
                    1e20F / static_cast<float>(1 << step));
  }
  const auto good = run("1024");
  ASSERT_EQ(good.size(), 4U);
  for (size_t step = 0; step < 4; ++step) {
    EXPECT_FALSE(good[step]["skipped"]);
    EXPECT_EQ(good[step]["loss_scale"], step < 2 ? 1024 : 2048);
  }
  EXPECT_LT(good[3]["loss"], good[0]["loss"]);
}

TEST_F(CaptureEngineTest, SaysOnceWhatIsWrongWithACheckpoint) {
  const fs::path model = folder_ / "model";
  fs::create_directories(model);
  fs::copy(kData + "/llama-tiny/config.json", model);
  const std::string whole = slurp(kData + "/llama-tiny/model.safetensors");
  std::ofstream(model / "model.safetensors", std::ios::binary) << whole.substr(0, whole.size() / 2);
  Capture capture(folder_, {"--model", model, "--tokens", kData + "/tokens.u16.bin", "--out", out(),
                            "--steps", "2"});
  EXPECT_EQ(capture.wait(), 3);
  const std::string messages = capture.messages();
  const size_t first = messages.find("model.safetensors");
  ASSERT_NE(first, std::string::npos) << messages;
  EXPECT_EQ(messages.find("model.safetensors", messages.find('\n', first)), std::string::npos)
      << messages;
  EXPECT_FALSE(fs::exists(record::spool_path(out(), 0)))
      << "a run that never trained must not record anything";
}

}  // namespace
}  // namespace shardlens::cli
