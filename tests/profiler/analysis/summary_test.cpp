#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/files/atomic_file.h"
#include "profiler/analysis/recover/recorded_program.h"
#include "profiler/analysis/summary/summary_file.h"
#include "profiler/analysis/summary/summary_merge.h"
#include "profiler/report/analysis_report.h"
#include "profiler/trace/bytes/byte_source.h"
#include "profiler/trace/bytes/compression.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace shardlens::analysis {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using testing::HasSubstr;

const fs::path kTestData = SHARDLENS_TEST_DATA;

// Every directory of recorded traces: of one rank, and of several.
std::vector<fs::path> recorded_runs() {
  std::vector<fs::path> all{fs::path(SHARDLENS_SOURCE_DIR) / "traces/llama-emulated8",
                            kTestData / "recorded_run"};
  for (const auto& entry : fs::directory_iterator(kTestData / "pytorch_traces")) {
    all.push_back(entry.path());
  }
  return all;
}

template <typename F>
std::string message_of(const F& act) {
  return test::message_of<InputError>(act);
}

RankSummary summary_of(const fs::path& trace, const AnalysisOptions& options = {}) {
  return summarize(open_run(std::span(&trace, 1)), options);
}

Analysis merged(const std::vector<fs::path>& files) {
  std::vector<RankAnalysis> ranks;
  Analysis out =
      merge_summaries(files, [&](RankAnalysis&& rank) { ranks.push_back(std::move(rank)); });
  out.ranks = std::move(ranks);
  return out;
}

class SummaryTest : public testing::Test {
 protected:
  fs::path write(const std::string& name, const std::string& bytes) {
    write_file_atomically(folder_.path() / name, bytes);
    return folder_.path() / name;
  }
  // The files of the traces' summaries.
  std::vector<fs::path> summarized(const std::vector<fs::path>& traces,
                                   const AnalysisOptions& options = {}) {
    std::vector<fs::path> files;
    for (const fs::path& trace : traces) {
      const RankSummary summary = summary_of(trace, options);
      files.push_back(
          write(std::to_string(files.size()) + summary_name(summary), to_summary_bytes(summary)));
    }
    return files;
  }
  // A summary of a recorded rank, after `change` of its values.
  fs::path changed(const std::function<void(ordered_json&)>& change) {
    ordered_json json = ordered_json::from_msgpack(inflated());
    change(json);
    std::string bytes;
    ordered_json::to_msgpack(json, bytes);
    return write("changed", trace::gzip(bytes));
  }
  std::string inflated() {
    if (inflated_.empty()) {
      const std::string bytes = to_summary_bytes(summary_of(trace_));
      const auto source = trace::open_source(bytes, "summary");
      inflated_ = trace::read_all(*source);
    }
    return inflated_;
  }

  const fs::path trace_ = trace::trace_paths(kTestData / "pytorch_traces/fsdp2-default").front();
  test::TemporaryDirectory folder_;
  std::string inflated_;
};

TEST_F(SummaryTest, MergeOfSummariesIsTheAnalysisOfAllTraces) {
  const std::vector<fs::path> runs = recorded_runs();
  ASSERT_GE(runs.size(), 15U);
  AnalysisOptions options;
  options.detail = DetailLevel::kAll;
  for (const fs::path& path : runs) {
    const Analysis whole = analyze(open_run(std::span(&path, 1)), options);
    std::vector<fs::path> files = summarized(trace::trace_paths(path));
    std::reverse(files.begin(), files.end());  // their order does not matter
    const Analysis found = merged(files);
    EXPECT_EQ(report::analysis_json(found), report::analysis_json(whole)) << path;
    for (size_t i = 0; i < report::kTables.size(); ++i) {
      const auto by = static_cast<report::By>(i);
      EXPECT_EQ(report::analysis_text(found, {by}), report::analysis_text(whole, {by})) << path;
      EXPECT_EQ(report::analysis_csv(found, by), report::analysis_csv(whole, by)) << path;
    }
  }
}

TEST(FlowsTest, FiguresAreTheSameWithoutThem) {
  std::vector<fs::path> runs = recorded_runs();
  runs.emplace_back(fs::path(SHARDLENS_SOURCE_DIR) / "traces/fsdp2-h200");
  const auto events_of = [](const trace::Run& run) {
    size_t events = 0;
    for (const trace::Trace& each : run.traces) {
      events += each.events.size();
    }
    return events;
  };
  AnalysisOptions options;
  options.detail = DetailLevel::kAll;
  int shorter = 0;
  for (const fs::path& path : runs) {
    const trace::Run whole = open_run(std::span(&path, 1));
    const trace::Run without = open_run(std::span(&path, 1), {.keep_flows = false});
    shorter += events_of(without) < events_of(whole) ? 1 : 0;
    EXPECT_EQ(report::analysis_json(analyze(without, options)),
              report::analysis_json(analyze(whole, options)))
        << path;
  }
  EXPECT_GT(shorter, 0);
}

