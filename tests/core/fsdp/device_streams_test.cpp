#include "core/fsdp/run/device_streams.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/model/step_workload.h"
#include "core/plan/plan.h"
#include "core/plan/resolve.h"
#include "core/schedule/planned/planned.h"
#include "core/tree/module_tree.h"
#include "core/workload/workload.h"
#include "tests/core/fsdp/fake_device.h"

namespace shardlens::fsdp {
namespace {

using schedule::Stream;
using test::fake;
using test::kFakeDevice;
using testing::ElementsAre;
using testing::HasSubstr;

class DeviceStreamsTest : public testing::Test {
 protected:
  void SetUp() override { fake = {}; }
  void TearDown() override { fake.finished = true; }  // else the destructor waits
  DeviceStreams& streams() {
    if (!streams_) {
      streams_.emplace(kFakeDevice, std::chrono::milliseconds(30));
      fake.log.clear();
    }
    return *streams_;
  }
  // Retires new memory. The result expires when the memory is freed.
  std::weak_ptr<void> retired(Stream first, Stream last) {
    auto memory = std::make_shared<int>(1);
    std::weak_ptr<void> watch = memory;
    streams().retire(std::move(memory), first, last);
    return watch;
  }
  std::optional<DeviceStreams> streams_;
};

TEST_F(DeviceStreamsTest, PrioritiesArePyTorchs) {
  const DeviceStreams own(kFakeDevice, std::chrono::milliseconds(30));
  // copy-in, all-gather, reduce-scatter, all-reduce, host copies; compute is the current stream.
  EXPECT_THAT(fake.log, ElementsAre("high 1", "high 2", "high 3", "low 4", "high 5"));
  EXPECT_EQ(own.of(Stream::kCompute).id(), 0);
  EXPECT_EQ(own.of(Stream::kAllGather).id(), 2);
  fake.finished = true;
}

TEST_F(DeviceStreamsTest, EventsGoOneToOne) {
  streams().issued(Stream::kAllGather);
  streams().record(7, Stream::kAllGather);
  streams().wait(7, Stream::kCompute);
  streams().record(7, Stream::kAllGather);  // again: a wait is for the latest record
  streams().wait(7, Stream::kReduceScatter);
  EXPECT_THAT(fake.log,
              ElementsAre("record 0 on 2", "0 waits for 0", "record 0 on 2", "3 waits for 0"));
}

TEST_F(DeviceStreamsTest, AStreamIsPutBehindAnother) {
  const auto memory = retired(Stream::kReduceScatter, Stream::kCompute);
  fake.log.clear();
  streams().order(Stream::kReduceScatter, Stream::kCompute);
  EXPECT_THAT(fake.log, ElementsAre("record 1 on 0", "3 waits for 1"));
  EXPECT_TRUE(memory.expired());
}

TEST_F(DeviceStreamsTest, AWaitForWhatWasNeverRecordedIsOurOwnFault) {
  streams().record(1, Stream::kCompute);
  EXPECT_THROW(streams().wait(0, Stream::kAllGather), RuntimeFault);
}

// Compute reads memory of the all-gather's stream, which may reuse it only after that read.
TEST_F(DeviceStreamsTest, MemoryIsHeldUntilItsStreamIsBehindItsLastUse) {
  streams().record(0, Stream::kCompute);  // before the last use: does not cover it
  const auto memory = retired(Stream::kAllGather, Stream::kCompute);
  EXPECT_EQ(streams().held(), 1);
  streams().wait(0, Stream::kAllGather);
  EXPECT_FALSE(memory.expired());
  streams().record(1, Stream::kCompute);
  streams().wait(1, Stream::kReduceScatter);  // a wait of another stream
  EXPECT_FALSE(memory.expired());
  streams().record(2, Stream::kReduceScatter);
  streams().wait(2, Stream::kAllGather);  // after reduce-scatter, which is after compute
  EXPECT_TRUE(memory.expired());
  EXPECT_EQ(streams().held(), 0);
}

// As when FSDP2 frees a reduction's input: compute has already waited for the reduction.
TEST_F(DeviceStreamsTest, MemoryThatIsOrderedAlreadyGoesAtOnce) {
  streams().issued(Stream::kReduceScatter);
  streams().record(0, Stream::kReduceScatter);
  streams().wait(0, Stream::kCompute);
  EXPECT_TRUE(retired(Stream::kCompute, Stream::kReduceScatter).expired());
  streams().issued(Stream::kReduceScatter);  // the next reduction: no stream has waited for it
  EXPECT_FALSE(retired(Stream::kCompute, Stream::kReduceScatter).expired());
}

TEST_F(DeviceStreamsTest, MemoryOfOneStreamGoesAtOnce) {
  EXPECT_TRUE(retired(Stream::kCompute, Stream::kCompute).expired());
}

TEST_F(DeviceStreamsTest, MemoryThatTheDeviceIsThroughWithGoesToo) {
  const auto memory = retired(Stream::kAllGather, Stream::kCompute);
  fake.finished = true;
  static_cast<void>(retired(Stream::kAllGather, Stream::kCompute));  // checks all retired memory
  EXPECT_TRUE(memory.expired());
}

// After the host has waited for the device, between two steps.
TEST_F(DeviceStreamsTest, MemoryThatTheDeviceIsThroughWithGoesWhenAsked) {
  const auto memory = retired(Stream::kAllGather, Stream::kCompute);
  streams().let_go();
  EXPECT_FALSE(memory.expired());
  fake.finished = true;
  streams().let_go();
  EXPECT_TRUE(memory.expired());
}

TEST_F(DeviceStreamsTest, TheHostWaitsNoLongerThanItsTimeout) {
  streams().record(0, Stream::kAllGather);
  try {
    streams().host_wait(0);
    FAIL() << "host_wait() returned";
  } catch (const RuntimeFault& fault) {
    EXPECT_THAT(fault.what(), HasSubstr("did not finish"));
  }
  fake.finished = true;
  streams().host_wait(0);
}

TEST_F(DeviceStreamsTest, HostWaitsOrderAllStreams) {
  const auto memory = retired(Stream::kAllGather, Stream::kCompute);
  streams().record(0, Stream::kCompute);
  fake.finished = true;
  streams().host_wait(0);
  EXPECT_TRUE(memory.expired());
}

struct Case {
  const char* name;
  plan::Dialect dialect;
  plan::Layout layout;
};

void PrintTo(const Case& each, std::ostream* out) {
  *out << each.name;
}

class PlannedMemoryTest : public DeviceStreamsTest, public testing::WithParamInterface<Case> {
 protected:
  // The largest number of blocks held at once in three steps with that many layers, on a device
  // that never completes anything by itself.
  size_t most_held(int64_t layers) {
    plan::ModelConfig config =
        plan::load_model_config(std::string(SHARDLENS_TEST_DATA) + "/llama-tiny");
    config.layers = layers;
    const plan::ModuleTree tree = plan::module_tree(config);
    plan::Plan plan = plan::strategy_plan("full_shard", tree);
    plan.dialect = GetParam().dialect;
    plan.layout = GetParam().layout;
    const plan::ResolvedPlan resolved = plan::resolve(plan, tree, 2);
    const plan::Workload workload = plan::step_workload(config, resolved, {.batch = 1, .seq = 8});
    std::map<std::pair<schedule::BufferKind, UnitId>, Stream> allocated_on;
    streams_.reset();
    size_t most = 0;
    for (int step = 1; step <= 3; ++step) {
      for (const auto& planned : schedule::planned_step(workload, resolved, step).actions) {
        const schedule::Action& action = planned.action;
        perform(action, allocated_on[{action.buffer.kind, action.buffer.unit}]);
        most = std::max(most, streams().held());
      }
    }
    fake.finished = true;
    streams_.reset();
    fake.finished = false;
    return most;
  }

