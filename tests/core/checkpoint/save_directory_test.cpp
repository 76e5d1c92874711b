#include "core/checkpoint/save_directory.h"

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/checkpoint/checkpoint_reader.h"
#include "core/checkpoint/checksum.h"
#include "core/checkpoint/rank_part.h"

namespace {

enum class Fault { kNone, kKill, kFullDisk, kShortWrite, kError };

// The fault that happens at the `countdown`-th call of write, fsync or rename from now on.
struct Planned {
  Fault fault = Fault::kNone;
  int countdown = -1;
  bool happened = false;

  bool now() {
    if (countdown < 0 || --countdown >= 0) {
      return false;
    }
    happened = true;
    if (fault == Fault::kKill) {
      ::raise(SIGKILL);
    }
    return true;
  }
};
Planned planned;  // of this process

}  // namespace

// The program's definitions take precedence over those of the C library.
extern "C" {
ssize_t write(int fd, const void* data, size_t size) {
  if (planned.now()) {
    const long half = size > 1 ? ::syscall(SYS_write, fd, data, size / 2) : 0;
    if (planned.fault == Fault::kShortWrite) {
      return half;
    }
    errno = planned.fault == Fault::kFullDisk ? ENOSPC : EIO;
    return -1;
  }
  return ::syscall(SYS_write, fd, data, size);
}
int fsync(int fd) {
  if (planned.now() && planned.fault != Fault::kShortWrite) {
    errno = planned.fault == Fault::kFullDisk ? ENOSPC : EIO;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_fsync, fd));
}
int rename(const char* from, const char* to) noexcept {
  if (planned.now() && planned.fault != Fault::kShortWrite) {
    errno = planned.fault == Fault::kFullDisk ? ENOSPC : EIO;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_rename, from, to));
}
}

namespace shardlens::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int64_t kRanks = 3;
const std::vector<int64_t> kShape{5, 4};  // 20 elements; rank r has 7·r … 7·r + 6

std::vector<float> values_at(int64_t step) {
  std::vector<float> values(20);
  std::iota(values.begin(), values.end(), static_cast<float>(100 * step));
  return values;
}

Position position_at(int64_t step) {
  return {step, 12 * step, 8, Position::Scaler{1024, step}};
}

const Origin kOrigin{kRanks, 1, kRanks, "fsdp2", "flat", "adamw"};

// A save of three ranks, one after the other.
void save(const fs::path& root, int64_t step) {
  const std::vector<float> values = values_at(step);
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    const int64_t begin = 7 * rank;
    const int64_t count = std::min<int64_t>(7, 20 - begin);
    const auto bytes = std::as_bytes(
        std::span(values).subspan(static_cast<size_t>(begin), static_cast<size_t>(count)));
    std::vector<TensorPart> parts{{"a.weight", DType::kF32, kShape, begin, bytes}};
    const float steps = static_cast<float>(step);
    if (rank == 0) {
      parts.push_back({state_name("a.weight", "step"),
                       DType::kF32,
                       {},
                       0,
                       std::as_bytes(std::span(&steps, 1))});
    }
    write_rank_part(begin_save(root, step), rank, parts);
  }
  commit_save(root, position_at(step), kOrigin, std::vector<fs::path>{root / "config.json"});
}

std::vector<float> read_all(Reader& reader) {
  std::vector<float> out(20);
  reader.read(reader.at("a.weight"), 0, out);
  return out;
}

class SaveDirectoryTest : public testing::Test {
 protected:
  void SetUp() override {
    // In memory if possible: the tests flush hundreds of files.
    const fs::path memory = "/dev/shm";
    root_ = (::access(memory.c_str(), W_OK) == 0 ? memory : fs::path(testing::TempDir())) /
            ("shardlens_saved_" + std::to_string(::getpid()));
    fs::remove_all(root_);
    fs::create_directories(root_);
    std::ofstream(root_ / "config.json") << "{}";
  }
  void TearDown() override { fs::remove_all(root_); }

  fs::path root_;
};

// The value that zlib's documentation and others give.
TEST(ChecksumTest, IsThatOfGzip) {
  const std::string digits = "123456789";
  EXPECT_EQ(crc32(std::as_bytes(std::span(digits))), 0xCBF43926U);
  EXPECT_EQ(crc32(std::as_bytes(std::span(digits).subspan(4)),
                  crc32(std::as_bytes(std::span(digits).first(4)))),
            0xCBF43926U);
}

TEST_F(SaveDirectoryTest, AnyRangeIsReadBack) {
  save(root_, 3);
  Reader reader = Reader::open(*latest_checkpoint(root_));
  EXPECT_EQ(reader.index().position, position_at(3));
  EXPECT_EQ(reader.index().origin, kOrigin);
  EXPECT_EQ(read_all(reader), values_at(3));
  std::vector<float> some(9);
  reader.read(reader.at("a.weight"), 5, some);
  EXPECT_THAT(some, testing::ElementsAre(305, 306, 307, 308, 309, 310, 311, 312, 313));
  float steps = 0;
  reader.read(reader.at("state.a.weight.step"), 0, {&steps, 1});
  EXPECT_EQ(steps, 3);
  EXPECT_TRUE(fs::exists(reader.path() / "config.json"));
  EXPECT_EQ(parse_index(to_json(reader.index()), "again"), reader.index());
}

