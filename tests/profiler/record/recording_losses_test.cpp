// A recording that runs out of space loses records, never the run, and the trace states the loss.

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "profiler/record/host/finish.h"
#include "profiler/record/host/rank_now.h"
#include "profiler/trace/kineto/kineto_reader.h"
#include "profiler/trace/kineto/kineto_writer.h"
#include "tests/profiler/record/recorded_run.h"

namespace shardlens::record {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Contains;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using trace::Diagnostic;

constexpr int kNoMount = 77;

auto says(const std::string& text) {
  return Contains(Field(&Diagnostic::message, HasSubstr(text)));
}

// Ten steps of 21 records each, in addition to those that mark steps.
void record_steps(SpoolRecorder& recorder) {
  recorder.units(unit_names());
  uint32_t seq = 0;
  for (int64_t step = 0; step < 10; ++step) {
    record_step(recorder, step, seq);
  }
}

// Runs `act` in a child process; returns its exit code, or minus the signal that killed it.
template <typename Act>
int code_of(const Act& act) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    ::_exit(act());
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) {
    return -1000;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// Mounts a file system of a few pages on `directory`, which no other process sees.
bool mount_small(const fs::path& directory) {
  return (::unshare(CLONE_NEWNS) == 0 || ::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0) &&
         ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("none", directory.c_str(), "tmpfs", 0, "size=40k") == 0;
}

TEST(RecordingLossesTest, TheBudgetsLossesAreInTheTrace) {
  const TestDirectory directory;
  SpoolOptions options = options_in(directory.path());
  options.budget = 64 * 40;
  SpoolRecorder recorder(options);
  record_steps(recorder);
  recorder.note("the device was not recorded");
  const fs::path path = finish_trace(recorder);
  ASSERT_GT(recorder.dropped(), 100);
  EXPECT_EQ(recorder.losses(), std::to_string(recorder.dropped()) +
                                   " records were not kept: the spool's budget is 2.50 KiB");
  EXPECT_FALSE(fs::exists(recorder.path()));
  const trace::Trace trace = trace::read_kineto(path);
  EXPECT_THAT(trace.diagnostics,
              AllOf(Contains(AllOf(Field(&Diagnostic::message, HasSubstr("were not kept")),
                                   Field(&Diagnostic::count, recorder.dropped()),
                                   Field(&Diagnostic::severity, trace::Severity::kWarning))),
                    says("the device was not recorded")));
  EXPECT_EQ(trace.units, unit_names());
  // Written and read again they are neither lost nor counted twice.
  trace::write_kineto(trace, directory.path() / "again.json");
  EXPECT_EQ(trace::read_kineto(directory.path() / "again.json").metadata.notes,
            trace.metadata.notes);
}

TEST(RecordingLossesTest, AWholeRecordingHasNoNotes) {
  const TestDirectory directory;
  SpoolRecorder recorder(options_in(directory.path()));
  record_steps(recorder);
  EXPECT_EQ(recorder.losses(), "");
  const trace::Trace trace = trace::read_kineto(finish_trace(recorder));
  EXPECT_THAT(trace.metadata.notes, IsEmpty());
  EXPECT_THAT(trace.diagnostics, IsEmpty());
}

// The limit on file size allows the spool, but not the page that shows what a rank is doing.
TEST(RecordingLossesTest, WithoutRoomForThePageTheRecordingGoesOn) {
  const TestDirectory directory;
  const int code = code_of([&] {
    const rlimit limit{40'000, 40'000};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) {
      return 1;
    }
    SpoolRecorder recorder(options_in(directory.path()));
    record_steps(recorder);
    const bool said = recorder.page_error().find("rank1.now") != std::string::npos;
    (void)finish_trace(recorder);
    return said && recorder.losses().empty() ? 0 : 2;
  });
  EXPECT_EQ(code, 0);
  EXPECT_FALSE(read_rank_now(now_path(directory.path(), 1)).has_value());
  const trace::Trace trace = trace::read_kineto(trace_path(directory.path(), 1));
  ASSERT_EQ(trace.diagnostics.size(), 1U);
  EXPECT_THAT(trace.diagnostics, says("rank1.now"));
  EXPECT_EQ(trace.diagnostics[0].severity, trace::Severity::kNote) << "no record is missing";
}

TEST(RecordingLossesTest, AFullFileSystemCostsRecordsAndNotTheRun) {
  const TestDirectory directory;
  const int code = code_of([&] {
    if (!mount_small(directory.path())) {
      return kNoMount;
    }
    SpoolRecorder recorder(options_in(directory.path()));
    for (int i = 0; i < 10; ++i) {
      record_steps(recorder);
    }
    recorder.finish();
    const bool said = recorder.page_error().find("No space left") != std::string::npos &&
                      recorder.losses().find("No space left") != std::string::npos;
    return said && recorder.dropped() > 100 ? 0 : 2;
  });
  if (code == kNoMount) {
    GTEST_SKIP() << "no file system can be mounted here";
  }
  EXPECT_EQ(code, 0);
}

// The trace's diagnostics when the spool could not be written to its end.
TEST(RecordingLossesTest, ADiskThatFilledUpIsInTheTrace) {
  const TestDirectory directory;
  const int code = code_of([&] {
    SpoolRecorder recorder(options_in(directory.path()));
    rlimit limit{64 * 50, RLIM_INFINITY};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) {
      return 1;
    }
    record_steps(recorder);
    recorder.finish();
    limit.rlim_cur = RLIM_INFINITY;
    if (recorder.dropped() < 100 || ::setrlimit(RLIMIT_FSIZE, &limit) != 0) {
      return 2;
    }
    std::ofstream(directory.path() / "dropped") << recorder.dropped();
    (void)finish_trace(recorder);
    return 0;
  });
  ASSERT_EQ(code, 0);
  int64_t dropped = 0;
  std::ifstream(directory.path() / "dropped") >> dropped;
  const trace::Trace trace = trace::read_kineto(trace_path(directory.path(), 1));
  EXPECT_THAT(trace.diagnostics,
              AllOf(Contains(AllOf(Field(&Diagnostic::message, HasSubstr("were not kept")),
                                   Field(&Diagnostic::count, dropped))),
                    says("File too large")));
  EXPECT_THAT(trace.diagnostics, testing::Not(says("did not end")));
}

// A page that is cut off or not there yet is read as none: a mapping of it would raise SIGBUS.
TEST(RecordingLossesTest, ACutPageReadsAsNone) {
  const TestDirectory directory;
  {
    NowPage page(now_path(directory.path(), 0));
    page.step(1, true);
  }
  ASSERT_TRUE(read_rank_now(now_path(directory.path(), 0)).has_value());
  fs::resize_file(now_path(directory.path(), 0), 4096);
  EXPECT_FALSE(read_rank_now(now_path(directory.path(), 0)).has_value());
}

}  // namespace
}  // namespace shardlens::record
