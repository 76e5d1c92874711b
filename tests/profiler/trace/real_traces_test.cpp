// Traces that PyTorch recorded. They are not part of the repository; without them these tests are
// skipped.
#include <filesystem>
#include <map>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "profiler/trace/bytes/byte_source.h"
#include "profiler/trace/kineto/kineto_reader.h"
#include "profiler/trace/kineto/kineto_writer.h"

namespace shardlens::trace {
namespace {

const std::filesystem::path kTraces = SHARDLENS_OTHER_TRACES;

class RealTracesTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::is_directory(kTraces)) {
      GTEST_SKIP() << "no recorded traces at " << kTraces;
    }
  }
};

TEST_F(RealTracesTest, EveryEventOfEveryFileIsThere) {
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kTraces)) {
    if (!entry.path().string().ends_with(".json.gz")) {
      continue;
    }
    ++files;
    // Counted with another parser, which uses none of the reader's rules except the phases.
    const std::string text = read_all(*open_source(entry.path()));
    const auto json = nlohmann::json::parse(text);
    const auto& events = json.is_array() ? json : json.at("traceEvents");
    std::map<std::string, size_t> expected, seen;
    size_t unread = 0;
    for (const auto& event : events) {
      const std::string phase = event.value("ph", "");
      const bool read =
          phase == "X" || phase == "i" || phase == "s" || phase == "f" || phase == "C";
      unread += read || phase == "M" ? 0 : 1;
      const bool negative =
          phase == "X" && event.contains("dur") && event.at("dur").get<double>() < 0;
      if (read && !negative) {
        ++expected[event.value("name", "")];
      }
    }
    const Trace trace = read_kineto(entry.path());
    for (const Event& event : trace.events) {
      ++seen[std::string(trace.name(event))];
    }
    EXPECT_EQ(seen, expected) << entry.path();
    EXPECT_EQ(unread, 0U) << entry.path();
  }
  EXPECT_GE(files, 10);
}

TEST_F(RealTracesTest, GlooFsdp2IsReadToTheNanosecond) {
  const Trace trace = read_kineto(kTraces / "gloo_fsdp2/fsdp_cpu_rank0.json.gz");
  EXPECT_EQ(trace.metadata.rank, 0);
  EXPECT_EQ(trace.metadata.world_size, 2);
  EXPECT_EQ(trace.metadata.backend, "gloo");
  const Event& first = trace.events.at(0);
  EXPECT_EQ(trace.name(first), "gloo:all_gather");
  // baseTimeNanoseconds 1790857026000000000, ts 4391404951531.684, dur 554.365 in the file.
  EXPECT_EQ(first.start, 1790857026000000000 + 4391404951531684);
  EXPECT_EQ(first.duration, 554365);
}

TEST_F(RealTracesTest, WrittenAgainTheySayTheSame) {
  for (const char* name :
       {"gloo_fsdp2/fsdp_cpu_rank1.json.gz", "third_party/nccl_parser_config/nccl_data.json.gz"}) {
    const Trace trace = read_kineto(kTraces / name, {.keep_args = true});
    const Trace again = parse_kineto(to_kineto_json(trace), "again.json", {.keep_args = true});
    ASSERT_EQ(again.events.size(), trace.events.size());
    for (size_t i = 0; i < trace.events.size(); ++i) {
      const Event &a = trace.events[i], &b = again.events[i];
      ASSERT_EQ(a.start, b.start);
      ASSERT_EQ(a.duration, b.duration);
      ASSERT_EQ(trace.name(a), again.name(b));
      ASSERT_EQ(trace.category(a), again.category(b));
      ASSERT_EQ(a.correlation, b.correlation);
      ASSERT_EQ(trace.args_json(a), again.args_json(b));
    }
  }
}

}  // namespace
}  // namespace shardlens::trace
