#include "core/checkpoint/save_directory.h"

#include <algorithm>
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
#include "core/files/output_folder.h"

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
int renameat2(
    int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  if (planned.now() && planned.fault != Fault::kShortWrite) {
    errno = planned.fault == Fault::kFullDisk ? ENOSPC : EIO;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}
int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  return renameat2(from_folder, from, to_folder, to, 0);
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

const std::vector<CompanionFile> kCompanions{{"config.json", "{}"}};

// What rank `rank` writes of a save.
void write(const SaveDirectory& directory, int64_t step, int64_t rank, float added = 0) {
  std::vector<float> values = values_at(step);
  for (float& value : values) {
    value += added;
  }
  {
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
    write_rank_part(directory.begin(step), rank, parts);
  }
}

fs::path commit(const SaveDirectory& directory, int64_t step) {
  return directory.commit(position_at(step), kOrigin, kCompanions);
}

// A save of three ranks, one after the other.
fs::path save(const SaveDirectory& directory, int64_t step, float added = 0) {
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    write(directory, step, rank, added);
  }
  return commit(directory, step);
}

// The same as a run of its own.
fs::path save(const fs::path& root, int64_t step) {
  return save(SaveDirectory(root, random_identifier()), step);
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
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
    // Another run than the one that saved it.
    EXPECT_THAT(SaveDirectory(root_, random_identifier()).remove_old(2), IsEmpty());
  }
  const std::vector<SavedStep> saved = saved_steps(root_);
  ASSERT_THAT(saved, SizeIs(2));
  EXPECT_EQ(saved[0].step, 11);
  EXPECT_EQ(saved[1].path.filename(), "step-00000100");
  EXPECT_EQ(latest_checkpoint(root_), saved[1].path);
  EXPECT_THAT(names_in(root_), ElementsAre("step-00000011", "step-00000100"));
}

// A step that is saved again, as after a resumed run that was stopped early.
TEST_F(SaveDirectoryTest, AStepIsReplaced) {
  save(root_, 3);
  save(SaveDirectory(root_, random_identifier()), 3, 0.5F);
  Reader reader = Reader::open(*latest_checkpoint(root_));
  std::vector<float> expected = values_at(3);
  for (float& value : expected) {
    value += 0.5F;
  }
  EXPECT_EQ(read_all(reader), expected);
  EXPECT_THAT(names_in(root_), ElementsAre("step-00000003"));
  EXPECT_THAT(names_in(root_ / "step-00000003"),
              testing::Each(testing::AnyOf("checkpoint.json", "config.json",
                                           testing::MatchesRegex("rank.*safetensors"))));
}

// Pieces of several blocks: any range is read, and the whole piece is checked when the first range
// of it is read, also what lies after it.
TEST_F(SaveDirectoryTest, LargePiecesAreReadInBlocks) {
  const int64_t rows = 3000, columns = 1000;  // 12 MB
  std::vector<float> values(static_cast<size_t>(rows * columns));
  std::iota(values.begin(), values.end(), 0.0F);  // exact up to 2^24
  const SaveDirectory directory(root_, random_identifier());
  const std::vector<TensorPart> parts{
      {"a.weight", DType::kF32, {rows, columns}, 0, std::as_bytes(std::span(values))}};
  write_rank_part(directory.begin(1), 0, parts);
  const fs::path folder = directory.commit(position_at(1), {1, 1, 1, "fsdp2", "flat", "adamw"}, {});
  {
    Reader reader = Reader::open(folder);
    for (const auto& [first, count] : std::vector<std::pair<size_t, size_t>>{
             {0, 1}, {1'000'000, 1'500'000}, {2'999'999, 1}, {0, values.size()}}) {
      std::vector<float> out(count);
      reader.read(reader.at("a.weight"), static_cast<int64_t>(first), out);
      EXPECT_TRUE(std::ranges::equal(out, std::span(values).subspan(first, count))) << first;
    }
    reader.check(reader.at("a.weight"), reader.at("a.weight").pieces.front());
  }
  {
    std::fstream file(folder / "rank00000.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('x');
  }
  Reader reader = Reader::open(folder);
  std::vector<float> out(10);
  EXPECT_THROW(reader.read(reader.at("a.weight"), 0, out), InputError);
}

// The ranks of two runs save the same step at the same time, as without a lock on a file system
// that has none. The checkpoint is of the run that completed it last, not of both.
TEST_F(SaveDirectoryTest, TwoRunsAreNotMixed) {
  const SaveDirectory first(root_, random_identifier());
  const SaveDirectory second(root_, random_identifier());
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    write(first, 2, rank);
    write(second, 2, kRanks - 1 - rank, 1000);
  }
  commit(first, 2);
  Reader reader = Reader::open(root_ / "step-00000002");
  EXPECT_EQ(read_all(reader), values_at(2));
  commit(second, 2);
  Reader again = Reader::open(root_ / "step-00000002");
  EXPECT_EQ(read_all(again).front(), values_at(2).front() + 1000);
  EXPECT_EQ(read_all(again).back(), values_at(2).back() + 1000);
}

