#include "profiler/record/session.h"

#include <algorithm>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include "core/base/error.h"
#include "profiler/trace/kineto/kineto_reader.h"
#include "profiler/trace/spool/spool_format.h"
#include "tests/profiler/record/recorded_run.h"

namespace shardlens::record {
namespace {

std::vector<std::string> names(const trace::Trace& trace, trace::Category category) {
  std::vector<std::string> found;
  for (const trace::Event& event : trace.events) {
    if (event.category == category) {
      found.emplace_back(trace.name(event));
    }
  }
  return found;
}

TEST(SessionTest, RecordsALoopOfAnyProgram) {
  const TestDirectory directory;
  const std::filesystem::path out = directory.path() / "made" / "here";
  {
    Session session({.spool = {.directory = out}});
    for (int k = 0; k < 3; ++k) {
      const auto step = session.step();
      const RangeScope range(&session.recorder(), Range::kForward);
      static_cast<void>(at::mm(at::ones({4, 4}), at::ones({4, 4})));
    }
  }
  const trace::Trace trace = trace::read_kineto(out / "rank0.pt.trace.json.gz");
  EXPECT_THAT(names(trace, trace::Category::kUserAnnotation),
              testing::UnorderedElementsAre("ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2",
                                            "shardlens::forward", "shardlens::forward",
                                            "shardlens::forward"));
  EXPECT_THAT(names(trace, trace::Category::kCpuOp), testing::Contains("aten::mm").Times(3));
  EXPECT_THAT(trace.diagnostics, testing::IsEmpty());
}

TEST(SessionTest, ADeviceThatCannotBeRecordedIsSaidOnceAndTheCaptureGoesOn) {
  if (std::ifstream("/proc/driver/nvidia/version")) {
    GTEST_SKIP() << "this machine has an NVIDIA driver";
  }
  const TestDirectory directory;
  std::vector<std::string> said;
  Session session({.spool = {.directory = directory.path()},
                   .device = true,
                   .warn = [&](const std::string& message) { said.push_back(message); }});
  for (int k = 0; k < 2; ++k) {
    const auto step = session.step();
    static_cast<void>(at::ones({2}));
  }
  const trace::Spool spool = [&] {
    session.spool().flush();
    return trace::read_spool(session.spool().path());
  }();
  const trace::Trace trace = trace::read_kineto(session.finish());
  ASSERT_EQ(said.size(), 1U);
  EXPECT_THAT(said[0], testing::AllOf(testing::StartsWith("no device records: "),
                                      testing::EndsWith("the capture continues without them")));
  EXPECT_THAT(spool.notes, testing::ElementsAre(testing::StartsWith("no device records: ")));
  EXPECT_THAT(names(trace, trace::Category::kUserAnnotation),
              testing::ElementsAre("ProfilerStep#0", "ProfilerStep#1"));
  EXPECT_THROW((void)session.finish(), UsageError);
}

TEST(SessionTest, AnExceptionLeavesASpool) {
  const TestDirectory directory;
  try {
    Session session({.spool = {.directory = directory.path()}});
    const auto step = session.step();
    static_cast<void>(at::ones({2}));
    throw std::runtime_error("the model's");
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "the model's");
  }
  EXPECT_FALSE(std::filesystem::exists(directory.path() / "rank0.pt.trace.json.gz"));
  const trace::Spool spool = trace::read_spool(directory.path() / "rank0.spool");
  EXPECT_FALSE(spool.ended);
  EXPECT_THAT(spool.records, testing::Not(testing::IsEmpty()));
}

TEST(SessionTest, StepsMayBeAskedForWhileItRuns) {
  const TestDirectory directory;
  SessionOptions options{.spool = {.directory = directory.path()}};
  options.spool.on_request = true;
  Session session(std::move(options));
  for (int k = 0; k < 6; ++k) {
    if (k == 3) {
      session.spool().request(2);
    }
    const auto step = session.step();
  }
  EXPECT_THAT(names(trace::read_kineto(session.finish()), trace::Category::kUserAnnotation),
              testing::ElementsAre("ProfilerStep#3", "ProfilerStep#4"));
}

TEST(SessionTest, ADirectoryThatCannotBeMadeIsNamed) {
  const TestDirectory directory;
  std::ofstream(directory.path() / "file") << "x";
  try {
    const Session session({.spool = {.directory = directory.path() / "file" / "out"}});
    ADD_FAILURE() << "the session was constructed";
  } catch (const RuntimeFault& fault) {
    EXPECT_THAT(fault.what(), testing::HasSubstr("file/out"));
  }
}

}  // namespace
}  // namespace shardlens::record