TEST_F(SummaryTest, ChosenStepsAreThoseOfTheSummaries) {
  const fs::path path = kTestData / "pytorch_traces/fsdp2-default";
  AnalysisOptions options;
  options.steps = StepRange{3, 4};
  options.detail = DetailLevel::kAll;
  const Analysis whole = analyze(open_run(std::span(&path, 1)), options);
  const std::vector<fs::path> traces = trace::trace_paths(path);
  const Analysis found = merged(summarized(traces, options));
  EXPECT_EQ(report::analysis_json(found), report::analysis_json(whole));

  const fs::path other = write("other", to_summary_bytes(summary_of(traces[1])));
  const fs::path chosen = write("chosen", to_summary_bytes(summary_of(traces[0], options)));
  EXPECT_THAT(message_of([&] {
                (void)merged({chosen, other});
              }),
              HasSubstr("other: summarized with all steps, but"));
  options.steps = StepRange{70, 80};
  EXPECT_THAT(message_of([&] { (void)merged(summarized(traces, options)); }), HasSubstr("70"));
}

// Neither file nor trace has a rank: they are numbered as Run::open() numbers traces.
TEST_F(SummaryTest, TracesWithoutARankAreNumberedByTheMerge) {
  std::vector<fs::path> traces;
  for (const char* name : {"a.json", "b.json"}) {
    const std::string events =
        R"({"ph":"X","cat":"kernel","name":"sgemm","pid":0,"tid":7,"ts":10,"dur":5,"args":{"stream":7}})";
    traces.push_back(write(name, R"({"traceEvents":[)" + events + "]}"));
  }
  AnalysisOptions options;
  options.detail = DetailLevel::kAll;
  const Analysis whole = analyze(open_run(traces), options);
  const Analysis found = merged(summarized(traces));
  ASSERT_EQ(found.ranks.size(), 2U);
  EXPECT_EQ(found.ranks[1].rank, 1);
  EXPECT_EQ(report::analysis_json(found), report::analysis_json(whole));
  EXPECT_EQ(summary_name(summary_of(traces[0])), "a.json.summary.msgpack.gz");
}

TEST_F(SummaryTest, TwoSummariesOfOneRankAreRefused) {
  const std::vector<fs::path> files = summarized({trace_, trace_});
  EXPECT_THAT(message_of([&] { (void)merged(files); }), HasSubstr("a second summary of rank 0"));
}

TEST_F(SummaryTest, WhatIsNoSummaryIsRefused) {
  const std::string no_summary = "not a summary of a rank";
  EXPECT_THAT(message_of([&] { (void)read_summary(trace_); }), HasSubstr(no_summary));
  EXPECT_THAT(message_of([&] { (void)read_summary(write("text", "hello")); }),
              HasSubstr(no_summary));
  EXPECT_THAT(message_of([&] { (void)read_summary(write("empty", "")); }),
              HasSubstr("the file is empty"));
  EXPECT_THAT(message_of([&] { (void)read_summary(folder_.path() / "none"); }), HasSubstr("none"));
  EXPECT_THAT(message_of([] { (void)parse_summary("\x81\xa4text", "f"); }), HasSubstr(no_summary));
  EXPECT_THAT(message_of([&] { (void)summary_paths(kTestData / "pytorch_traces"); }),
              HasSubstr("contains no summary"));
  for (const int other : {kSummaryVersion - 1, kSummaryVersion + 1}) {
    const fs::path file = changed([&](ordered_json& json) { json["shardlens_summary"] = other; });
    EXPECT_THAT(message_of([&] { (void)read_summary(file); }),
                HasSubstr(fmt::format("a summary of version {}, but this program reads version {}",
                                      other, kSummaryVersion)));
  }
}

