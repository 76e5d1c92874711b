#include "profiler/trace/run.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <zstd.h>

#include "core/base/error.h"
#include "profiler/trace/filter.h"
#include "profiler/trace/kineto/kineto_writer.h"

namespace shardlens::trace {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

Trace trace_of_rank(std::optional<int64_t> rank) {
  Trace trace;
  trace.metadata.rank = rank;
  trace.metadata.world_size = 2;
  const uint32_t main = trace.track(1, 1);
  trace.add_complete(Category::kUserAnnotation, "ProfilerStep#1", main, 0, 100);
  trace.add_complete(Category::kUserAnnotation, "ProfilerStep#2", main, 100, 200);
  trace.add_complete(Category::kCpuOp, "aten::mm", main, 10, 20);
  trace.add_complete(Category::kCpuOp, "aten::mul", main, 110, 120);
  return trace;
}

class RunTest : public testing::Test {
 protected:
  RunTest() {
    std::string name = (fs::temp_directory_path() / "shardlens-run-XXXXXX").string();
    directory_ = mkdtemp(name.data());
  }
  ~RunTest() override { fs::remove_all(directory_); }
  void write(const std::string& name, const std::string& text) {
    std::ofstream(directory_ / name) << text;
  }
  static void write_zstd(const fs::path& plain, const fs::path& path) {
    std::ifstream in(plain, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    std::string out(ZSTD_compressBound(text.size()), '\0');
    out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
    std::ofstream(path, std::ios::binary) << out;
  }
  std::string message(const fs::path& path) {
    try {
      (void)trace::Run::open(path);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  fs::path directory_;
};

TEST_F(RunTest, ARankWithoutATraceIsNamed) {
  const auto problems = [this](const fs::path& path) {
    std::string out;
    for (const Diagnostic& each : trace::Run::open(path).diagnostics) {
      out += each.message + "\n";
    }
    return out;
  };
  for (const int64_t rank : {0, 2}) {
    write_kineto(trace_of_rank(rank),
                 directory_ / ("rank" + std::to_string(rank) + ".pt.trace.json.gz"));
  }
  const std::string lacks = "2 of 4 ranks have no trace here: rank 1, 3";
  write("run.json", R"({"options": {"backend": "gloo", "nproc": 4}})");
  EXPECT_THAT(problems(directory_), HasSubstr(lacks));
  EXPECT_EQ(problems(directory_ / "rank0.pt.trace.json.gz"), "");  // one rank was asked for
  write("run.json", R"({"world_size": 4})");                       // of shardlens.record
  EXPECT_THAT(problems(directory_), HasSubstr(lacks));
  for (const char* without :
       {R"({"options": {"backend": "gloo", "nproc": 2}})",
        R"({"options": {"backend": "emulated", "nproc": 1, "world_size": 8}})",
        R"({"options": {"nproc": "four"}})", R"({"world_size": -1})", "{}"}) {
    write("run.json", without);
    EXPECT_EQ(problems(directory_), "") << without;
  }
}

TEST_F(RunTest, ADirectoryIsItsRanksInOrderAndWhatLiesBeside) {
  for (const int64_t rank : {1, 0}) {
    write_kineto(trace_of_rank(rank),
                 directory_ / ("rank" + std::to_string(rank) + ".pt.trace.json.gz"));
  }
  write("metrics.jsonl",
        "{\"step\": 0, \"loss\": 2.5, \"step_ms\": 12}\n{\"step\": 1, \"loss\": null}\nnonsense\n");
  write("run.json", "{\"command\": [\"shardlens\"]}");
  const trace::Run run = trace::Run::open(directory_);
  ASSERT_EQ(run.traces.size(), 2U);
  EXPECT_EQ(run.traces[0].metadata.rank, 0);
  EXPECT_EQ(run.traces[1].metadata.rank, 1);
  ASSERT_EQ(run.metrics.size(), 2U);
  EXPECT_EQ(run.metrics[0].loss, 2.5);
  EXPECT_EQ(run.metrics[0].step_ms, 12);
  EXPECT_EQ(run.metrics[1].loss, std::nullopt);
  EXPECT_THAT(run.environment, HasSubstr("shardlens"));
  ASSERT_EQ(run.diagnostics.size(), 1U);
  EXPECT_THAT(run.diagnostics[0].message, HasSubstr("not metrics of a step"));
}

TEST_F(RunTest, SaysWhatIsWrongWithAPath) {
  EXPECT_THAT(message(directory_), HasSubstr("contains no trace"));
  EXPECT_THAT(message(directory_ / "none.json"), HasSubstr("no such file"));
  write("rank0.spool", "short");
  EXPECT_THAT(message(directory_), HasSubstr("rank0.spool"));
}

Trace long_trace(int64_t rank) {
  Trace trace = trace_of_rank(rank);
  for (int i = 0; i < 60'000; ++i) {
    trace.add_complete(Category::kCpuOp, "aten::addmm", 0, 10 * i, 10 * i + 1 + i * 7919 % 9);
  }
  return trace;
}

TEST_F(RunTest, ProgressCountsFilesAsTheyLieOnDisk) {
  write_kineto(long_trace(0), directory_ / "rank0.pt.trace.json.gz");
  write_kineto(long_trace(1), directory_ / "rank1.pt.trace.json.gz");
  write_kineto(long_trace(2), directory_ / "rank2.pt.trace.json");
  uint64_t size = 0;
  for (const auto& file : fs::directory_iterator(directory_)) {
    size += file.file_size();
  }
  Progress progress;
  ReadOptions options;
  options.progress = &progress;
  EXPECT_EQ(trace::Run::open(directory_, options).traces.size(), 3U);
  EXPECT_EQ(progress.total, size);
  EXPECT_EQ(progress.bytes, size);
}

TEST_F(RunTest, ReadingEndsWhereItIsStopped) {
  for (const char* name : {"rank0.json", "rank0.json.gz", "rank0.json.zst"}) {
    const fs::path path = directory_ / name;
    if (path.extension() == ".zst") {
      write_zstd(directory_ / "rank0.json", path);
    } else {
      write_kineto(long_trace(0), path);
    }
    Progress progress;
    progress.stop = true;
    ReadOptions options;
    options.progress = &progress;
    EXPECT_THROW((void)trace::Run::open(path, options), RuntimeFault) << name;
    EXPECT_LT(progress.bytes, fs::file_size(path)) << name;
  }
}

TEST_F(RunTest, TwoTracesOfOneRankAreRefused) {
  write_kineto(trace_of_rank(0), directory_ / "a.json");
  write_kineto(trace_of_rank(0), directory_ / "b.json");
  EXPECT_THAT(message(directory_), HasSubstr("second trace of rank 0, in addition to "));
}

TEST_F(RunTest, TracesWithoutARankAreNumbered) {
  std::vector<Trace> traces;
  traces.push_back(trace_of_rank(0));
  traces.push_back(trace_of_rank(std::nullopt));
  const trace::Run run = trace::Run::of(std::move(traces));
  EXPECT_EQ(run.traces[1].metadata.rank, 1);
}

TEST_F(RunTest, APlanThatCannotBeReadIsADiagnostic) {
  write_kineto(trace_of_rank(0), directory_ / "rank0.json");
  write("plan.json", "{}");
  write("workload.json", "{}");
  const trace::Run run = trace::Run::open(directory_);
  EXPECT_FALSE(run.planned.has_value());
  ASSERT_EQ(run.diagnostics.size(), 1U);
  EXPECT_THAT(run.diagnostics[0].message, HasSubstr("planned order is not known"));
}

TEST_F(RunTest, SettingsInRunJsonThatDoNotFitAreADiagnostic) {
  const fs::path capture = SHARDLENS_TEST_DATA "/../../traces/llama-emulated8";
  write_kineto(trace_of_rank(0), directory_ / "rank0.json");
  for (const char* name : {"plan.json", "workload.json", "config.json"}) {
    fs::copy_file(capture / name, directory_ / name);
  }
  const auto problem = [&](const std::string& options) {
    write("run.json", "{\"options\": {" + options + "}}");
    return trace::Run::open(directory_).plan_problem;
  };
  EXPECT_EQ(problem(R"("accumulate": 2, "clip": null)"), "");
  EXPECT_THAT(problem(R"("accumulate": 1e308)"), HasSubstr("#/accumulate: expected an integer"));
  EXPECT_THAT(problem(R"("accumulate": 1.5)"), HasSubstr("#/accumulate: expected an integer"));
  EXPECT_THAT(problem(R"("accumulate": 0)"), HasSubstr("expected 1 to 10000"));
  EXPECT_THAT(problem(R"("no_sync": 1)"), HasSubstr("#/no_sync: expected true or false"));
  EXPECT_THAT(problem(R"("optimizer": "sgd", "momentum": [])"),
              HasSubstr("#/momentum: expected a number"));
}

TEST(FilterTest, KeepsAStepAndWhatItLaunched) {
  Trace trace = trace_of_rank(0);
  const uint32_t main = trace.track(1, 1);
  const uint32_t launch =
      trace.add_complete(Category::kCudaRuntime, "cudaLaunchKernel", main, 150, 151);
  const uint32_t kernel =
      trace.add_complete(Category::kKernel, "late", trace.track(0, 7), 500, 600);
  const uint32_t other =
      trace.add_complete(Category::kKernel, "of step 1", trace.track(0, 7), 150, 160);
  trace.events[launch].correlation = trace.events[kernel].correlation = 5;
  trace.events[other].correlation = 4;
  apply({.steps = std::pair<int64_t, int64_t>{2, 3}, .categories = {}}, trace);
  std::vector<std::string> names;
  for (const Event& event : trace.events) {
    names.emplace_back(trace.name(event));
  }
  EXPECT_THAT(names,
              testing::ElementsAre("ProfilerStep#2", "aten::mul", "cudaLaunchKernel", "late"));
  EXPECT_THROW(apply({.steps = std::pair<int64_t, int64_t>{7, 9}, .categories = {}}, trace),
               InputError);
}

TEST(FilterTest, KeepsCategoriesAndTheMarksOfSteps) {
  Trace trace = trace_of_rank(0);
  apply({.steps = std::nullopt, .categories = {"kernel"}}, trace);
  EXPECT_EQ(trace.events.size(), 2U);
  trace = trace_of_rank(0);
  apply({.steps = std::nullopt, .categories = {"cpu_op"}}, trace);
  EXPECT_EQ(trace.events.size(), 4U);
}

}  // namespace
}  // namespace shardlens::trace
