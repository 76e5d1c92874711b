#include "cli/capture/capture_directory.h"

#include <csignal>
#include <fstream>
#include <optional>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/error.h"

#include "cli/capture/capture_lock.h"

namespace shardlens::cli {
namespace {

namespace fs = std::filesystem;

class CaptureDirectoryTest : public testing::Test {
 protected:
  CaptureDirectoryTest()
      : path_(fs::path(testing::TempDir()) / ("shardlens_out_" + std::to_string(::getpid()))) {
    fs::remove_all(path_);
  }
  ~CaptureDirectoryTest() override { fs::remove_all(path_); }
  void put(const std::string& name, const std::string& text = "x") {
    std::ofstream(path_ / name) << text;
  }
  // Makes a capture with run.json and nothing else. Returns its identifier.
  std::string make_capture() {
    std::string identifier = prepare_capture_directory(path_, /*force=*/false).identifier;
    std::ofstream(path_ / "run.json") << R"({"capture": ")" << identifier << R"("})";
    return identifier;
  }
  [[nodiscard]] std::set<std::string> names() const {
    std::set<std::string> out;
    for (const auto& entry : fs::directory_iterator(path_)) {
      out.insert(entry.path().filename());
    }
    return out;
  }
  std::string refusal(bool force = false) {
    try {
      (void)prepare_capture_directory(path_, force);
      return "";
    } catch (const UsageError& error) {
      return error.what();
    }
  }
  fs::path path_;
};

TEST_F(CaptureDirectoryTest, MakesWhatIsNotThere) {
  path_ /= "a/b";
  EXPECT_EQ(refusal(), "");
  EXPECT_TRUE(fs::is_directory(path_));
  path_ = path_.parent_path().parent_path();
}

TEST_F(CaptureDirectoryTest, ReplacesAnEarlierCapture) {
  const std::string first = make_capture();
  for (const char* name :
       {"metrics.jsonl", "plan.json", "workload.json", "config.json", "rank0.pt.trace.json.gz",
        "rank12.spool", "rank1.now", "plan.json.tmp0123456789abcdef0123456789abcdef"}) {
    put(name);
  }
  put("capture.lock", "4711 elsewhere\n");
  check_capture_directory(path_, /*force=*/false);
  EXPECT_TRUE(fs::exists(path_ / "run.json")) << "a check must not change anything";
  EXPECT_EQ(refusal(), "");
  EXPECT_THAT(names(), testing::ElementsAre(CaptureDirectory::kMark));
  EXPECT_NE(make_capture(), first);
}

TEST_F(CaptureDirectoryTest, TouchesNothingWhereSomethingElseIs) {
  for (const char* name :
       {"notes.txt", "rank.spool", "rankx.spool", "rank1.json", "rank1.pt.trace.json",
        "notes.txt.tmp0123456789abcdef0123456789abcdef", "plan.json.tmp", "plan.json.tmp1.0"}) {
    make_capture();
    put(name);
    for (const bool force : {false, true}) {
      EXPECT_THAT(refusal(force), testing::HasSubstr(std::string("'") + name + "'"));
      EXPECT_TRUE(fs::exists(path_ / "run.json"));
    }
    fs::remove_all(path_);
  }
  fs::create_directories(path_);
  put("config.json");  // no run.json next to it: this may be a user's model
  EXPECT_THAT(refusal(true), testing::HasSubstr("'config.json'"));
  EXPECT_TRUE(fs::exists(path_ / "config.json"));
}

TEST_F(CaptureDirectoryTest, LinksAndDirectoriesAreNoPartOfACapture) {
  const fs::path theirs = path_.string() + "_theirs";
  std::ofstream(theirs) << "theirs";
  for (const bool directory : {false, true}) {
    make_capture();
    directory ? (void)fs::create_directory(path_ / "plan.json")
              : fs::create_symlink(theirs, path_ / "plan.json");
    for (const bool force : {false, true}) {
      EXPECT_THAT(refusal(force), testing::HasSubstr("'plan.json', which is no part of a capture"));
    }
    EXPECT_TRUE(fs::exists(path_ / "run.json"));
    fs::remove_all(path_);
  }
  EXPECT_EQ(fs::file_size(theirs), 6U);
  fs::remove(theirs);
}

// Files with these names may be the user's own, or a capture of an older version.
TEST_F(CaptureDirectoryTest, WithoutAMarkNothingIsReplacedUnlessForced) {
  fs::create_directories(path_);
  for (const char* name : {"config.json", "plan.json", "rank0.pt.trace.json.gz", "run.json",
                           "rank1.pt.trace.json.gz", "metrics.jsonl"}) {
    put(name);
  }
  EXPECT_EQ(refusal(),
            "--out " + path_.string() +
                ": contains config.json, metrics.jsonl, plan.json, rank0.pt.trace.json.gz and 2 "
                "more, without the mark of a capture that this program made there; choose another "
                "directory, or --force to lose these 6 files");
  EXPECT_EQ(names().size(), 6U);
  EXPECT_EQ(refusal(true), "");
  EXPECT_THAT(names(), testing::ElementsAre(CaptureDirectory::kMark));
}

// As torchrun starts ranks: each comes to a directory where others may have written already.
TEST_F(CaptureDirectoryTest, RanksThatStartByThemselvesShareADirectory) {
  share_capture_directory(path_ / "a/b", /*force=*/false);
  std::ofstream(path_ / "a/b/rank1.spool") << "of another rank";
  share_capture_directory(path_ / "a/b", /*force=*/false);
  EXPECT_TRUE(fs::exists(path_ / "a/b/rank1.spool"));
  (void)prepare_capture_directory(path_ / "a/b", /*force=*/false);
  EXPECT_FALSE(fs::exists(path_ / "a/b/rank1.spool"));

  put("rank1.pt.trace.json.gz", "theirs");
  const auto share = [&](bool force) { share_capture_directory(path_, force); };
  EXPECT_THAT([&] { share(false); },
              testing::ThrowsMessage<UsageError>(testing::HasSubstr("without the mark")));
  EXPECT_THAT(names(), testing::ElementsAre("a", "rank1.pt.trace.json.gz"));
  share(true);
  share(false);
  EXPECT_EQ(fs::file_size(path_ / "rank1.pt.trace.json.gz"), 6U) << "a rank replaces it later";
}

TEST_F(CaptureDirectoryTest, AMarkThatAnotherRankIsWritingIsNoEarlierCapture) {
  fs::create_directory(path_);
  put(std::string(CaptureDirectory::kMark) + ".tmp00112233445566778899aabbccddeeff", "capture");
  share_capture_directory(path_, /*force=*/false);
  EXPECT_TRUE(fs::exists(path_ / CaptureDirectory::kMark));
}

TEST_F(CaptureDirectoryTest, AMarkCountsOnlyWithItsRun) {
  const fs::path another = path_.string() + "_another";
  const std::string mark = make_capture();
  fs::rename(path_, another);
  make_capture();
  fs::rename(another / "run.json", path_ / "run.json");  // of another capture
  EXPECT_THAT(refusal(), testing::HasSubstr("without the mark"));
  std::ofstream(path_ / "run.json") << R"({"capture": 7})";
  EXPECT_THAT(refusal(), testing::HasSubstr("without the mark"));
  fs::remove(path_ / "run.json");  // a capture that was killed before it wrote the file
  EXPECT_EQ(refusal(), "");
  fs::remove(path_ / CaptureDirectory::kMark);
  fs::create_symlink(another / CaptureDirectory::kMark, path_ / CaptureDirectory::kMark);
  EXPECT_THAT(refusal(), testing::HasSubstr("is no part of a capture"));
  EXPECT_TRUE(fs::exists(another / CaptureDirectory::kMark));
  fs::remove_all(another);
}

TEST_F(CaptureDirectoryTest, RefusesAFileInTheWay) {
  std::ofstream(path_) << "x";
  EXPECT_THAT(refusal(), testing::HasSubstr("is a file; choose another directory"));
}

// A child process that runs `act` and then waits until it is killed.
class Holder {
 public:
  template <typename Act>
  explicit Holder(const Act& act) {
    int pipes[2] = {-1, -1};
    EXPECT_EQ(::pipe(pipes), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      act();
      EXPECT_EQ(::write(pipes[1], "x", 1), 1);
      for (;;) {
        ::pause();
      }
    }
    char ready = 0;
    EXPECT_EQ(::read(pipes[0], &ready, 1), 1);
    ::close(pipes[0]);
    ::close(pipes[1]);
  }
  ~Holder() { kill(); }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;
  void kill() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
      pid_ = -1;
    }
  }
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

TEST_F(CaptureDirectoryTest, ASecondProcessIsRefusedUntilTheFirstEnds) {
  fs::create_directories(path_);
  Holder holder([this] { new CaptureDirectory(prepare_capture_directory(path_, false)); });
  put("plan.json");
  char host[256] = {};
  ASSERT_EQ(::gethostname(host, sizeof host - 1), 0);
  const std::string expected = "--out " + path_.string() + ": process " +
                               std::to_string(holder.pid()) + " of " + host +
                               " is writing a capture there; ";
  EXPECT_THAT(refusal(), testing::StartsWith(expected));
  EXPECT_TRUE(fs::exists(path_ / "plan.json"));
  try {
    check_capture_directory(path_, false);
    ADD_FAILURE() << "accepted";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), testing::StartsWith(expected));
  }
  holder.kill();  // SIGKILL: the file stays, the lock does not
  EXPECT_TRUE(fs::exists(path_ / kCaptureLock));
  check_capture_directory(path_, false);
  EXPECT_EQ(refusal(), "");
  EXPECT_THAT(names(), testing::ElementsAre(CaptureDirectory::kMark));
}

