#include "profiler/record/device/device_recorder.h"

#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "profiler/trace/model/owner.h"
#include "tests/profiler/record/recorded_run.h"

namespace shardlens::record {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using trace::Section;

// Records the calls that it gets.
class Tracer : public DeviceTracer {
 public:
  void begin_window() override { calls.emplace_back("begin"); }
  void end_window() override { calls.emplace_back("end"); }
  void enable(bool on) override { calls.emplace_back(on ? "on" : "off"); }
  void flush() override { calls.emplace_back("flush"); }
  int64_t finish(bool /*wait*/) override { return 0; }
  void push(uint64_t id) override {
    const auto owner = trace::owner_of_external_id(id);
    std::string text(name_of(owner->section));
    if (owner->unit != kNoUnit) {
      text += " " + std::to_string(owner->unit);
    }
    pushed.push_back(text);
    ++depth;
  }
  void pop() override { --depth; }

  std::vector<std::string> calls, pushed;
  int depth = 0;
};

class DeviceRecorderTest : public testing::Test {
 protected:
  void hook(Hook hook, UnitId unit, bool recompute = false) {
    recorder_.hook({.hook = hook, .unit = unit, .recompute = recompute});
  }
  std::vector<std::string> take() { return std::exchange(tracer_.pushed, {}); }

