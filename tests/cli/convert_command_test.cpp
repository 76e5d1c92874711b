// `shardlens convert` on traces of other tools: which events stay, what is copied unchanged, and
// that other tools can read the output.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>

#include "profiler/trace/bytes/byte_source.h"
#include "profiler/trace/bytes/compression.h"
#include "profiler/trace/kineto/kineto_reader.h"

namespace shardlens {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

// Two steps, each with one operator, its launch, its kernel and the flow arrow between them; the
// first step's kernel runs only during the second step. Ids are step * 10 + …
const std::string kSteps = R"(
  {"ph": "M", "name": "process_name", "ts": 0, "pid": 9, "tid": 0, "args": {"name": "python"}},
  {"ph": "M", "name": "thread_name", "ts": 0, "pid": 9, "tid": 9, "args": {"name": "main"}},
  {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#0", "pid": 9, "tid": 9, "ts": 100.000, "dur": 50},
  {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 9, "tid": 9, "ts": 110.125, "dur": 5, "args": {"External id": 1, "Input Dims": [[2, 3], []], "text": "a\"\\ b"}},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9, "ts": 111, "dur": 2, "args": {"correlation": 10, "cbid": 211}},
  {"ph": "s", "id": 10, "pid": 9, "tid": 9, "ts": 111, "cat": "ac2g", "name": "ac2g"},
  {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 9, "tid": 9, "ts": 150.000, "dur": 60.001},
  {"ph": "X", "cat": "kernel", "name": "gemm<float>", "pid": 0, "tid": 7, "ts": 155.001, "dur": 30.5, "args": {"stream": 7, "device": 0, "correlation": 10, "grid": [1, 2, 3], "est. achieved occupancy %": 18}},
  {"ph": "f", "id": 10, "pid": 0, "tid": 7, "ts": 155.001, "cat": "ac2g", "name": "ac2g", "bp": "e"},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9, "ts": 161, "dur": 2, "args": {"correlation": 20, "cbid": 211}},
  {"ph": "X", "cat": "kernel", "name": "relu", "pid": 0, "tid": 7, "ts": 300, "dur": 3, "args": {"stream": 7, "device": 0, "correlation": 20, "occ": NaN}}
)";

struct Result {
  int code = -1;
  std::string err;
};

class ConvertCommandTest : public testing::Test {
 protected:
  ConvertCommandTest() {
    std::string name = (fs::temp_directory_path() / "shardlens-convert-XXXXXX").string();
    folder_ = mkdtemp(name.data());
    fs::create_directories(folder_ / "in");
  }
  ~ConvertCommandTest() override { fs::remove_all(folder_); }

  fs::path write(const std::string& name, const std::string& bytes) {
    std::ofstream(folder_ / "in" / name, std::ios::binary) << bytes;
    return folder_ / "in" / name;
  }
  static std::string file(const std::string& head) {
    return "{" + head + "\"traceEvents\": [" + kSteps + "]}";
  }

  [[nodiscard]] Result convert(const fs::path& in,
                               const fs::path& out,
                               const std::string& more = "") const {
    const fs::path err = folder_ / "err";
    const std::string command = SHARDLENS_BIN_DIR "/shardlens convert " + in.string() + " --out " +
                                out.string() + " " + more + " 2>" + err.string();
    Result result;
    const int status = std::system(command.c_str());
    result.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    std::ifstream read(err);
    result.err.assign(std::istreambuf_iterator<char>(read), {});
    return result;
  }

  // Parsed by nlohmann::json instead of our own reader.
  static json parsed(const fs::path& path) {
    return json::parse(trace::read_all(*trace::open_source(path)));
  }
  static std::multiset<std::string> names(const json& trace) {
    std::multiset<std::string> names;
    for (const json& event : trace.at("traceEvents")) {
      if (event.at("ph") != "M") {
        names.insert(event.at("name"));
      }
    }
    return names;
  }

  fs::path folder_;
};

TEST_F(ConvertCommandTest, AStepKeepsWhatItLaunched) {
  const fs::path in = write("rank3.json", file(R"("baseTimeNanoseconds": 1000000, )"));
  const fs::path out = folder_ / "out.json";
  const Result result = convert(in, out, "--steps 0:1");
  ASSERT_EQ(result.code, 0) << result.err;
  const json trace = parsed(out);
  EXPECT_EQ(names(trace),
            (std::multiset<std::string>{"ProfilerStep#0", "aten::mm", "cudaLaunchKernel", "ac2g",
                                        "ac2g", "gemm<float>"}));
  EXPECT_EQ(trace.at("distributedInfo").at("rank"), 3);
  EXPECT_EQ(trace.at("baseTimeNanoseconds"), 1000000);
  const trace::Trace second = trace::read_kineto(out);
  EXPECT_EQ(second.events.at(4).start, 1000000 + 155001);
}

