#include "cli/capture/engine_program.h"

#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/files/atomic_file.h"
#include "tests/support/temporary_directory.h"

namespace shardlens::cli {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

// site-packages with an engine for torch 2.11.0.
class EngineProgramTest : public testing::Test {
 protected:
  EngineProgramTest() {
    fs::create_directories(worker().parent_path());
    write_file_atomically(worker().string() + ".torch", "2.11.0\n");
  }
  [[nodiscard]] fs::path worker() const {
    return fs::path(folder_.path()) / "shardlens" / "bin" / "shardlens-worker";
  }
  void install_torch(const std::string& version) const {
    fs::create_directories(fs::path(folder_.path()) / "torch");
    write_file_atomically(
        fs::path(folder_.path()) / "torch" / "version.py",
        "__all__ = ['__version__', 'debug']\n__version__ = '" + version + "'\ndebug = False\n");
  }
  [[nodiscard]] std::string refusal() const {
    try {
      check_torch(worker());
    } catch (const RuntimeFault& error) {
      return error.what();
    }
    return "";
  }

  test::TemporaryDirectory folder_;
};

TEST_F(EngineProgramTest, TakesTheTorchThatItWasBuiltForWhateverItsDevice) {
  for (const char* version : {"2.11.0", "2.11.0+cu130", "2.11.0+cpu"}) {
    install_torch(version);
    EXPECT_EQ(refusal(), "") << version;
  }
  EXPECT_EQ(torch_of(worker()), "2.11.0");
}

TEST_F(EngineProgramTest, AnotherTorchIsRefusedWithBothVersions) {
  for (const char* version : {"2.15.0", "2.11.01", "2.11"}) {
    install_torch(version);
    EXPECT_THAT(refusal(), AllOf(HasSubstr("built for torch 2.11.0"),
                                 HasSubstr(std::string("has torch ") + version + ";"),
                                 HasSubstr("pip install torch==2.11.0")));
  }
}

TEST_F(EngineProgramTest, WithoutTorchTheMessageSaysWhichOneIsNeeded) {
  EXPECT_THAT(refusal(), AllOf(HasSubstr("needs torch 2.11.0"), HasSubstr("has none"),
                               HasSubstr("pip install torch==2.11.0")));
}

TEST_F(EngineProgramTest, AnEngineOfABuildFolderIsNotChecked) {
  fs::remove(worker().string() + ".torch");
  EXPECT_EQ(refusal(), "");
}

}  // namespace
}  // namespace shardlens::cli