 private:
  void perform(const schedule::Action& action, Stream& allocated_on) {
    switch (action.op) {
      case schedule::Op::kAlloc:
        allocated_on = action.stream;
        return streams().issued(action.stream);
      case schedule::Op::kFree:
        static_cast<void>(retired(allocated_on, action.stream));
        return;
      case schedule::Op::kRecord:
        return streams().record(action.event, action.stream);
      case schedule::Op::kStreamWait:
        return streams().wait(action.event, action.stream);
      case schedule::Op::kHostWait:  // FSDP1's limiter
        fake.finished = true;
        streams().host_wait(action.event);
        fake.finished = false;
        return;
      default:
        return streams().issued(action.stream);
    }
  }
};

// The schedule's own waits are enough to bound the memory held, whatever the depth of the model.
TEST_P(PlannedMemoryTest, TheSchedulesOwnWaitsLetItGo) {
  const size_t shallow = most_held(4);
  EXPECT_GT(shallow, 0);
  EXPECT_LE(shallow, 6);
  EXPECT_EQ(most_held(12), shallow);
}
INSTANTIATE_TEST_SUITE_P(
    Dialects,
    PlannedMemoryTest,
    testing::Values(Case{"fsdp2_flat", plan::Dialect::kFsdp2, plan::Layout::kFlat},
                    Case{"fsdp2_per_parameter", plan::Dialect::kFsdp2, plan::Layout::kPerParameter},
                    Case{"fsdp1_flat", plan::Dialect::kFsdp1, plan::Layout::kFlat}),
    [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace shardlens::fsdp
