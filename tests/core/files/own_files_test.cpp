#include "core/files/own_files.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/support/temporary_directory.h"

namespace shardlens {
namespace {

namespace fs = std::filesystem;

class OwnFilesTest : public testing::Test {
 protected:
  [[nodiscard]] fs::path at(const std::string& name) const { return directory_.path() / name; }
  void put(const std::string& name, const std::string& content = "x") const {
    std::ofstream(at(name)) << content;
  }
  [[nodiscard]] bool foreign(const std::string& name) const {
    return OwnFiles(OutputFolder(directory_.path())).foreign(name);
  }
  void add(const std::vector<std::string>& names) const {
    OwnFiles(OutputFolder(directory_.path())).add(names);
  }

  test::TemporaryDirectory directory_;
};

TEST_F(OwnFilesTest, OnlyListedNamesAreOurs) {
  EXPECT_FALSE(foreign("a.json")) << "nothing is there";
  add({"a.json", "b"});
  add({"b", "c"});
  for (const char* name : {"a.json", "b", "c", "d", "a", ".json"}) {
    put(name);
  }
  EXPECT_FALSE(foreign("a.json"));
  EXPECT_FALSE(foreign("b"));
  EXPECT_FALSE(foreign("c"));
  EXPECT_TRUE(foreign("d"));
  EXPECT_TRUE(foreign("a")) << "a part of a listed name";
  EXPECT_TRUE(foreign(".json"));
}

TEST_F(OwnFilesTest, WhatIsNotAFileIsForeignUnlessNothingIsLost) {
  fs::create_directory(at("folder"));
  fs::create_symlink("nowhere", at("link"));
  fs::create_symlink("/dev/null", at("null"));
  ASSERT_EQ(::mkfifo(at("fifo").c_str(), 0600), 0);
  EXPECT_TRUE(foreign("folder"));
  EXPECT_TRUE(foreign("link"));
  EXPECT_FALSE(foreign("null"));
  EXPECT_FALSE(foreign("fifo"));
}

TEST_F(OwnFilesTest, AListOfAnotherProgramIsNoneAndStays) {
  put(OwnFiles::kList, "a\n");
  put("a");
  EXPECT_TRUE(foreign("a"));
  EXPECT_THROW(add({"a"}), WriteFault);
  EXPECT_EQ(fs::file_size(at(OwnFiles::kList)), 2U);
  fs::remove(at(OwnFiles::kList));
  fs::create_symlink("a", at(OwnFiles::kList));
  EXPECT_THROW(add({"a"}), WriteFault);
  EXPECT_EQ(fs::file_size(at("a")), 1U);
}

}  // namespace
}  // namespace shardlens