// Entries with the name of a save, or of an interrupted one, that Shardlens did not write.
TEST_F(SaveDirectoryTest, ForeignEntriesStay) {
  const fs::path home = root_.string() + "_home";
  fs::remove_all(home);
  fs::create_directories(home / "notes");
  std::ofstream(home / "diary.txt") << "kept";
  const std::string id(32, 'a');
  const std::string other(32, 'b');
  for (const std::string& name : {std::string("step-00000002.tmp"), "step-00000002.tmp" + id,
                                  std::string("step-00000001.old"), std::string("step-00000001")}) {
    fs::create_directory_symlink(home, root_ / name);
  }
  // As version 0.2 left it; with the marker of another identifier; with a marker that is a link.
  fs::create_directory(root_ / "step-00000004.tmp");
  std::ofstream(root_ / "step-00000004.tmp" / "rank00000.safetensors") << "x";
  fs::create_directory(root_ / ("step-00000005.tmp" + id));
  std::ofstream(root_ / ("step-00000005.tmp" + id) / ("unfinished." + other)) << other;
  fs::create_directory(root_ / ("step-00000006.tmp" + id));
  fs::create_symlink(home / "diary.txt", root_ / ("step-00000006.tmp" + id) / ("unfinished." + id));
  // With the right marker, and a file of its owner.
  fs::create_directory(root_ / ("step-00000007.tmp" + id));
  std::ofstream(root_ / ("step-00000007.tmp" + id) / ("unfinished." + id)) << id;
  std::ofstream(root_ / ("step-00000007.tmp" + id) / "diary.txt") << "kept";
  const std::vector<std::string> before = names_in(root_);

  const SaveDirectory directory(root_, random_identifier());
  EXPECT_THAT(directory.remove_interrupted(),
              testing::UnorderedElementsAre(
                  HasSubstr("step-00000002.tmp is left as it is"),
                  HasSubstr("step-00000002.tmp" + id + " is left as it is: it is no directory"),
                  HasSubstr("step-00000001.old is left as it is"),
                  HasSubstr("step-00000004.tmp is left as it is: it has no marker"),
                  HasSubstr("step-00000005.tmp" + id + " is left as it is: it has no marker"),
                  HasSubstr("step-00000006.tmp" + id + " is left as it is: it has no marker"),
                  HasSubstr("step-00000007.tmp" + id + " is left as it is: it has 'diary.txt'")));
  EXPECT_EQ(names_in(root_), before);
  save(directory, 2);
  save(directory, 3);
  EXPECT_THAT(directory.remove_old(1),
              ElementsAre(HasSubstr("step-00000001 is left as it is: it is no directory")));
  EXPECT_THAT(names_in(home), ElementsAre("diary.txt", "notes"));
  std::vector<std::string> after = before;
  after.emplace_back("step-00000003");
  EXPECT_THAT(names_in(root_), testing::UnorderedElementsAreArray(after));
  EXPECT_THAT(names_in(root_ / ("step-00000007.tmp" + id)),
              ElementsAre("diary.txt", "unfinished." + id));
  fs::remove_all(home);
}