TEST_F(SaveDirectoryTest, TheLatestAreKept) {
  for (const int64_t step : {9, 10, 11, 100}) {
    save(root_, step);
    remove_old(root_, 2);
  }
  const std::vector<SavedStep> saved = saved_steps(root_);
  ASSERT_THAT(saved, SizeIs(2));
  EXPECT_EQ(saved[0].step, 11);
  EXPECT_EQ(saved[1].path.filename(), "step-00000100");
  EXPECT_EQ(latest_checkpoint(root_), saved[1].path);
}

TEST_F(SaveDirectoryTest, AFlippedByteIsNamedByParameter) {
  save(root_, 1);
  const fs::path file = *latest_checkpoint(root_) / "rank00001.safetensors";
  std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
  bytes.seekg(-1, std::ios::end);
  const char last = static_cast<char>(bytes.get() ^ 0x10);
  bytes.seekp(-1, std::ios::end);
  bytes.put(last);
  bytes.close();
  Reader reader = Reader::open(*latest_checkpoint(root_));
  try {
    read_all(reader);
    FAIL() << "the damage was not found";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank00001.safetensors: bytes "));
    EXPECT_THAT(error.what(), HasSubstr("are damaged: parameter 'a.weight'"));
  }
}

TEST_F(SaveDirectoryTest, WhatIsMissingIsNamed) {
  save(root_, 1);
  const fs::path folder = *latest_checkpoint(root_);
  fs::resize_file(folder / "rank00002.safetensors",
                  fs::file_size(folder / "rank00002.safetensors") - 1);
  Reader reader = Reader::open(folder);
  EXPECT_THAT([&] { read_all(reader); },
              testing::ThrowsMessage<InputError>(HasSubstr("rank00002.safetensors: has ")));
  fs::remove(folder / "rank00001.safetensors");
  Reader again = Reader::open(folder);
  EXPECT_THAT([&] { read_all(again); }, testing::ThrowsMessage<InputError>(
                                            HasSubstr("rank00001.safetensors: cannot be read")));
}

// Saves step 2 in a child process in which the fault happens at call `number`. Returns whether it
// happened at all; `ok`: whether the save says that it succeeded.
bool save_with_fault(const fs::path& root, Fault fault, int number, bool& ok) {
  const pid_t child = ::fork();
  if (child == 0) {
    planned = {fault, number};
    int result = 0;
    try {
      save(root, 2);
    } catch (const RuntimeFault&) {
      result = 1;
    }
    ::_exit(result + (planned.happened ? 2 : 0));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ok = WIFEXITED(status) && (WEXITSTATUS(status) & 1) == 0;
  return WIFSIGNALED(status) || (WEXITSTATUS(status) & 2) != 0;
}

class SaveFaultTest : public SaveDirectoryTest, public testing::WithParamInterface<int> {};

// Each write, flush and rename of a save fails once, in each way.
TEST_P(SaveFaultTest, AtEveryCallThePreviousCheckpointOrTheNewOneIsWhole) {
  const auto fault = static_cast<Fault>(GetParam());
  int number = 0;
  int lost = 0;
  for (bool happened = true; happened; ++number) {
    SCOPED_TRACE(number);
    fs::remove_all(root_);
    fs::create_directories(root_);
    std::ofstream(root_ / "config.json") << "{}";
    save(root_, 1);
    bool ok = false;
    happened = save_with_fault(root_, fault, number, ok);
    Reader reader = Reader::open(*latest_checkpoint(root_));
    const int64_t step = reader.index().position.step;
    EXPECT_EQ(read_all(reader), values_at(step));
    if (ok) {
      EXPECT_EQ(step, 2);
    }
    if (step == 1) {
      ++lost;
      EXPECT_EQ(unfinished_saves(root_), std::vector<fs::path>{root_ / "step-00000002.tmp"});
      // The next save is not disturbed by what is left.
      save(root_, 2);
      Reader next = Reader::open(*latest_checkpoint(root_));
      EXPECT_EQ(next.index().position.step, 2);
      EXPECT_EQ(read_all(next), values_at(2));
      EXPECT_THAT(unfinished_saves(root_), IsEmpty());
    }
  }
  EXPECT_GT(number, 20) << "calls of a save";
  if (fault == Fault::kShortWrite) {
    EXPECT_EQ(lost, 0) << "the rest was written by another call";
  } else {
    EXPECT_GE(lost, number - 3) << "all but the last flush is before the rename";
  }
}

INSTANTIATE_TEST_SUITE_P(Each,
                         SaveFaultTest,
                         testing::Values(static_cast<int>(Fault::kKill),
                                         static_cast<int>(Fault::kFullDisk),
                                         static_cast<int>(Fault::kShortWrite),
                                         static_cast<int>(Fault::kError)));

}  // namespace
}  // namespace shardlens::checkpoint