TEST_F(CaptureDirectoryTest, TheLockGoesWithItsObject) {
  {
    const CaptureDirectory directory = prepare_capture_directory(path_, false);
    EXPECT_TRUE(fs::exists(path_ / kCaptureLock));
    EXPECT_THAT(refusal(), testing::HasSubstr(std::to_string(::getpid())));
  }
  EXPECT_THAT(names(), testing::ElementsAre(CaptureDirectory::kMark));
}

TEST_F(CaptureDirectoryTest, WorkersOfOneRunShareIt) {
  fs::create_directories(path_);
  const auto share = [this] {
    return DirectoryLock(capture_place(path_), DirectoryLock::Use::kShared);
  };
  {
    std::optional<DirectoryLock> first(share()), second(share());
    EXPECT_THAT(refusal(), testing::HasSubstr("is writing"));
    first.reset();
    EXPECT_TRUE(fs::exists(path_ / kCaptureLock));
    EXPECT_THAT(refusal(), testing::HasSubstr("is writing"));
  }
  EXPECT_TRUE(fs::is_empty(path_));
  const DirectoryLock alone(capture_place(path_));
  EXPECT_THROW((void)share(), UsageError);
}

// A full file system leaves a spool without a byte, which analyze cannot read.
TEST_F(CaptureDirectoryTest, OnlySpoolsWithRecordsAreLeft) {
  fs::create_directories(path_);
  put("rank2.spool");
  put("rank4.spool");
  const auto unfinished = [](int rank) {
    return "rank" + std::to_string(rank) + ".pt.trace.json.gz.tmp" + std::string(32, 'a');
  };
  // The last is of a rank of another node, which may still be writing it.
  for (const std::string& name : {std::string("rank3.spool"), std::string("rank3.now"),
                                  std::string("rank4.now"), unfinished(3), unfinished(9)}) {
    const std::ofstream empty(path_ / name);
  }
  EXPECT_EQ(tidy_capture_directory(path_, 2, 4),
            (path_ / "rank2.spool").string() + ", " + (path_ / "rank4.spool").string());
  EXPECT_FALSE(fs::exists(path_ / "rank3.spool"));
  EXPECT_TRUE(fs::remove(path_ / unfinished(9)));
  EXPECT_EQ(std::distance(fs::directory_iterator(path_), {}), 2);
  fs::remove(path_ / "rank2.spool");
  fs::remove(path_ / "rank4.spool");
  EXPECT_EQ(tidy_capture_directory(path_, 2, 4), "");
}

}  // namespace
}  // namespace shardlens::cli