TEST_F(SaveDirectoryTest, AnOldCheckpointWithAFileOfItsOwnerStays) {
  for (const int64_t step : {1, 2, 3}) {
    save(root_, step);
  }
  std::ofstream(root_ / "step-00000001" / "notes.txt") << "keep";
  const SaveDirectory directory(root_, random_identifier());
  EXPECT_THAT(directory.remove_old(1),
              ElementsAre(HasSubstr("step-00000001 is left as it is: it has 'notes.txt'")));
  EXPECT_THAT(names_in(root_), ElementsAre("step-00000001", "step-00000003"));
  Reader reader = Reader::open(root_ / "step-00000001");
  EXPECT_EQ(read_all(reader), values_at(1));
}

// Something else with the final name of a step is not replaced.
TEST_F(SaveDirectoryTest, AForeignFolderInTheWayIsAnError) {
  fs::create_directory(root_ / "step-00000002");
  std::ofstream(root_ / "step-00000002" / "diary.txt") << "kept";
  EXPECT_THAT([&] { save(root_, 2); },
              testing::ThrowsMessage<RuntimeFault>(HasSubstr("it has 'diary.txt'")));
  EXPECT_THAT(names_in(root_ / "step-00000002"), ElementsAre("diary.txt"));
  fs::create_symlink("nowhere", root_ / "step-00000003");
  EXPECT_THAT([&] { save(root_, 3); },
              testing::ThrowsMessage<RuntimeFault>(HasSubstr("it is no directory")));
  EXPECT_EQ(obstacles_after(root_, 2), std::vector<fs::path>{root_ / "step-00000003"});
  EXPECT_THAT(obstacles_after(root_, 3), IsEmpty());
}

// The folder is the one that was opened, whatever has its path later.
TEST_F(SaveDirectoryTest, ADirectoryThatIsMovedIsFollowed) {
  const SaveDirectory directory(root_, random_identifier());
  const fs::path moved = root_.string() + "_moved";
  fs::remove_all(moved);
  fs::rename(root_, moved);
  fs::create_directory(root_);
  save(directory, 1);
  EXPECT_THAT(names_in(root_), IsEmpty());
  Reader reader = Reader::open(moved / "step-00000001");
  EXPECT_EQ(read_all(reader), values_at(1));
  fs::remove_all(moved);
}

TEST_F(SaveDirectoryTest, ATrialLeavesNothing) {
  const std::string id = random_identifier();
  const SaveDirectory rank0(root_, id);
  const SaveDirectory rank1(root_, id);
  EXPECT_THAT([&] { rank1.try_writing(1); },
              testing::ThrowsMessage<RuntimeFault>(HasSubstr("all ranks need the same directory")));
  rank0.try_writing(0);
  rank1.try_writing(1);
  rank0.end_trial();
  EXPECT_THAT(names_in(root_), IsEmpty());
  rank0.try_writing(0);  // and is killed
  EXPECT_THAT(SaveDirectory(root_, random_identifier()).remove_interrupted(), IsEmpty());
  EXPECT_THAT(names_in(root_), IsEmpty());
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
      ASSERT_THAT(unfinished_saves(root_), SizeIs(1));
      EXPECT_THAT(unfinished_saves(root_).front().filename().string(),
                  testing::StartsWith("step-00000002.tmp"));
      // The next run is not disturbed by what is left, and removes it.
      const SaveDirectory directory(root_, random_identifier());
      EXPECT_THAT(directory.remove_interrupted(), IsEmpty());
      EXPECT_THAT(names_in(root_), ElementsAre("step-00000001"));
      save(directory, 2);
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
