// `shardlens check` as a user runs it: exit codes, outputs, messages for what cannot be compared.
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "profiler/trace/kineto/kineto_writer.h"
#include "tests/support/generated_run.h"
#include "tests/support/shardlens_command.h"

namespace shardlens {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::GeneratedRun;
using testing::HasSubstr;

class CheckCommandTest : public ShardlensCommandTest {
 protected:
  // Writes `runs` runs below the directory NAME, each as a directory of its ranks' traces.
  std::string write(const std::string& name, GeneratedRun what, int runs = 3, uint64_t seed = 1) {
    for (int run = 0; run < runs; ++run) {
      what.seed = seed + static_cast<uint64_t>(run);
      const fs::path directory = fs::path(folder_) / name / ("run" + std::to_string(run));
      fs::create_directories(directory);
      for (const trace::Trace& trace : what.run().traces) {
        trace::write_kineto(
            trace, directory / ("rank" + std::to_string(*trace.metadata.rank) + ".pt.trace.json"));
      }
    }
    return folder_ + "/" + name;
  }
  CommandResult check(const std::string& baseline,
                      const std::string& candidate,
                      const std::string& more = "") {
    return run("check --baseline " + baseline + " --candidate " + candidate + " " + more);
  }
};

TEST_F(CheckCommandTest, AnUpdateShowsWhatChangesAndSavesIt) {
  GeneratedRun slow;
  slow.more_compute = 1e6;
  const std::string base = write("base", {}), slower = write("slower", slow, 3, 80);
  const std::string file = folder_ + "/baseline.json";
  const CommandResult first = run("check --candidate " + base + " --update-baseline " + file);
  EXPECT_EQ(first.code, 0);
  EXPECT_EQ(first.out, "");
  EXPECT_THAT(first.err, HasSubstr("saved 3 runs of 1 session in"));
  EXPECT_EQ(check(file, slower).code, 1);
  const CommandResult update = run("check --candidate " + slower + " --update-baseline " + file);
  EXPECT_EQ(update.code, 0);
  EXPECT_THAT(update.out, HasSubstr("regression: step_time rose by"));
  EXPECT_EQ(check(file, slower).code, 0);
}

TEST_F(CheckCommandTest, AnUpdateReplacesNothingButABaseline) {
  const std::string base = write("base", {}, 1);
  const std::string trace = base + "/run0/rank0.pt.trace.json";
  const auto size = fs::file_size(trace);
  const CommandResult refused = run("check --candidate " + base + " --update-baseline " + trace);
  EXPECT_NE(refused.code, 0);
  EXPECT_EQ(fs::file_size(trace), size);
  std::ofstream(folder_ + "/notes.txt") << "mine";
  const CommandResult notes =
      run("check --candidate " + base + " --update-baseline " + folder_ + "/notes.txt");
  EXPECT_EQ(notes.code, 3);
  EXPECT_THAT(notes.err, HasSubstr("is no baseline; --update-baseline replaces only"));
  EXPECT_EQ(run("check --update-baseline " + folder_ + "/b.json").code, 2);
  EXPECT_EQ(check(base, base, "--update-baseline " + folder_ + "/b.json").code, 2);
}

TEST_F(CheckCommandTest, PassRegressionAndInconclusiveHaveTheirExitCodes) {
  const std::string base = write("base", {}), same = write("same", {}, 3, 50);
  GeneratedRun slow;
  slow.more_compute = 1e6;
  const std::string slower = write("slower", slow, 3, 80);
  EXPECT_EQ(check(base, same).code, 0);
  const CommandResult failed = check(base, slower);
  EXPECT_EQ(failed.code, 1);
  EXPECT_THAT(failed.out, HasSubstr("regression: step_time rose by"));
  EXPECT_EQ(check(base + "/run0", same + "/run1").code, 5);
  EXPECT_EQ(check(base + "/run0", same + "/run1", "--inconclusive-is pass").code, 0);
  EXPECT_EQ(check(base + "/run0", same + "/run1", "--inconclusive-is fail").code, 1);
  EXPECT_EQ(check(base, slower, "--metric structure").code, 0);
  EXPECT_EQ(check(base, slower, "--metric step_time:20%").code, 0);
  EXPECT_EQ(check(base, slower, "--metric exposed_comm:10ms --metric step_time:100us").code, 1);
}

TEST_F(CheckCommandTest, JsonHasThePinnedKeys) {
  GeneratedRun late;
  late.not_prefetched = {1};
  const CommandResult result = check(write("base", {}), write("late", late, 3, 50), "--json");
  EXPECT_EQ(result.code, 1);
  const json out = json::parse(result.out);
  EXPECT_EQ(out["schema"], 1);
  EXPECT_EQ(out["verdict"], "regression");
  EXPECT_THAT(out["reason"].get<std::string>(), HasSubstr("structure"));
  EXPECT_EQ(out["structural"][0]["kind"], "prefetch");
  EXPECT_EQ(out["structural"][0]["unit"], "layers.1");
  for (const char* key :
       {"name", "gates", "baseline", "candidate", "change", "ci", "threshold", "verdict"}) {
    EXPECT_TRUE(out["metrics"][0].contains(key)) << key;
  }
  EXPECT_EQ(out["metrics"][0]["name"], "step_time");
  EXPECT_EQ(out["metrics"][1]["name"], "exposed_comm");
  std::map<std::string, double> sums;
  for (const json& row : out["attribution"]) {
    sums[row["metric"]] += row["delta_ns"].get<double>();
  }
  for (const auto& [name, sum] : sums) {
    const json& metric = out["metrics"][name == "step_time" ? 0 : 1];
    EXPECT_NEAR(sum, metric["change_ns"].get<double>(), 1e-3) << name;
  }
}

TEST_F(CheckCommandTest, MarkdownShowsNamesAsTheyAre) {
  GeneratedRun late;
  late.not_prefetched = {1};
  late.layer_name = "![x](http://a/b)`|*\x1b[31m@me #1 GH-1 www.x" + std::string(5000, 'n') + ".";
  GeneratedRun usual;
  usual.layer_name = late.layer_name;
  EXPECT_EQ(check(write("base", usual, 1), write("late", late, 1, 50),
                  "--markdown " + folder_ + "/summary.md")
                .code,
            1);
  const std::string markdown = text(folder_ + "/summary.md");
  EXPECT_THAT(markdown,
              HasSubstr("!&#8203;\\[x\\](http:&#8203;//a/b)\\`\\|\\*\\\\x1b\\[31m@&#8203;me "
                        "#&#8203;1 GH&#8203;-1 www&#8203;.x"));
  EXPECT_THAT(markdown, testing::Not(HasSubstr("\x1b")));
  EXPECT_THAT(markdown, testing::Not(HasSubstr(std::string(2000, 'n'))));
}

TEST_F(CheckCommandTest, WritesJUnitAndMarkdown) {
  GeneratedRun late;
  late.not_prefetched = {1};
  late.layer_name = "<b>&\"{}";
  GeneratedRun usual;
  usual.layer_name = late.layer_name;
  const std::string base = write("base", usual, 1), other = write("late", late, 1, 50);
  EXPECT_EQ(
      check(base, other, "--junit " + folder_ + "/junit.xml --markdown " + folder_ + "/summary.md")
          .code,
      1);
  const std::string junit = text(folder_ + "/junit.xml"), markdown = text(folder_ + "/summary.md");
  EXPECT_THAT(junit, HasSubstr("<testsuites tests=\"3\" failures=\"1\" skipped=\"2\">"));
  EXPECT_THAT(junit, HasSubstr("name=\"structure\""));
  EXPECT_THAT(junit, HasSubstr("&lt;b&gt;&amp;&quot;1"));
  EXPECT_THAT(junit, testing::Not(HasSubstr("<b>")));
  EXPECT_THAT(markdown, HasSubstr("### ❌ shardlens check: regression"));
  EXPECT_THAT(markdown, HasSubstr("| prefetch | &lt;b&gt;"));
  EXPECT_EQ(std::system(("python3 -c 'import xml.dom.minidom,sys; "
                         "xml.dom.minidom.parse(sys.argv[1])' " +
                         folder_ + "/junit.xml")
                            .c_str()),
            0);
}

TEST_F(CheckCommandTest, SavedBaselineServesInPlaceOfItsTraces) {
  const std::string base = write("base", {}), file = folder_ + "/baseline.json";
  GeneratedRun late;
  late.not_prefetched = {1};
  const std::string other = write("late", late, 3, 50);
  EXPECT_EQ(run("check --baseline " + base + " --save-baseline " + file).code, 0);
  const std::regex notes(R"("notes":\[[^\]]*\])");
  const std::string saved = check(file, other, "--json").out;
  EXPECT_THAT(saved, HasSubstr("the saved baseline has one session"));
  EXPECT_EQ(std::regex_replace(saved, notes, ""),
            std::regex_replace(check(base, other, "--json").out, notes, ""));
  EXPECT_EQ(check(file, write("same", {}, 3, 70)).code, 0);
}

TEST_F(CheckCommandTest, WhatCannotBeComparedGetsNoVerdict) {
  const std::string base = write("base", {}, 1);
  const auto refused = [&](const std::string& candidate, int code, const std::string& message) {
    const CommandResult result = check(base, candidate, "--json");
    EXPECT_EQ(result.code, code) << candidate << result.err << result.out;
    EXPECT_THAT(result.err + result.out, HasSubstr(message));
    EXPECT_THAT(result.out, testing::Not(HasSubstr("\"pass\"")));
    EXPECT_THAT(result.out, testing::Not(HasSubstr("\"regression\"")));
  };
  refused(folder_ + "/nothing", 3, "no such file or directory");
  fs::create_directories(folder_ + "/empty");
  refused(folder_ + "/empty", 3, "neither traces nor directories with traces");
  std::ofstream(folder_ + "/zero.json");
  refused(folder_ + "/zero.json", 3, "zero.json");
  std::ofstream(folder_ + "/events.json") << R"({"traceEvents": []})";
  refused(folder_ + "/events.json", 3, "no steps");
  const std::string whole = text(base + "/run0/rank0.pt.trace.json");
  fs::create_directories(folder_ + "/cut");
  std::ofstream(folder_ + "/cut/rank0.json") << whole.substr(0, whole.size() / 2);
  refused(folder_ + "/cut", 3, "rank0.json at byte");
  refused(base + "/run0/rank1.pt.trace.json", 3, "only runs of the same ranks");
  std::ofstream(folder_ + "/old.json") << R"({"shardlens_baseline":7,"runs":[]})";
  refused(folder_ + "/old.json", 3, "version 7");
  GeneratedRun three;
  three.ranks = 3;
  refused(write("three", three, 1), 3, "only runs of the same ranks");
  // One element has no time: the file is read, but that record is lost.
  fs::create_directories(folder_ + "/lost");
  fs::copy(base + "/run0/rank1.pt.trace.json", folder_ + "/lost");
  std::string holed = whole;
  const size_t event = holed.find("\"traceEvents\"");
  holed.insert(holed.find('[', event) + 1, R"({"ph": "X", "name": "x", "pid": 1, "tid": 1},)");
  std::ofstream(folder_ + "/lost/rank0.pt.trace.json") << holed;
  refused(folder_ + "/lost", 5, "[rank 0]");
}

TEST_F(CheckCommandTest, CaptureWithoutAllItsRanksIsNoRun) {
  const std::string base = write("base", {}, 1) + "/run0";
  std::ofstream(base + "/run.json") << R"({"options": {"world_size": 2}})";
  fs::copy(base, folder_ + "/half");
  fs::remove(base + "/rank1.pt.trace.json");
  fs::remove(folder_ + "/half/rank1.pt.trace.json");
  const CommandResult result = check(base, folder_ + "/half");
  EXPECT_EQ(result.code, 5);
  EXPECT_THAT(result.out, HasSubstr("1 of 2 ranks left a trace"));
  EXPECT_EQ(run("check --baseline " + base + " --save-baseline " + folder_ + "/b.json").code, 3);
  EXPECT_FALSE(fs::exists(folder_ + "/b.json"));
}

TEST_F(CheckCommandTest, OnlyTheWantedStepsAreCompared) {
  const std::string base = write("base", {}), same = write("same", {}, 3, 50);
  const CommandResult some = check(base, same, "--steps 5:15 --json");
  EXPECT_EQ(some.code, 0) << some.err;
  EXPECT_EQ(json::parse(some.out)["runs"]["steps"], 10);
  const CommandResult none = check(base, same, "--steps 100:");
  EXPECT_EQ(none.code, 3);
  EXPECT_THAT(none.err, HasSubstr("none of the requested steps, from 100 on, is in the traces"));
  const CommandResult two = run("compare " + base + " " + same + " --steps 5:15 --json");
  EXPECT_EQ(json::parse(two.out)["runs"]["steps"], 10);
}

TEST_F(CheckCommandTest, NamedOperatorsCountAsCommunication) {
  const GeneratedRun what;
  const std::string base = write("base", what, 1);
  const auto metrics = [&](const std::string& more) {
    const json out = json::parse(run("compare " + base + " " + base + " --json" + more).out);
    std::map<std::string, double> values;
    for (const json& metric : out["metrics"]) {
      values[metric["name"]] = metric["baseline"].is_null() ? 0 : metric["baseline"].get<double>();
    }
    return values;
  };
  auto usual = metrics(""), all = metrics(" --comm-regex sgemm");
  // All compute except the optimizer now counts as communication, and all of it is exposed.
  const double expected = usual["exposed_comm"] + usual["compute"] - what.optimizer;
  EXPECT_NEAR(all["comm"], expected, 0.03 * expected);
  EXPECT_NEAR(all["compute"], what.optimizer, 0.03 * what.optimizer);
}

TEST_F(CheckCommandTest, CaptureThatFailsEndsTheCheckWithItsMessage) {
  const CommandResult result =
      run("check --run '--model /nowhere --tokens t' --against '--model /nowhere --tokens t'");
  EXPECT_THAT(result.code, testing::AnyOf(3, 4)) << result.err;  // 4: built without an engine
  EXPECT_THAT(result.err, HasSubstr("a capture failed: "));
  EXPECT_EQ(result.out, "");
}

TEST_F(CheckCommandTest, CompareListsWhatChangedAndSaysWhatIsNoise) {
  GeneratedRun late;
  late.more_exposed = 0.8e6;
  late.layers = 5;
  const std::string base = write("base", {}), other = write("late", late, 3, 50);
  const CommandResult words = run("compare " + base + " " + other);
  EXPECT_EQ(words.code, 0);
  EXPECT_THAT(words.out, HasSubstr("only in B"));
  EXPECT_THAT(words.out, HasSubstr("changed by no more than noise"));
  EXPECT_THAT(words.out, testing::Not(HasSubstr("pass")));
  const json out = json::parse(run("compare " + base + " " + other + " --json").out);
  EXPECT_FALSE(out.contains("verdict"));
  EXPECT_FALSE(out["metrics"][0].contains("verdict"));
  int changed = 0, within = 0, unmatched = 0;
  for (const json& item : out["items"]) {
    if (item["within_noise"].is_null()) {
      EXPECT_EQ(item["unit"], "layers.4") << item;
      EXPECT_TRUE(item["baseline_ns"].is_null());
      ++unmatched;
      continue;
    }
    if (item["unit"] == "" && item["kind"] == "reduce_scatter") {
      EXPECT_EQ(item["within_noise"], false);
      EXPECT_NEAR(item["delta_ns"].get<double>(), 0.8e6, 0.05e6);
    }
    ++(item["within_noise"].get<bool>() ? within : changed);
  }
  // Forward and backward compute, two all-gathers and a reduce-scatter.
  EXPECT_GE(unmatched, 5);
  EXPECT_GT(within, 3 * changed);
  EXPECT_EQ(run("compare " + base + " " + folder_ + "/nothing").code, 3);
}

TEST_F(CheckCommandTest, MemoryGatesByItselfAndAgainstALimit) {
  constexpr Bytes kGib = Bytes{1} << 30;
  GeneratedRun usual;
  usual.memory_kept = kGib;
  usual.memory_peak = 4 * kGib;
  GeneratedRun more = usual;
  more.memory_peak = 5 * kGib;
  const std::string base = write("base", usual, 1), other = write("more", more, 1, 50);
  const CommandResult text_of = check(
      base, other,
      "--metric peak_memory --junit " + folder_ + "/junit.xml --markdown " + folder_ + "/m.md");
  EXPECT_EQ(text_of.code, 1);
  EXPECT_THAT(text_of.out, HasSubstr("regression: the peak memory of rank 0 on cuda:0 is 5.00 GiB, "
                                     "above 4.08 GiB, and 1 more are above theirs\n"));
  EXPECT_THAT(text_of.out,
              HasSubstr("kept between steps 1.00 GiB as before; in addition within the "
                        "step 4.00 GiB, was 3.00 GiB\n"));
  EXPECT_THAT(text(folder_ + "/junit.xml"),
              HasSubstr("<testsuites tests=\"1\" failures=\"1\" skipped=\"0\">"));
  EXPECT_THAT(text(folder_ + "/m.md"),
              HasSubstr("| rank 1, cuda:0 | 4.00 GiB | 5.00 GiB | +1.00 "));
  EXPECT_EQ(check(base, other, "--metric peak_memory:25%").code, 0);
  EXPECT_EQ(check(base, other, "--metric peak_memory:900MiB").code, 1);
  EXPECT_EQ(check(base, other, "--metric structure").code, 0);
  const json out = json::parse(check(base, other, "--metric peak_memory --json").out);
  EXPECT_EQ(out["memory"][1]["candidate_bytes"], 5 * kGib);
  EXPECT_EQ(out["memory"][1]["candidate_kept_bytes"], kGib);
  EXPECT_EQ(out["memory"][1]["allowed_bytes"], 4 * kGib + 4 * kGib / 50);

  const CommandResult alone = run("check --candidate " + other + " --max-peak-memory 6GiB");
  EXPECT_EQ(alone.code, 0);
  EXPECT_THAT(alone.out, HasSubstr("pass: the peak memory of rank 0 on cuda:0 is 5.00 GiB, not "
                                   "above 6.00 GiB\n"));
  EXPECT_EQ(run("check --candidate " + other + " --max-peak-memory 4608MiB").code, 1);
  EXPECT_EQ(check(base, other, "--metric structure --max-peak-memory 4608MiB").code, 1);
  const std::string none = write("none", {}, 1);
  const CommandResult unknown = run("check --candidate " + none + " --max-peak-memory 6GiB");
  EXPECT_EQ(unknown.code, 5);
  EXPECT_THAT(unknown.out, HasSubstr("the candidate has no allocations; record them with"));
  EXPECT_EQ(check(none, other, "--metric peak_memory").code, 5);
}

TEST_F(CheckCommandTest, WrongUseIsSaid) {
  const auto refused = [&](const std::string& arguments, const std::string& message) {
    const CommandResult result = run("check " + arguments);
    EXPECT_EQ(result.code, 2) << arguments;
    EXPECT_THAT(result.err, HasSubstr(message)) << arguments;
    EXPECT_EQ(result.out, "");
  };
  refused("", "--baseline is required");
  refused("--baseline x", "--candidate is required");
  refused("--baseline x --candidate y --metric compute", "this metric cannot be a gate");
  refused("--baseline x --candidate y --metric speed", "expected step_time");
  refused("--baseline x --candidate y --metric step_time:3", "expected a limit such as 3%");
  refused("--baseline x --candidate y --metric step_time:-3%", "expected a limit");
  refused("--baseline x --candidate y --metric peak_memory:3", "limit such as 3% or 500MiB");
  refused("--candidate y --max-peak-memory 80", "has no unit; expected a size such as 80GiB");
  refused("--candidate y --max-peak-memory 80GiB --metric structure", "--baseline is required");
  refused("--baseline x --candidate y --inconclusive-is maybe", "expected pass or fail");
  refused("--run x", "need each other");
  refused("--run x --against y --baseline z", "captures both sides itself");
  refused("--run x --against y --runs 2", "expected 3 or more");
  refused("--run '--model m --out d' --against y", "leave out --out");
  refused("--run ' ' --against y", "expected the flags of a capture");
  refused("--run '--model m --help' --against y", "expected the flags of a capture");
  refused("--run '--model m --tokens t --stepz 3' --against y",
          "--run: unknown flag '--stepz'; did you mean '--steps'?");
  refused("--run '--model m --tokens t' --against '--model m'", "--against: --tokens is required");
  refused("--baseline x --candidate y --steps 3", "expected A:B");
  refused("--baseline x --candidate y --comm-regex [", "is not a regular expression");
}

}  // namespace
}  // namespace shardlens