TEST_F(SummaryTest, ACutOrChangedFileIsRefusedOrHasTheSameContent) {
  const std::string bytes = to_summary_bytes(summary_of(trace_));
  for (const size_t size : {size_t{1}, size_t{12}, bytes.size() / 2, bytes.size() - 1}) {
    EXPECT_THROW((void)read_summary(write("cut", bytes.substr(0, size))), InputError) << size;
  }
  // The compressed data before gzip's trailer of 8 bytes ends with bits that no reader looks at,
  // and how many depends on the content. A file with one of these flipped has the content that it
  // had.
  const std::string content = to_summary_bytes(read_summary(write("whole", bytes)));
  const auto refused_or_the_same = [&](size_t at, int bit) {
    std::string other = bytes;
    other[at] = static_cast<char>(other[at] ^ (1 << bit));
    const fs::path file = write("flipped", other);
    try {
      const RankSummary read = read_summary(file);
      EXPECT_EQ(to_summary_bytes(read), content) << "byte " << at << ", bit " << bit;
    } catch (const InputError&) {
    }
  };
  for (size_t at = 20; at < bytes.size(); at += 97)
    refused_or_the_same(at, 4);
  for (size_t at = bytes.size() - 10; at < bytes.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit)
      refused_or_the_same(at, bit);
  }
}

TEST_F(SummaryTest, ValuesThatNoSummaryHasAreRefused) {
  const auto refused = [&](const std::function<void(ordered_json&)>& change) {
    return message_of([&] { (void)read_summary(changed(change)); });
  };
  EXPECT_THAT(refused([](ordered_json& j) { j["summary"].erase("orders"); }),
              HasSubstr("'orders' is missing"));
  EXPECT_THAT(refused([](ordered_json& j) { j["summary"]["unnumbered"] = "many"; }),
              HasSubstr("'unnumbered' is no integer"));
  EXPECT_THAT(refused([](ordered_json& j) { j["summary"]["rank"] = -4; }),
              HasSubstr("a negative rank"));
  EXPECT_THAT(
      refused([](ordered_json& j) { j["summary"]["exposures"]["collective"].back() = 1'000'000; }),
      HasSubstr("exposed collectives out of order"));
  EXPECT_THAT(
      refused([](ordered_json& j) { j["summary"]["collectives"]["rows"]["bytes"].push_back(1); }),
      HasSubstr("'bytes' has another length"));
  EXPECT_THAT(
      refused([](ordered_json& j) { j["summary"]["collectives"]["rows"]["start"][1] = -5; }),
      HasSubstr("collectives out of order"));
  EXPECT_THAT(refused([](ordered_json& j) {
                j["summary"]["collectives"]["rows"]["end"][0] = int64_t{1} << 60;
              }),
              HasSubstr("times further apart"));
  EXPECT_THAT(refused([](ordered_json& j) {
                j["summary"]["collectives"]["rows"]["bytes"][0] = int64_t{1} << 60;
              }),
              HasSubstr("numbers larger than those of any run"));
  EXPECT_THAT(
      refused([](ordered_json& j) { j["summary"]["analysis"]["launch"]["queue_mean"] = INFINITY; }),
      HasSubstr("no finite number"));
  EXPECT_THAT(refused([](ordered_json& j) {
                j["summary"]["diagnostics"] =
                    ordered_json{{{"severity", "fatal"}, {"message", ""}, {"count", 1}}};
              }),
              HasSubstr("an unknown word 'fatal'"));
}

// A count of 4 billion elements, and 100 000 lists within each other.
TEST_F(SummaryTest, HostileSizesNeedNoMemory) {
  const std::string start = inflated().substr(0, inflated().find("summary", 25) + 7);
  EXPECT_THAT(message_of([&] {
                (void)read_summary(write("long", trace::gzip(start + "\xdd\xff\xff\xff\xff")));
              }),
              HasSubstr("the summary is damaged at byte"));
  EXPECT_THAT(
      message_of([&] {
        (void)read_summary(write("deep", trace::gzip(start + std::string(100'000, '\x91'))));
      }),
      HasSubstr("the summary is damaged at byte"));
  EXPECT_THAT(message_of([&] {
                (void)read_summary(
                    write("large", trace::gzip(start + std::string(size_t{40} << 20, '\xc0'))));
              }),
              HasSubstr("more than 32 MiB when inflated"));
}

// What damage leaves readable must not make the merge read or write out of bounds.
TEST_F(SummaryTest, ChangedBytesNeverCrash) {
  const fs::path other =
      write("other", to_summary_bytes(summary_of(trace::trace_paths(trace_.parent_path()).back())));
  std::mt19937 random(7);
  int readable = 0;
  for (int i = 0; i < 200; ++i) {
    std::string bytes = inflated();
    for (int change = 0; change < 1 + i % 3; ++change) {
      bytes[19 + random() % (bytes.size() - 19)] = static_cast<char>(random());
    }
    const fs::path path = write("changed", trace::gzip(bytes));
    try {
      (void)report::analysis_json(merged({path, other}));
      ++readable;
    } catch (const InputError&) {
    }
  }
  EXPECT_GT(readable, 0);
}

}  // namespace
}  // namespace shardlens::analysis
