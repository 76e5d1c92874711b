// `shardlens docs`: pages without the source tree, and every page that a help text names.
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/shardlens_command.h"

namespace shardlens {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class DocsTest : public ShardlensCommandTest {
 protected:
  // First words of the lines between the table's header and the empty line after it.
  std::set<std::string> pages() const {
    std::istringstream lines(run("docs").out);
    std::set<std::string> out;
    std::string line;
    std::getline(lines, line);
    while (std::getline(lines, line) && !line.empty()) {
      out.insert(line.substr(0, line.find(' ')));
    }
    return out;
  }
};

TEST_F(DocsTest, EveryPageIsPrintedWithItsTextAndWithoutLinksToFiles) {
  const std::set<std::string> all = pages();
  EXPECT_GT(all.size(), 15U);
  const std::regex link(R"(\]\([a-z_./-]*\.(md|png))");
  for (const std::string& page : all) {
    const CommandResult printed = run("docs " + page);
    EXPECT_EQ(printed.code, 0);
    EXPECT_THAT(printed.out, StartsWith("# ")) << page;
    EXPECT_FALSE(std::regex_search(printed.out, link)) << page;
  }
  EXPECT_THAT(run("docs gate_ci").out, StartsWith("# Gate a change"));
}

TEST_F(DocsTest, SectionsAreThoseWithTheWordsInTheirHeadings) {
  const CommandResult mesh = run("docs plan MESH");
  EXPECT_EQ(mesh.code, 0);
  EXPECT_THAT(mesh.out, StartsWith("### Mesh\n"));
  EXPECT_THAT(mesh.out, Not(HasSubstr("# Sharding plans")));
  EXPECT_LT(mesh.out.size(), run("docs plan").out.size());
}

TEST_F(DocsTest, WhatDoesNotExistSaysWhatDoes) {
  const CommandResult page = run("docs metric");
  EXPECT_EQ(page.code, 2);
  EXPECT_THAT(page.err, HasSubstr("did you mean 'metrics'?"));
  const CommandResult words = run("docs plan no such heading");
  EXPECT_EQ(words.code, 2);
  EXPECT_THAT(words.err, HasSubstr("no heading of plan contains 'no such heading'"));
}

TEST_F(DocsTest, HelpTextsNameOnlyPagesThatExist) {
  const std::set<std::string> all = pages();
  const std::regex named("shardlens docs ([a-z_-]+)"), file(R"(docs/[a-z_/-]+\.md)");
  size_t found = 0;
  std::istringstream lines(run("help").out);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("  ") || line.size() < 3 || line[2] == ' ') {
      continue;
    }
    const std::string subcommand = line.substr(2, line.find(' ', 2) - 2);
    std::string help = run("help " + subcommand).out;
    help = std::regex_replace(help, std::regex("\n +"), " ");
    EXPECT_FALSE(std::regex_search(help, file)) << subcommand;
    for (std::sregex_iterator each(help.begin(), help.end(), named), end; each != end; ++each) {
      EXPECT_EQ(all.count((*each)[1]), 1U) << subcommand << ": " << each->str();
      ++found;
    }
  }
  EXPECT_GT(found, 10U);
}

}  // namespace
}  // namespace shardlens
