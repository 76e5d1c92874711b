#include "core/files/output_folder.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "core/base/error.h"
#include "core/files/output_file.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace shardlens {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class OutputFolderTest : public testing::Test {
 protected:
  [[nodiscard]] fs::path at(const std::string& name) const { return directory_.path() / name; }
  [[nodiscard]] static std::string text(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void put(const std::string& name, const std::string& content) const {
    std::ofstream(at(name)) << content;
  }

  test::TemporaryDirectory directory_;
  OutputFolder folder_{directory_.path()};
};

TEST_F(OutputFolderTest, NoEntryIsOpenedInPlaceOfANewFile) {
  put("file", "mine");
  fs::create_directory(at("folder"));
  fs::create_symlink("file", at("link"));
  fs::create_symlink("missing", at("dangling"));
  ASSERT_EQ(::mkfifo(at("fifo").c_str(), 0600), 0);
  for (const std::string name : {"file", "folder", "link", "dangling", "fifo"}) {
    EXPECT_EQ(test::message_of<WriteFault>([&] { const OutputFile made(folder_, name); }),
              "cannot write " + at(name).string() + ": File exists");
  }
  EXPECT_EQ(text(at("file")), "mine");
  EXPECT_FALSE(fs::exists(at("missing")));
}

TEST_F(OutputFolderTest, OnlyRegularFilesAreOpened) {
  put("file", "mine");
  fs::create_symlink("file", at("link"));
  ASSERT_EQ(::mkfifo(at("fifo").c_str(), 0600), 0);
  EXPECT_TRUE(folder_.open_file("file", O_RDWR).open());
  EXPECT_THROW((void)folder_.open_file("link", O_RDWR | O_CREAT), WriteFault);
  EXPECT_THAT(test::message_of<WriteFault>([&] { (void)folder_.open_file("fifo", O_RDWR); }),
              HasSubstr("not a regular file"));
  EXPECT_THROW((void)folder_.open_folder("link"), WriteFault);
}

TEST_F(OutputFolderTest, StaysTheFolderThatWasOpened) {
  fs::create_directory(at("a"));
  fs::create_directory(at("other"));
  const OutputFolder a(at("a"));
  fs::rename(at("a"), at("moved"));
  fs::create_directory_symlink("other", at("a"));
  OutputFile file(a, "x");
  file.write("text");
  file.replace("y");
  EXPECT_EQ(text(at("moved/y")), "text");
  EXPECT_TRUE(fs::is_empty(at("other")));
}

TEST_F(OutputFolderTest, AFileThatIsNotKeptIsRemovedUnlessItIsAnother) {
  { const OutputFile file(folder_, "gone"); }
  EXPECT_FALSE(fs::exists(at("gone")));
  {
    const OutputFile file(folder_, "replaced");
    put("other", "theirs");
    fs::rename(at("other"), at("replaced"));
  }
  EXPECT_EQ(text(at("replaced")), "theirs");
  {
    OutputFile file(folder_, "kept");
    file.keep();
  }
  EXPECT_TRUE(fs::exists(at("kept")));
}

TEST_F(OutputFolderTest, RemovesOnlyWhatWasMade) {
  put("mine", "1");
  put("theirs", "2");
  const FileIdentity mine(*folder_.find("mine"));
  EXPECT_FALSE(folder_.remove("theirs", mine));
  EXPECT_TRUE(fs::exists(at("theirs")));
  EXPECT_TRUE(folder_.remove("mine", mine));
  EXPECT_FALSE(fs::exists(at("mine")));
  EXPECT_TRUE(folder_.remove("mine", mine));
  EXPECT_FALSE(folder_.remove("../" + directory_.path().filename().string(), mine));
}

TEST_F(OutputFolderTest, ClearingDoesNotFollowLinks) {
  fs::create_directories(at("own/deep/deeper"));
  fs::create_directory(at("other"));
  put("other/file", "theirs");
  put("own/deep/file", "mine");
  fs::create_directory_symlink(at("other"), at("own/deep/link"));
  fs::create_symlink(at("other/file"), at("own/link"));
  EXPECT_TRUE(folder_.open_folder("own").clear());
  EXPECT_TRUE(fs::is_empty(at("own")));
  EXPECT_EQ(text(at("other/file")), "theirs");
}

TEST_F(OutputFolderTest, RenamesToANewNameOnly) {
  put("a", "a");
  put("b", "b");
  EXPECT_THAT(test::message_of<WriteFault>([&] { folder_.rename_to_new("a", "b"); }),
              HasSubstr("File exists"));
  EXPECT_EQ(text(at("b")), "b");
  folder_.rename_to_new("a", "c");
  EXPECT_EQ(text(at("c")), "a");
  folder_.rename("c", "b");
  EXPECT_EQ(text(at("b")), "a");
  EXPECT_THAT(folder_.names(), ElementsAre("b"));
}

TEST_F(OutputFolderTest, FoldersAreMadeOnce) {
  const OutputFolder made = OutputFolder::make(at("a/b"));
  EXPECT_EQ(OutputFolder::make(at("a/b")).identity(), made.identity());
  EXPECT_THROW((void)folder_.make_folder("a"), WriteFault);
  fs::create_symlink("missing", at("dangling"));
  EXPECT_THROW((void)folder_.make_folder("dangling"), WriteFault);
  EXPECT_THAT(folder_.make_folder("c", 0700).names(), IsEmpty());
  EXPECT_EQ(fs::status(at("c")).permissions(), fs::perms::owner_all);
  EXPECT_EQ(test::message_of<WriteFault>([&] { (void)OutputFolder(at("no")); }),
            "cannot write " + at("no").string() + ": No such file or directory");
}

TEST_F(OutputFolderTest, TemporaryNamesAreRandomAndFit) {
  const std::string longest(255, 'x');
  const auto name = [&](const std::string& like) {
    return OutputFile::temporary(folder_, like).name();
  };
  EXPECT_NE(name("a"), name("a"));
  EXPECT_EQ(name("a.json").size(), std::string("a.json.tmp").size() + 32);
  EXPECT_EQ(name_of_temporary(name("a.json")), "a.json");
  EXPECT_EQ(name(longest).size(), 255U);
  EXPECT_EQ(name_of_temporary(name("\u00e9" + longest)), "\u00e9" + std::string(217, 'x'));
  // 219 bytes are left for the beginning, in the middle of a character of two bytes.
  std::string accents;
  for (int i = 0; i < 127; ++i) {
    accents += "\u00e9";
  }
  EXPECT_EQ(name_of_temporary(name(accents)), accents.substr(0, 218));
  EXPECT_EQ(name_of_temporary("a.json"), std::nullopt);
  EXPECT_EQ(name_of_temporary("a.tmp4711.0"), std::nullopt);
}

}  // namespace
}  // namespace shardlens
