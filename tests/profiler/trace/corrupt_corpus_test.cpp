// Every damaged trace of tests/data/corrupt (tests/tools/corrupt_traces.py) gives the message in
// expected.json, from the reader and from the command line.
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>

#include "core/base/error.h"
#include "profiler/trace/kineto/kineto_reader.h"

namespace shardlens::trace {
namespace {

const std::filesystem::path kCorpus = std::filesystem::path(SHARDLENS_TEST_DATA) / "corrupt";

nlohmann::json expected() {
  std::ifstream in(kCorpus / "expected.json");
  return nlohmann::json::parse(in);
}

int64_t count_named(const Trace& trace, const std::string& part) {
  int64_t count = 0;
  for (const Diagnostic& d : trace.diagnostics) {
    count += d.message.find(part) != std::string::npos ? d.count : 0;
  }
  return count;
}

TEST(CorruptCorpusTest, TheReaderSaysWhatIsWrongAndWhere) {
  const nlohmann::json all = expected();
  ASSERT_GE(all.size(), 40U);
  for (const auto& [name, entry] : all.items()) {
    SCOPED_TRACE(name);
    // Windows of any size give the same result.
    for (const size_t window : {TokenWindow::kWindowBytes, size_t{80}}) {
      std::string message;
      Trace trace;
      try {
        trace = read_kineto(kCorpus / name, {.window_bytes = window});
      } catch (const InputError& error) {
        message = error.what();
      }
      EXPECT_EQ(message.empty() ? 0 : 3, entry.at("code")) << message;
      for (const std::string part : entry.at("says")) {
        if (entry.at("code") == 3) {
          EXPECT_THAT(message, testing::HasSubstr(part));
        } else {
          EXPECT_EQ(count_named(trace, part), entry.at("count"));
        }
      }
      if (entry.contains("events")) {
        EXPECT_EQ(trace.events.size(), entry.at("events"));
      }
    }
  }
}

TEST(CorruptCorpusTest, EveryFileHasItsExpectation) {
  const nlohmann::json all = expected();
  for (const auto& entry : std::filesystem::directory_iterator(kCorpus)) {
    const std::string name = entry.path().filename().string();
    EXPECT_TRUE(name == "expected.json" || all.contains(name)) << name;
  }
}

TEST(CorruptCorpusTest, AnalyzeExitsWithThreeAndTheMessage) {
  const nlohmann::json all = expected();
  for (const auto& [name, entry] : all.items()) {
    if (entry.at("code") != 3) {
      continue;
    }
    SCOPED_TRACE(name);
    const std::string command =
        SHARDLENS_BIN_DIR "/shardlens analyze '" + (kCorpus / name).string() + "' 2>&1 >/dev/null";
    FILE* const pipe = popen(command.c_str(), "r");
    ASSERT_NE(pipe, nullptr);
    std::string message;
    std::array<char, 512> chunk;
    while (const size_t got = fread(chunk.data(), 1, chunk.size(), pipe)) {
      message.append(chunk.data(), got);
    }
    const int status = pclose(pipe);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 3) << message;
    for (const std::string part : entry.at("says")) {
      EXPECT_THAT(message, testing::HasSubstr(part));
    }
  }
}

}  // namespace
}  // namespace shardlens::trace