  TestDirectory directory_;
  SpoolRecorder spool_{options_in(directory_.path())};
  Tracer tracer_;
  DeviceRecorder recorder_{spool_, &tracer_};
};

TEST_F(DeviceRecorderTest, AStepsPhasesAndUnits) {
  recorder_.step_begin(0);
  EXPECT_THAT(take(), IsEmpty());
  hook(Hook::kRootPreForward, 0);
  hook(Hook::kPreForward, 0);
  hook(Hook::kPreForward, 1);
  hook(Hook::kPostForward, 1);  // back in the root
  hook(Hook::kPreForward, 2);
  hook(Hook::kPostForward, 2);
  hook(Hook::kPostForward, 0);
  EXPECT_THAT(take(),
              ElementsAre("forward 0", "forward 1", "forward 0", "forward 2", "forward 0", "loss"));
  hook(Hook::kPreBackward, 0);
  hook(Hook::kPreBackward, 2);
  hook(Hook::kGradsReady, 2);
  hook(Hook::kPreBackward, 1);
  hook(Hook::kPreForward, 1, /*recompute=*/true);  // a checkpoint's recomputation: still backward
  hook(Hook::kGradsReady, 1);
  hook(Hook::kGradsReady, 0);
  EXPECT_THAT(take(),
              ElementsAre("backward 0", "backward 2", "backward 0", "backward 1", "backward 0"));
  hook(Hook::kBackwardEnd, 0);
  { const RangeScope clip(&recorder_, Range::kClip); }
  { const RangeScope optimizer(&recorder_, Range::kOptimizer); }
  EXPECT_THAT(take(), ElementsAre("clip", "optimizer"));
  recorder_.step_end();
  EXPECT_EQ(tracer_.depth, 0);
}

TEST_F(DeviceRecorderTest, APrefetchBelongsToTheUnitThatItGathers) {
  recorder_.step_begin(0);
  hook(Hook::kPreForward, 1);
  {
    const RangeScope range(&recorder_, Range::kPreForward, 1);
    const RangeScope gather(&recorder_, Range::kAllGather, 2);
  }
  EXPECT_THAT(take(), ElementsAre("forward 1", "forward 2", "forward 1"));
}

// Before any hook runs on autograd's thread, that thread launches work of the loss.
TEST_F(DeviceRecorderTest, AnotherThreadTakesOverAtItsFirstOperator) {
  recorder_.step_begin(0);
  hook(Hook::kPreForward, 0);
  hook(Hook::kPostForward, 0);
  EXPECT_THAT(take(), ElementsAre("forward 0", "loss"));
  std::thread backward([&] {
    spool_.before_launch();
    spool_.before_launch();
    hook(Hook::kPreBackward, 0);
    spool_.before_launch();
  });
  backward.join();
  EXPECT_THAT(take(), ElementsAre("loss", "backward 0"));
  hook(Hook::kBackwardEnd, 0);
  EXPECT_THAT(take(), IsEmpty());
}

TEST(DeviceWindowTest, TheTracerIsOnForRecordedStepsAlone) {
  const TestDirectory directory;
  SpoolOptions options = options_in(directory.path());
  options.on_request = true;
  SpoolRecorder spool(options);
  Tracer tracer;
  DeviceRecorder recorder(spool, &tracer);
  const auto step = [&](int64_t k) {
    recorder.step_begin(k);
    recorder.hook({.hook = Hook::kPreForward, .unit = 0});
    recorder.step_end();
  };
  step(0);
  EXPECT_THAT(tracer.calls, IsEmpty());
  EXPECT_THAT(tracer.pushed, IsEmpty());
  spool.request(2);
  step(1);
  step(2);
  EXPECT_THAT(tracer.calls, ElementsAre("on", "begin", "flush", "flush"));
  EXPECT_EQ(tracer.pushed.size(), 2U);
  // Records of work that the device still does for step 2 arrive during step 3.
  step(3);
  step(4);
  step(5);
  EXPECT_THAT(tracer.calls, ElementsAre("on", "begin", "flush", "flush", "end", "flush", "off"));
  spool.request(1);
  step(6);
  EXPECT_THAT(tracer.calls, testing::Contains("on").Times(2));
  spool.finish();
  std::vector<int64_t> steps;
  for (const trace::SpoolRecord& record : trace::read_spool(spool.path()).records) {
    if (record.type == trace::SpoolType::kStepBegin) {
      steps.push_back(record.step.step);
    }
  }
  EXPECT_THAT(steps, ElementsAre(1, 2, 6));
}

TEST(DeviceRecorderWithoutTracerTest, OnlyPassesOn) {
  const TestDirectory directory;
  SpoolRecorder spool(options_in(directory.path()));
  {
    DeviceRecorder recorder(spool, nullptr);
    recorder.step_begin(3);
    recorder.hook({.hook = Hook::kPreForward, .unit = 0});
    recorder.step_end();
  }
  spool.finish();
  EXPECT_EQ(trace::read_spool(spool.path()).records.size(), 3U);
}

TEST(CuptiTest, NamesTheToolThatIsInTheWay) {
  EXPECT_THAT(subscribe_failure(39, "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED",
                                "CUPTI for Nsight Systems"),
              testing::AllOf(testing::HasSubstr("'CUPTI for Nsight Systems' records this process"),
                             testing::Not(testing::HasSubstr("driver"))));
  EXPECT_THAT(subscribe_failure(39, "", ""), testing::HasSubstr("another tool records"));
  EXPECT_THAT(subscribe_failure(39, "", "<not provided>"),
              testing::HasSubstr("another tool records"));
  EXPECT_THAT(subscribe_failure(999, "CUPTI_ERROR_UNKNOWN", ""),
              testing::HasSubstr("CUPTI_ERROR_UNKNOWN, error 999); is an NVIDIA driver loaded"));
}

TEST(CuptiTest, WithoutADriverItSaysSo) {
  if (std::ifstream("/proc/driver/nvidia/version")) {
    GTEST_SKIP() << "this machine has an NVIDIA driver";
  }
  const TestDirectory directory;
  SpoolRecorder spool(options_in(directory.path()));
  for (int attempt = 0; attempt < 2; ++attempt) {  // a failed attempt leaves no lock behind
    try {
      (void)start_cupti(spool);
      ADD_FAILURE() << "start_cupti() succeeded without a driver";
    } catch (const RuntimeFault& fault) {
      EXPECT_THAT(fault.what(), testing::StartsWith("no device records: "));
    }
  }
}

}  // namespace
}  // namespace shardlens::record
