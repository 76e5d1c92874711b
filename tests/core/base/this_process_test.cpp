#include "core/base/this_process.h"

#include <cstdlib>
#include <fstream>

#include <gtest/gtest.h>

#include "tests/support/temporary_directory.h"

namespace shardlens {
namespace {

namespace fs = std::filesystem;

fs::path program_in(const fs::path& folder, const std::string& name, bool runs) {
  fs::create_directories(folder);
  std::ofstream(folder / name) << "#!/bin/sh\n";
  fs::permissions(folder / name, runs ? fs::perms::owner_all : fs::perms::owner_read);
  return folder / name;
}

TEST(ThisProcess, FirstProgramOnPathThatRunsIsFound) {
  const test::TemporaryDirectory made;
  program_in(made.path() / "a", "tool", false);
  const fs::path second = program_in(made.path() / "b", "tool", true);
  program_in(made.path() / "c", "tool", true);
  const std::string before = environment_variable("PATH");
  const std::string base = made.path().string();
  ::setenv("PATH", ("::" + base + "/none:" + base + "/a:" + base + "/b:" + base + "/c").c_str(), 1);
  EXPECT_EQ(program_on_path("tool"), second);
  EXPECT_EQ(program_beside_or_on_path("tool"), second);
  EXPECT_EQ(program_on_path("another"), "");
  ::unsetenv("PATH");
  EXPECT_EQ(program_on_path("tool"), "");
  ::setenv("PATH", before.c_str(), 1);
}

TEST(ThisProcess, ProgramsBesideThisOneComeFirst) {
  const fs::path self = fs::canonical("/proc/self/exe");
  EXPECT_EQ(program_folder(), self.parent_path());
  EXPECT_EQ(program_beside_or_on_path(self.filename().string()), self);
}

TEST(ThisProcess, VariableThatIsNotSetIsEmpty) {
  ::unsetenv("SHARDLENS_NO_SUCH_VARIABLE");
  EXPECT_EQ(environment_variable("SHARDLENS_NO_SUCH_VARIABLE"), "");
}

}  // namespace
}  // namespace shardlens