TEST_F(ConvertCommandTest, ArgumentsAreWrittenAsTheyWere) {
  const fs::path in = write("rank0.json.gz", trace::gzip(file("")));
  const fs::path out = folder_ / "out.json.gz";
  const Result result = convert(in, out);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("NaN or Infinity"));
  EXPECT_THAT(result.err, HasSubstr("9 events"));
  const json written = parsed(out);
  for (const json& event : written.at("traceEvents")) {
    if (event.at("name") == "gemm<float>") {
      EXPECT_EQ(
          event.at("args"),
          json::parse(
              R"({"stream": 7, "device": 0, "correlation": 10, "grid": [1, 2, 3], "est. achieved occupancy %": 18})"));
      EXPECT_EQ(event.at("tid"), 7);
    } else if (event.at("name") == "aten::mm") {
      EXPECT_EQ(event.at("args").at("text"), "a\"\\ b");
      EXPECT_EQ(event.at("args").at("Input Dims"), json::parse("[[2, 3], []]"));
    } else if (event.at("name") == "relu") {
      EXPECT_TRUE(event.at("args").at("occ").is_null());
    }
  }
}

TEST_F(ConvertCommandTest, EveryDialectOfTimeKeepsItsNanoseconds) {
  const auto starts = [](const fs::path& path) {
    std::multiset<Nanoseconds> found;
    for (const trace::Event& event : trace::read_kineto(path).events) {
      found.insert(event.start);
    }
    return found;
  };
  const std::string epoch =
      R"([{"ph":"X","cat":"Kernel","name":"k","pid":0,"tid":7,"ts":1712195495519689.047,"dur":1.001}])";
  for (const auto& [name, content] :
       {std::pair<std::string, std::string>{"rank0.json", epoch},
        {"rank1.json", file(R"("baseTimeNanoseconds": 1790857026000000000, )")},
        {"rank2.json", file("")}}) {
    const fs::path in = write(name, content), out = folder_ / ("out" + name);
    ASSERT_EQ(convert(in, out).code, 0);
    EXPECT_EQ(starts(out), starts(in)) << name;
  }
  // Times are so small that a reader that stores them as doubles does not round them.
  const json times = parsed(folder_ / "outrank0.json");
  EXPECT_LT(times.at("traceEvents").back().at("ts").get<double>(), 1e13);
}

TEST_F(ConvertCommandTest, CategoriesAndRanksAreChosen) {
  write("rank0.json", file(""));
  write("rank1.json", file(""));
  const fs::path out = folder_ / "out";
  ASSERT_EQ(convert(folder_ / "in", out, "--ranks 1 --categories kernel").code, 0);
  EXPECT_FALSE(fs::exists(out / "rank0.pt.trace.json.gz"));
  EXPECT_EQ(
      names(parsed(out / "rank1.pt.trace.json.gz")),
      (std::multiset<std::string>{"ProfilerStep#0", "ProfilerStep#1", "gemm<float>", "relu"}));
  const Result unknown = convert(folder_ / "in", out, "--categories kernels");
  EXPECT_EQ(unknown.code, 3);
  EXPECT_THAT(unknown.err,
              HasSubstr("'kernels'; it has ac2g, cpu_op, cuda_runtime, kernel, user_annotation"));
  EXPECT_EQ(convert(folder_ / "in", out, "--ranks 4").code, 3);
  EXPECT_EQ(convert(folder_ / "in", out, "--steps 7:9").code, 3);
}

TEST_F(ConvertCommandTest, ADamagedInputLeavesNoOutput) {
  const fs::path in = write("rank0.json", file("").substr(0, 900));
  const Result result = convert(in, folder_ / "out.json");
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(result.err, HasSubstr("at byte 900"));
  EXPECT_FALSE(fs::exists(folder_ / "out.json"));
}

TEST_F(ConvertCommandTest, HolisticTraceAnalysisOpensIt) {
  const char* python = std::getenv("SHARDLENS_TEST_PYTHON");
  if (python == nullptr) {
    GTEST_SKIP() << "SHARDLENS_TEST_PYTHON is not set (scripts/test sets it)";
  }
  write("rank0.json", file(R"("distributedInfo": {"rank": 0, "world_size": 2}, )"));
  write("rank1.json", file(""));  // HTA itself refuses this file, which has no rank
  const fs::path out = folder_ / "out";
  ASSERT_EQ(convert(folder_ / "in", out).code, 0);
  const std::string command = std::string(python) +
                              " " SHARDLENS_SOURCE_DIR "/tests/tools/open_in_hta.py " +
                              out.string() + " >" + (folder_ / "hta").string() + " 2>/dev/null";
  const int status = std::system(command.c_str());
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
    GTEST_SKIP() << "Holistic Trace Analysis is not installed for " << python;
  }
  ASSERT_EQ(status, 0);
  std::ifstream in(folder_ / "hta");
  std::string seen;
  std::getline(in, seen);
  // Per rank: complete events / step marks / collectives; HTA has no rows for flows.
  EXPECT_EQ(seen, "0=7/2/0 1=7/2/0");
}

}  // namespace
}  // namespace shardlens
