// What commands do to files that are there already.

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/shardlens_command.h"

namespace shardlens {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class WrittenFilesTest : public ShardlensCommandTest {
 protected:
  [[nodiscard]] fs::path at(const std::string& name) const { return fs::path(folder_) / name; }
  void put(const std::string& name, const std::string& content) const {
    fs::create_directories(at(name).parent_path());
    std::ofstream(at(name)) << content;
  }
  [[nodiscard]] CommandResult simulate(const std::string& flags = "") const {
    return run("simulate --model " + std::string(SHARDLENS_TEST_DATA) +
               "/llama-tiny --hardware 4xPCIe --out " + at("out").string() + flags);
  }
};

TEST_F(WrittenFilesTest, SimulateReplacesWhatItMadeItself) {
  EXPECT_EQ(simulate().code, 0);
  const std::string first = text(at("out/.shardlens-capture").string());
  EXPECT_THAT(text(at("out/run.json").string()), HasSubstr(first.substr(first.size() - 33, 32)));
  EXPECT_EQ(simulate().code, 0);
  EXPECT_NE(text(at("out/.shardlens-capture").string()), first);
}

TEST_F(WrittenFilesTest, SimulateRefusesWhatOnlyLooksLikeACapture) {
  put("out/plan.json", "mine");
  put("out/run.json", "mine too");
  const CommandResult refused = simulate();
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("contains plan.json, run.json, without the mark"),
                                 HasSubstr("--force to lose these 2 files")));
  EXPECT_EQ(text(at("out/plan.json").string()), "mine");
  EXPECT_EQ(text(at("out/run.json").string()), "mine too");
  put("out/notes.txt", "notes");
  EXPECT_EQ(simulate(" --force").code, 2);
  EXPECT_EQ(text(at("out/plan.json").string()), "mine");
  fs::remove(at("out/notes.txt"));
  EXPECT_EQ(simulate(" --force").code, 0);
  EXPECT_EQ(simulate().code, 0);
}

// Only the directory is named: which files it gets, the user may not know.
TEST_F(WrittenFilesTest, FilesOfOthersInADirectoryStay) {
  const std::string recording = SHARDLENS_TEST_DATA "/pytorch_traces/fsdp2-default";
  const std::string to = " --out " + at("out").string();
  const std::vector<std::pair<std::string, std::string>> commands{
      {"plan --from-trace " + recording + to, "workload.json"},
      {"convert " + recording + to, "rank1.pt.trace.json.gz"},
      {"advise " SHARDLENS_TEST_DATA "/pytorch_traces/fsdp1-forward" + to, "change-1.json"},
      {"completion man" + to, "shardlens-plan.1"},
  };
  for (const auto& [command, name] : commands) {
    put("out/" + name, "mine");
    const CommandResult refused = run(command);
    EXPECT_EQ(refused.code, 2) << command;
    EXPECT_THAT(refused.err, AllOf(HasSubstr("has " + name + ", which this program did not write"),
                                   HasSubstr("--force")));
    EXPECT_EQ(text(at("out/" + name).string()), "mine");
    EXPECT_EQ(std::distance(fs::directory_iterator(at("out")), {}), 1) << "all or nothing";
    EXPECT_EQ(run(command + " --force").code, 0) << command;
    EXPECT_NE(text(at("out/" + name).string()), "mine");
    EXPECT_EQ(run(command).code, 0) << "its own files are replaced";
    fs::remove_all(at("out"));
  }
}

// One exit code, whichever command writes: a file in the place of a folder.
TEST_F(WrittenFilesTest, AnOutputThatCannotBeWrittenIsAFault) {
  put("file", "no folder");
  const std::string recording = SHARDLENS_TEST_DATA "/pytorch_traces/fsdp2-default";
  const std::string model = std::string("--model ") + SHARDLENS_TEST_DATA "/llama-tiny";
  const std::string to = " --out " + at("file/out").string();
  const std::vector<std::string> commands{
      "simulate " + model + " --hardware 4xPCIe" + to,
      "search " + model + " --hardware 4xPCIe --memory-limit 24GiB --batch 1 --seq 64" + to,
      "report " + recording + to + ".html",
      "analyze " + recording + " --summarize" + to,
      "plan --from-trace " + recording + to,
      "convert " + recording + to,
      "check --baseline " + recording + " --candidate " + recording +
          " --metric structure --junit " + at("file/junit.xml").string(),
      "advise " SHARDLENS_TEST_DATA "/pytorch_traces/fsdp1-forward" + to,
      "calibrate --capture " + recording + to,
      "completion man" + to,
  };
  for (const std::string& command : commands) {
    const CommandResult refused = run(command);
    EXPECT_EQ(refused.code, 4) << command << "\n" << refused.err;
    EXPECT_THAT(refused.err, AllOf(HasSubstr("file/"), HasSubstr("Not a directory"))) << command;
  }
  EXPECT_EQ(text(at("file").string()), "no folder");
}

TEST_F(WrittenFilesTest, AReportStaysPrivate) {
  put("page.html", "before");
  fs::permissions(at("page.html"), fs::perms(0600));
  const std::string run_of_pytorch = SHARDLENS_TEST_DATA "/pytorch_traces/fsdp2-default";
  EXPECT_EQ(run("report " + run_of_pytorch + " --out " + at("page.html").string()).code, 0);
  EXPECT_EQ(fs::status(at("page.html")).permissions(), fs::perms(0600));
  EXPECT_GT(fs::file_size(at("page.html")), 1000U);
}

// A state is not emptied, whatever is in it.
TEST_F(WrittenFilesTest, AStateOfASearchIsOnlyAddedTo) {
  const std::string command =
      "search --model " + std::string(SHARDLENS_TEST_DATA) +
      "/llama-tiny --hardware 4xPCIe --memory-limit 24GiB --batch 1 --seq 64 --state " +
      at("state").string();
  put("theirs", "theirs\n");
  fs::create_symlink("theirs", at("state"));
  EXPECT_EQ(run(command).code, 3);
  EXPECT_EQ(text(at("theirs").string()), "theirs\n");
  fs::remove(at("state"));
  ASSERT_EQ(run(command).code, 0);
  const std::string whole = text(at("state").string());
  const std::string first = whole.substr(0, whole.find('\n'));
  put("state", first);  // stopped before it had written anything else
  EXPECT_EQ(run(command).code, 0);
  EXPECT_EQ(text(at("state").string()).substr(0, first.size() + 1), first + "\n");
  EXPECT_EQ(text(at("state").string()).size(), whole.size());
}

}  // namespace
}  // namespace shardlens
