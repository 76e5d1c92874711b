#include "cli/flags/save_place.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/files/own_files.h"
#include "tests/support/temporary_directory.h"

namespace {

// What every file system has free, in blocks of one byte; 0: it does not say how large it is.
int64_t free_bytes = 0;

}  // namespace

// The program's definition takes precedence over that of the C library.
extern "C" int statvfs(const char* /*path*/, struct statvfs* out) noexcept {
  *out = {};
  out->f_frsize = 1;
  out->f_blocks = static_cast<fsblkcnt_t>(free_bytes);
  out->f_bavail = static_cast<fsblkcnt_t>(free_bytes);
  return 0;
}

namespace shardlens::cli {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::ThrowsMessage;

class SavePlaceTest : public testing::Test {
 protected:
  SavePlaceTest() { options_.save = directory_.path() / "saved"; }

  // A parameter of 200 elements, a frozen one of 7, and an ignored one of 3, on 4 ranks.
  [[nodiscard]] static plan::ResolvedPlan plan() {
    plan::ResolvedPlan plan;
    plan.world_size = 4;
    plan.tree.parameters.resize(3);
    plan.tree.parameters[0].shape = {10, 20};
    plan.tree.parameters[1].shape = {7};
    plan.tree.parameters[1].requires_grad = false;
    plan.tree.parameters[2].shape = {3};
    plan.ignored_parameters = {2};
    return plan;
  }
  void expect_needed(int64_t bytes) {
    const auto lock = lock_save_directory(options_);
    free_bytes = bytes;
    try_save_directory(options_, plan(), lock.get());
    free_bytes = bytes - 1;
    EXPECT_THAT([&] { try_save_directory(options_, plan(), lock.get()); },
                ThrowsMessage<RuntimeFault>(testing::AllOf(
                    HasSubstr("no space for a checkpoint"),
                    HasSubstr("(" + std::to_string(bytes) + " bytes)"),
                    HasSubstr("(" + std::to_string(bytes - 1) + " bytes) are free"))));
    free_bytes = 0;
    try_save_directory(options_, plan(), lock.get());
  }
  template <typename Fault = UsageError>
  void expect_refused(const std::string& message) {
    EXPECT_THAT(
        [&] { (void)lock_save_directory(options_); },
        ThrowsMessage<Fault>(HasSubstr("--save " + options_.save.string() + ": " + message)));
  }

  test::TemporaryDirectory directory_;
  RunOptions options_;
};

TEST_F(SavePlaceTest, NothingWithoutSave) {
  options_.save.clear();
  EXPECT_EQ(lock_save_directory(options_), nullptr);
  try_save_directory(options_, plan(), nullptr);
}

// fp32 with two states of AdamW, one of SGD with momentum, or none; frozen parameters have none,
// and each rank has its own values of an ignored one.
TEST_F(SavePlaceTest, SpaceForOneCheckpointIsNeeded) {
  expect_needed(200 * 12 + 7 * 4 + 3 * 4 * 4);
  options_.step.optimizer = plan::Optimizer::kSgd;
  expect_needed(200 * 8 + 7 * 4 + 3 * 4 * 4);
  options_.step.momentum = 0;
  expect_needed(200 * 4 + 7 * 4 + 3 * 4 * 4);
  options_.save_format = SaveFormat::kFull;
  expect_needed((200 + 7 + 3) * 4);
  fs::remove(options_.save / OwnFiles::kList);
  EXPECT_TRUE(fs::is_empty(options_.save)) << "no trial and no lock is left";
}

TEST_F(SavePlaceTest, WhatIsNoDirectoryIsRefused) {
  std::ofstream(options_.save) << "a file";
  expect_refused("is no directory");
  fs::remove(options_.save);
  fs::create_symlink("nowhere", options_.save);
  expect_refused("is a link to nowhere, which does not exist");
  EXPECT_FALSE(fs::exists(directory_.path() / "nowhere"));
  fs::create_directory(directory_.path() / "nowhere");
  EXPECT_NE(lock_save_directory(options_), nullptr) << "a link of the user to a directory";
  std::ofstream(directory_.path() / "file") << "x";
  options_.save = directory_.path() / "file" / "saved";
  expect_refused<RuntimeFault>("cannot be created: ");
}

TEST_F(SavePlaceTest, OneProcessAtATime) {
  options_.save = directory_.path() / "made" / "saved";
  const auto lock = lock_save_directory(options_);
  expect_refused("process " + std::to_string(::getpid()) + " of ");
}

// Any model has files of these names; this program's own may be replaced.
TEST_F(SavePlaceTest, AModelOfOthersIsNotReplaced) {
  options_.save_format = SaveFormat::kFull;
  fs::create_directories(options_.save);
  std::ofstream(options_.save / "config.json") << "theirs";
  const auto try_it = [&] {
    const auto lock = lock_save_directory(options_);
    try_save_directory(options_, plan(), lock.get());
  };
  EXPECT_THAT(try_it, ThrowsMessage<UsageError>(
                          testing::AllOf(HasSubstr("has config.json"), HasSubstr("--force"))));
  EXPECT_EQ(fs::file_size(options_.save / "config.json"), 6U);
  options_.save_format = SaveFormat::kSharded;
  try_it();
  options_.save_format = SaveFormat::kFull;
  options_.force = true;
  try_it();
  options_.force = false;
  try_it();
  std::ofstream(options_.save / "model.safetensors") << "saved by the run";
  try_it();
}

// What an interrupted save has left is removed before space is looked for.
TEST_F(SavePlaceTest, InterruptedSavesAreRemoved) {
  const std::string id(32, 'a');
  const fs::path left = options_.save / ("step-00000003.tmp" + id);
  fs::create_directories(left);
  std::ofstream(left / ("unfinished." + id)) << id;
  std::ofstream(left / "rank00000.safetensors") << "x";
  try_save_directory(options_, plan(), nullptr);
  EXPECT_TRUE(fs::exists(left)) << "without the lock nothing is touched";
  try_save_directory(options_, plan(), lock_save_directory(options_).get());
  EXPECT_FALSE(fs::exists(left));
}

}  // namespace
}  // namespace shardlens::cli
