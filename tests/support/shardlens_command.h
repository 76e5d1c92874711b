#pragma once

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <gtest/gtest.h>
#include <sys/wait.h>

namespace shardlens {

struct CommandResult {
  int code = -1;  // -1: ended by a signal
  std::string out, err;
};

// Runs `shardlens ARGUMENTS` as a user would, through the shell. `folder_` is temporary.
class ShardlensCommandTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "shardlens-test-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] CommandResult run(const std::string& arguments) const {
    const std::string command = std::string(SHARDLENS_BIN_DIR) + "/shardlens " + arguments + " 2>" +
                                folder_ + "/stderr </dev/null";
    CommandResult result;
    FILE* pipe = popen(command.c_str(), "r");
    std::array<char, 4096> block{};
    for (size_t n = 0; (n = fread(block.data(), 1, block.size(), pipe)) > 0;) {
      result.out.append(block.data(), n);
    }
    const int status = pclose(pipe);
    result.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    result.err = text(folder_ + "/stderr");
    return result;
  }

  [[nodiscard]] static std::string text(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  std::string folder_;
};

}  // namespace shardlens
