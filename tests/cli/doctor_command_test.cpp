// `shardlens doctor`, `completion` and `--version --json`: what they say is what is here, and every
// flag of the help is in the completions and the manual pages.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/shardlens_command.h"

namespace shardlens {
namespace {

using nlohmann::json;
using testing::HasSubstr;
namespace fs = std::filesystem;

class DoctorTest : public ShardlensCommandTest {
 protected:
  // `shardlens ARGUMENTS` of a folder that has only this program, with these variables set.
  CommandResult alone(const std::string& arguments, const std::string& environment = "") const {
    const std::string program = folder_ + "/alone/shardlens";
    if (!fs::exists(program)) {
      fs::create_directory(folder_ + "/alone");
      fs::copy_file(SHARDLENS_BIN_DIR "/shardlens", program);
    }
    const std::string command = "cd " + folder_ + "; env " + environment + " " + program + " " +
                                arguments + " >" + folder_ + "/stdout 2>" + folder_ +
                                "/stderr </dev/null";
    CommandResult result;
    const int status = std::system(command.c_str());  // NOLINT(cert-env33-c): as a user would
    result.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    result.out = text(folder_ + "/stdout");
    result.err = text(folder_ + "/stderr");
    return result;
  }
  static json part(const json& report, const std::string& name) {
    for (const json& each : report.at("parts")) {
      if (each.at("name") == name) {
        return each;
      }
    }
    return nullptr;
  }
  void program(const std::string& path, const std::string& script) const {
    fs::create_directories(fs::path(folder_ + "/" + path).parent_path());
    std::ofstream(folder_ + "/" + path) << "#!/bin/sh\n" << script << "\n";
    fs::permissions(folder_ + "/" + path, fs::perms::owner_all);
  }
};

TEST_F(DoctorTest, WhatIsMissingIsAFaultOnlyIfItIsNeeded) {
  const CommandResult any = alone("doctor --json", "PATH= TMPDIR=" + folder_);
  EXPECT_EQ(any.code, 0) << any.out << any.err;
  const json report = json::parse(any.out);
  EXPECT_EQ(part(report, "compiler").at("state"), "missing");
  EXPECT_EQ(part(report, "engine").at("state"), "missing");
  EXPECT_THAT(part(report, "engine").at("advice").get<std::string>(), HasSubstr("scripts/setup"));
  EXPECT_EQ(report.at("ok"), true);
  for (const std::string need : {"build", "capture", "app"}) {
    EXPECT_EQ(alone("doctor --need " + need, "PATH=").code, 1) << need;
  }
  EXPECT_EQ(alone("doctor --need sleep").code, 2);
}

TEST_F(DoctorTest, WhatDoesNotWorkIsAFault) {
  const CommandResult no_directory = alone("doctor --json", "TMPDIR=" + folder_ + "/absent");
  EXPECT_EQ(no_directory.code, 1);
  EXPECT_EQ(part(json::parse(no_directory.out), "temporary files").at("state"), "broken");
  EXPECT_EQ(json::parse(no_directory.out).at("ok"), false);

  // A worker as the loader leaves it if LibTorch has moved, and an app without Qt.
  (void)alone("--version");
  program("alone/shardlens-worker",
          "echo 'error while loading shared libraries: libtorch_cpu.so' >&2; exit 127");
  program("alone/shardlens-gui", "echo 'libQt6Core.so.6: cannot open' >&2; exit 127");
  const CommandResult broken = alone("doctor --json");
  EXPECT_EQ(broken.code, 1);
  const json report = json::parse(broken.out);
  EXPECT_EQ(part(report, "engine").at("state"), "broken");
  EXPECT_THAT(part(report, "engine").at("seen").get<std::string>(), HasSubstr("libtorch_cpu.so"));
  EXPECT_EQ(part(report, "app").at("state"), "broken");
}

TEST_F(DoctorTest, ToolsAreThoseOnPath) {
  program("tools/c++", "echo 12");
  program("tools/cmake", "echo cmake version 3.25.1");
  program("tools/ninja", "echo 1.11.1");
  const json good =
      json::parse(alone("doctor --json --need build", "PATH=" + folder_ + "/tools:/bin").out);
  EXPECT_EQ(part(good, "compiler").at("state"), "ok");
  EXPECT_EQ(part(good, "compiler").at("seen"), folder_ + "/tools/c++ 12");
  EXPECT_EQ(part(good, "CMake").at("state"), "ok");
  program("tools/c++", "echo 9");
  const CommandResult old = alone("doctor", "PATH=" + folder_ + "/tools:/bin");
  EXPECT_EQ(old.code, 1);
  EXPECT_THAT(old.out, HasSubstr("C++20 needs g++ 12 or newer"));
}

TEST_F(DoctorTest, VersionAsJson) {
  const json report = json::parse(alone("--version --json").out);
  EXPECT_EQ("shardlens " + report.at("version").get<std::string>() + "\n", alone("--version").out);
  EXPECT_EQ(report.at("engine"), false);
  EXPECT_TRUE(report.at("torch").is_null());
  EXPECT_EQ(alone("--version --xml").code, 2);
}

class CompletionTest : public ShardlensCommandTest {
 protected:
  // The long flags in the help of each subcommand.
  std::vector<std::pair<std::string, std::string>> flags() const {
    std::vector<std::pair<std::string, std::string>> out;
    std::istringstream top(run("--help").out);
    bool listed = false;
    for (std::string line; std::getline(top, line);) {
      listed = line == "Subcommands:" || (listed && !line.empty());
      if (!listed || line == "Subcommands:") {
        continue;
      }
      const std::string name = line.substr(2, line.find(' ', 2) - 2);
      std::istringstream help(run(name + " --help").out);
      for (std::string flag; std::getline(help, flag);) {
        if (flag.starts_with("  --")) {
          out.emplace_back(name, flag.substr(4, flag.find_first_of(" {", 4) - 4));
        }
      }
    }
    return out;
  }
};

// The help of each subcommand: in 100 columns where nothing is a terminal, with examples whose
// flags it has.
TEST_F(CompletionTest, EveryHelpHasExamplesThatUseItsFlags) {
  std::map<std::string, std::set<std::string>> known;
  for (const auto& [command, flag] : flags()) {
    known[command].insert("--" + flag);
  }
  EXPECT_EQ(known.size(), 17U);
  for (const auto& [command, its] : known) {
    const CommandResult help = run(command + " --help"), same = run("help " + command);
    EXPECT_EQ(help.out, same.out);
    EXPECT_EQ(same.code, 0);
    EXPECT_THAT(help.out, testing::Not(testing::AnyOf(HasSubstr("{"), HasSubstr("Excludes"),
                                                      HasSubstr("Needs"), HasSubstr("=false"))))
        << command;
    std::istringstream lines(help.out.substr(help.out.find("\nExamples:\n") + 1));
    std::string line;
    std::getline(lines, line);
    EXPECT_EQ(line, "Examples:") << command;
    int examples = 0;
    while (std::getline(lines, line)) {
      if (!line.starts_with("  shardlens ")) {
        continue;
      }
      ++examples;
      std::istringstream words(line);
      std::string word;
      words >> word >> word;
      EXPECT_EQ(word, command);
      while (words >> word) {
        if (word.starts_with("--")) {
          EXPECT_TRUE(its.contains(word)) << line;
        }
      }
    }
    EXPECT_GE(examples, 1) << command;
    std::istringstream all(help.out);
    while (std::getline(all, line)) {
      EXPECT_LE(line.size(), 104U) << line;  // "µ" and "…" have more bytes than columns
    }
  }
  EXPECT_EQ(run("help serch").code, 2);
  EXPECT_THAT(run("help serch").err, HasSubstr("did you mean 'search'?"));
  EXPECT_EQ(run("help plan search").code, 2);
}

TEST_F(CompletionTest, EveryFlagIsInEveryShellAndInItsPage) {
  ASSERT_EQ(run("completion man --out " + folder_ + "/man").code, 0);
  const std::string bash = run("completion bash").out, zsh = run("completion zsh").out,
                    fish = run("completion fish").out;
  const auto all = flags();
  EXPECT_GT(all.size(), 150U);
  for (const auto& [command, flag] : all) {
    EXPECT_THAT(bash, HasSubstr("--" + flag)) << command;
    EXPECT_THAT(zsh, HasSubstr("*--" + flag + "[")) << command;
    EXPECT_THAT(fish, HasSubstr("__fish_seen_subcommand_from " + command + "' -l " + flag))
        << command;
    std::string in_troff;
    for (const char c : "--" + flag) {
      in_troff += c == '-' ? std::string("\\-") : std::string(1, c);
    }
    EXPECT_THAT(text(folder_ + "/man/shardlens-" + command + ".1"), HasSubstr(in_troff)) << command;
  }
  EXPECT_EQ(run("completion tcsh").code, 2);
  EXPECT_EQ(run("completion man").code, 2);
}

// What a user of bash sees after Tab.
TEST_F(CompletionTest, BashCompletesFlagsValuesAndFiles) {
  std::ofstream(folder_ + "/trace.json") << "{}";
  std::ofstream(folder_ + "/ask") << "source <(" SHARDLENS_BIN_DIR
                                     "/shardlens completion bash)\n"
                                     "cd " +
                                         folder_ +
                                         "\n"
                                         "COMP_WORDS=(shardlens \"$@\"); COMP_CWORD=$#\n"
                                         "_shardlens; echo \"${COMPREPLY[*]}\"\n";
  const auto completed = [&](const std::string& words) {
    FILE* pipe = popen(("bash " + folder_ + "/ask " + words).c_str(), "r");
    std::string out;
    for (int c = 0; (c = fgetc(pipe)) != EOF;) {
      out += static_cast<char>(c);
    }
    pclose(pipe);
    return out;
  };
  EXPECT_EQ(completed("ana"), "analyze\n");
  EXPECT_EQ(completed("capture --dev"), "--device\n");
  EXPECT_EQ(completed("capture --device ''"), "cpu cuda\n");
  EXPECT_EQ(completed("plan --strategy hy"), "hybrid_shard\n");
  EXPECT_EQ(completed("simulate --hardware 8xH2"), "8xH200\n");
  EXPECT_EQ(completed("analyze tra"), "trace.json\n");
  EXPECT_EQ(completed("completion z"), "zsh\n");
  EXPECT_EQ(completed("docs form"), "formats\n");
  EXPECT_EQ(completed("analyze --by sp"), "span\n");
  EXPECT_EQ(completed("capture --nproc t"), "\n");
}

// The shells' own parsers find no fault; skipped where there is none but bash.
TEST_F(CompletionTest, ShellsAndManAcceptThem) {
  ASSERT_EQ(run("completion man --out " + folder_ + "/man").code, 0);
  for (const std::string shell : {"bash", "zsh", "fish"}) {
    if (std::system(("command -v " + shell + " >/dev/null").c_str()) ==
        0) {  // NOLINT(cert-env33-c)
      std::ofstream(folder_ + "/" + shell) << run("completion " + shell).out;
      EXPECT_EQ(std::system((shell + " -n " + folder_ + "/" + shell).c_str()), 0)
          << shell;  // NOLINT
    }
  }
  if (std::system("command -v groff >/dev/null") == 0) {  // NOLINT(cert-env33-c)
    const std::string all = "groff -k -man -ww -z " + folder_ + "/man/*.1 2>&1";
    FILE* pipe = popen(all.c_str(), "r");
    EXPECT_EQ(fgetc(pipe), EOF) << "groff finds faults in the pages";
    pclose(pipe);
  }
}

}  // namespace
}  // namespace shardlens
