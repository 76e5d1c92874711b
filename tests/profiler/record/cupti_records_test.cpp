// Buffers made of CUPTI's own structs, read by CUPTI's own cuptiActivityGetNextRecord, which needs
// no driver.

#include "profiler/record/device/cupti_records.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "profiler/analysis/figures/window_figures.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/analysis/units/unit_work.h"
#include "profiler/trace/kineto/kineto_reader.h"
#include "profiler/trace/kineto/kineto_writer.h"
#include "profiler/trace/model/owner.h"
#include "profiler/trace/spool/spool_trace.h"
#include "tests/profiler/record/cupti_bytes.h"
#include "tests/profiler/record/recorded_run.h"

namespace shardlens::record {
namespace {

using trace::Category;
using trace::Event;
using trace::Section;
using trace::Trace;

class ActivityParserTest : public testing::Test {
 protected:
  Trace trace() {
    EXPECT_EQ(parser_.parse(buffer_.data(), buffer_.size()), CUPTI_SUCCESS);
    recorder_.finish();
    return spool_to_trace(trace::read_spool(recorder_.path()));
  }
  static std::vector<std::string> names(const Trace& trace, Category category) {
    std::vector<std::string> found;
    for (const Event& event : trace.events) {
      if (event.category == category) {
        found.emplace_back(trace.name(event));
      }
    }
    return found;
  }
  static const Event& only(const Trace& trace, Category category) {
    const auto found = std::find_if(trace.events.begin(), trace.events.end(),
                                    [&](const Event& e) { return e.category == category; });
    EXPECT_NE(found, trace.events.end());
    return *found;
  }

  TestDirectory directory_;
  SpoolRecorder recorder_{options_in(directory_.path())};
  ActivityParser parser_{recorder_};
  Buffer buffer_;
};

TEST_F(ActivityParserTest, KernelsAreDemangledAndKeepTheirShape) {
  buffer_.add(kernel_of("_ZN2at6native13reduce_kernelILi512EEEvi", 5, 7, 2000, 2500));
  buffer_.add(call_of(kLaunch, 5, 1000, 1100));
  const Trace trace = this->trace();
  EXPECT_THAT(names(trace, Category::kKernel),
              testing::ElementsAre("void at::native::reduce_kernel<512>(int)"));
  EXPECT_THAT(names(trace, Category::kCudaRuntime), testing::ElementsAre("cudaLaunchKernel"));
  const Event& kernel = only(trace, Category::kKernel);
  EXPECT_EQ(kernel.start, 2000);
  EXPECT_EQ(kernel.duration, 500);
  const trace::DeviceArgs* device = trace.device(kernel);
  ASSERT_NE(device, nullptr);
  ASSERT_NE(device->launch, trace::kNoIndex);
  const trace::LaunchArgs& launch = trace.launches.at(device->launch);
  EXPECT_THAT(launch.grid, testing::ElementsAre(4, 2, 1));
  EXPECT_THAT(launch.block, testing::ElementsAre(256, 1, 1));
  EXPECT_EQ(launch.registers, 32);
  EXPECT_EQ(launch.shared_memory, 1024U);
  EXPECT_EQ(trace.tracks[only(trace, Category::kCudaRuntime).track].tid, ::getpid());
}

TEST_F(ActivityParserTest, CopiesAndMemsetsHaveKinetosNames) {
  CUpti_ActivityMemcpy6 copy{};
  copy.kind = CUPTI_ACTIVITY_KIND_MEMCPY;
  copy.copyKind = CUPTI_ACTIVITY_MEMCPY_KIND_HTOD;
  copy.srcKind = CUPTI_ACTIVITY_MEMORY_KIND_PINNED;
  copy.dstKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
  copy.bytes = 4000;
  copy.start = 100;
  copy.end = 300;
  buffer_.add(copy);
  CUpti_ActivityMemcpyPtoP4 peer{};
  peer.kind = CUPTI_ACTIVITY_KIND_MEMCPY2;
  peer.copyKind = CUPTI_ACTIVITY_MEMCPY_KIND_PTOP;
  peer.srcKind = peer.dstKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
  peer.start = 400;
  peer.end = 500;
  buffer_.add(peer);
  CUpti_ActivityMemset4 set{};
  set.kind = CUPTI_ACTIVITY_KIND_MEMSET;
  set.memoryKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
  set.start = 600;
  set.end = 700;
  buffer_.add(set);
  const Trace trace = this->trace();
  EXPECT_THAT(
      names(trace, Category::kGpuMemcpy),
      testing::ElementsAre("Memcpy HtoD (Pinned -> Device)", "Memcpy PtoP (Device -> Device)"));
  EXPECT_THAT(names(trace, Category::kGpuMemset), testing::ElementsAre("Memset (Device)"));
  EXPECT_EQ(trace.device(only(trace, Category::kGpuMemcpy))->bytes, 4000);
  EXPECT_THAT(to_kineto_json(trace), testing::HasSubstr("\"memory bandwidth (GB/s)\": 20"));
}

TEST_F(ActivityParserTest, WaitsOverheadAndMemory) {
  buffer_.add(kernel_of("k", 9, 7, 50, 60));
  CUpti_ActivityCudaEvent2 event{};
  event.kind = CUPTI_ACTIVITY_KIND_CUDA_EVENT;
  event.correlationId = 11;
  event.contextId = 1;
  event.streamId = 20;
  event.eventId = 4;
  buffer_.add(event);
  CUpti_ActivitySynchronization2 wait{};
  wait.kind = CUPTI_ACTIVITY_KIND_SYNCHRONIZATION;
  wait.type = CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT;
  wait.start = 100;
  wait.end = 101;
  wait.correlationId = 12;
  wait.contextId = 1;
  wait.streamId = 7;
  wait.cudaEventId = 4;  // without cudaEventSyncId: the last record of event 4
  buffer_.add(wait);
  wait.type = CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE;
  wait.start = 200;
  wait.end = 300;
  wait.streamId = CUPTI_SYNCHRONIZATION_INVALID_VALUE;
  buffer_.add(wait);
  CUpti_ActivityOverhead3 overhead{};
  overhead.kind = CUPTI_ACTIVITY_KIND_OVERHEAD;
  overhead.overheadKind = CUPTI_ACTIVITY_OVERHEAD_CUPTI_BUFFER_FLUSH;
  overhead.start = 400;
  overhead.end = 450;
  buffer_.add(overhead);
  CUpti_ActivityMemory4 memory{};
  memory.kind = CUPTI_ACTIVITY_KIND_MEMORY2;
  memory.memoryKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
  memory.memoryOperationType = CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_ALLOCATION;
  memory.bytes = 1000;
  memory.timestamp = 500;
  buffer_.add(memory);
  memory.memoryOperationType = CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_RELEASE;
  memory.bytes = 400;
  memory.timestamp = 600;
  buffer_.add(memory);
  const Trace trace = this->trace();
  EXPECT_THAT(names(trace, Category::kCudaSync),
              testing::ElementsAre("Stream Wait Event", "Context Sync"));
  const trace::SyncArgs* sync = trace.sync(only(trace, Category::kCudaSync));
  EXPECT_EQ(sync->wait_on_stream, 20);
  EXPECT_EQ(sync->wait_on_record, 11U);
  EXPECT_EQ(sync->wait_on_event, 4);
  EXPECT_THAT(names(trace, Category::kOverhead), testing::ElementsAre("Buffer Flush"));
  ASSERT_EQ(trace.memory_events.size(), 2U);
  EXPECT_EQ(trace.memory_events[1].bytes, -400);
  EXPECT_EQ(trace.memory_events[1].total_reserved, 600);
}

TEST_F(ActivityParserTest, RangesOfOthersAreAnnotationsOursAreCounted) {
  const auto marker = [&](uint32_t id, CUpti_ActivityFlag flag, uint64_t time, const char* name,
                          const char* domain) {
    CUpti_ActivityMarker2 m{};
    m.kind = CUPTI_ACTIVITY_KIND_MARKER;
    m.flags = flag;
    m.id = id;
    m.timestamp = time;
    m.name = name;
    m.domain = domain;
    m.objectId.pt.threadId = 77;
    buffer_.add(m);
  };
  marker(1, CUPTI_ACTIVITY_FLAG_MARKER_START, 100, "ncclAllGather", "NCCL");
  marker(2, CUPTI_ACTIVITY_FLAG_MARKER_START, 110, "FSDP::all_gather", "shardlens");
  marker(2, CUPTI_ACTIVITY_FLAG_MARKER_END, 120, nullptr, "shardlens");
  marker(1, CUPTI_ACTIVITY_FLAG_MARKER_END, 130, nullptr, "NCCL");
  marker(3, CUPTI_ACTIVITY_FLAG_MARKER_END, 140, nullptr, nullptr);  // began before recording
  const Trace trace = this->trace();
  EXPECT_THAT(names(trace, Category::kUserAnnotation), testing::ElementsAre("ncclAllGather"));
  const Event& range = only(trace, Category::kUserAnnotation);
  EXPECT_EQ(range.start, 100);
  EXPECT_EQ(range.end(), 130);
  EXPECT_EQ(trace.tracks[range.track].tid, 77);
  EXPECT_EQ(parser_.own_ranges(), 1);
}

TEST_F(ActivityParserTest, GraphsAreKernelsWithTheirNodeOrOneEvent) {
  CUpti_ActivityKernel10 node = kernel_of("k", 3, 7, 100, 200);
  node.graphId = 2;
  node.graphNodeId = 17;
  buffer_.add(node);
  CUpti_ActivityGraphTrace2 whole{};
  whole.kind = CUPTI_ACTIVITY_KIND_GRAPH_TRACE;
  whole.graphId = 6;
  whole.streamId = 7;
  whole.correlationId = 8;
  whole.start = 300;
  whole.end = 400;
  buffer_.add(whole);
  const Trace trace = this->trace();
  EXPECT_THAT(names(trace, Category::kKernel), testing::ElementsAre("k", "CUDA graph 6"));
  const trace::DeviceArgs* device = trace.device(only(trace, Category::kKernel));
  EXPECT_EQ(device->graph, 2);
  EXPECT_EQ(device->graph_node, 17);
}

TEST_F(ActivityParserTest, WhatCuptiDidNotTimeIsCounted) {
  buffer_.add(kernel_of("k", 3, 7, 0, 0));
  buffer_.add(kernel_of("k", 3, 7, 500, 400));
  EXPECT_THAT(names(trace(), Category::kKernel), testing::IsEmpty());
  EXPECT_EQ(parser_.untimed(), 2);
}

// Steps are recorded from 1000 to 2000 and from 5000 to 6000. Work launched in a step is kept,
// however late it ran; work launched before, between or after is not.
TEST_F(ActivityParserTest, WhatWasLaunchedWithinAWindowIsKept) {
  parser_.begin_window(1000);
  parser_.end_window(2000);
  parser_.begin_window(5000);
  parser_.end_window(6000);
  const auto launch = [&](const char* name, uint32_t id, uint64_t called, uint64_t ran) {
    buffer_.add(call_of(kLaunch, id, called, called + 1));
    buffer_.add(kernel_of(name, id, 7, ran, ran + 10));
  };
  launch("first", 3, 1010, 1020);
  launch("runs later", 4, 1990, 2500);
  launch("between", 5, 2600, 2700);
  launch("second", 7, 5020, 5030);
  launch("between, runs in the second", 6, 4990, 5010);
  launch("after", 8, 6000, 6010);
  CUpti_ActivityOverhead3 overhead{};  // has no correlation
  overhead.kind = CUPTI_ACTIVITY_KIND_OVERHEAD;
  overhead.start = overhead.end = 6005;
  buffer_.add(overhead);
  buffer_.add(kernel_of("second, runs last", 7, 7, 6020, 6030));
  const Trace trace = this->trace();
  EXPECT_THAT(names(trace, Category::kKernel),
              testing::ElementsAre("first", "runs later", "second", "second, runs last"));
  EXPECT_EQ(names(trace, Category::kCudaRuntime).size(), 3U);
}

TEST_F(ActivityParserTest, AKernelThatComesBeforeItsCallGoesByItsTime) {
  parser_.begin_window(1000);
  buffer_.add(kernel_of("before", 3, 7, 950, 990));
  buffer_.add(kernel_of("within", 4, 7, 1100, 1200));
  buffer_.add(call_of(kLaunch, 3, 900, 910));
  buffer_.add(call_of(kLaunch, 4, 1010, 1020));
  EXPECT_THAT(names(trace(), Category::kKernel), testing::ElementsAre("within"));
}

TEST_F(ActivityParserTest, DevicesAreDescribed) {
  CUpti_ActivityDevice5 device{};
  device.kind = CUPTI_ACTIVITY_KIND_DEVICE;
  device.name = "NVIDIA H200";
  device.numMultiprocessors = 132;
  device.maxWarpsPerMultiprocessor = 64;
  device.numThreadsPerWarp = 32;
  buffer_.add(device);
  const Trace trace = this->trace();
  EXPECT_THAT(trace.metadata.device_properties,
              testing::AllOf(testing::HasSubstr(R"("name":"NVIDIA H200")"),
                             testing::HasSubstr(R"("numSms":132)"),
                             testing::HasSubstr(R"("maxThreadsPerMultiprocessor":2048)")));
}

// An H200's limits. 256 threads with 32 registers: 8 blocks, all 2048 threads, fit a
// multiprocessor; with 128 registers 2 blocks do, a quarter. 8 blocks for 132 multiprocessors fill
// 0.76 %.
TEST_F(ActivityParserTest, OccupancyIsThatOfTheCalculatorByHand) {
  CUpti_ActivityDevice5 device{};
  device.kind = CUPTI_ACTIVITY_KIND_DEVICE;
  device.name = "NVIDIA H200";
  device.computeCapabilityMajor = 9;
  device.numMultiprocessors = 132;
  device.maxWarpsPerMultiprocessor = 64;
  device.numThreadsPerWarp = 32;
  device.maxThreadsPerBlock = 1024;
  device.maxRegistersPerBlock = device.maxRegistersPerMultiprocessor = 65536;
  device.maxSharedMemoryPerBlock = 49152;
  device.maxSharedMemoryPerMultiprocessor = 233472;
  buffer_.add(device);
  const auto kernel = [&](const char* name, int grid, uint16_t registers) {
    CUpti_ActivityKernel10 k = kernel_of(name, 1, 7, 100, 200);
    k.gridX = grid;
    k.gridY = 1;
    k.registersPerThread = registers;
    k.staticSharedMemory = k.dynamicSharedMemory = 0;
    buffer_.add(k);
  };
  kernel("full", 132 * 100, 32);
  kernel("many registers", 132 * 100, 128);
  kernel("few blocks", 8, 32);
  const Trace trace = this->trace();
  std::vector<int32_t> percent;
  for (const Event& event : trace.events) {
    if (event.category == Category::kKernel) {
      percent.push_back(trace.launches.at(trace.device(event)->launch).occupancy);
    }
  }
  EXPECT_THAT(percent, testing::ElementsAre(100, 25, 1));
}

// A step from buffer to figures: the recorder's own hooks and collective call, and CUPTI's records
// of what they launched. The all-gather takes 1000, the GEMM 600, of which 200 overlap it: 800 are
// exposed.
TEST_F(ActivityParserTest, AStepFromBuffersToFigures) {
  const std::vector<std::string> units{"", "layers.0"};
  recorder_.units(units);
  recorder_.step_begin(0);
  recorder_.range_begin(Range::kPreForward, 1);
  recorder_.hook({.hook = Hook::kPreForward, .unit = 1});
  CollectiveRecord gather = all_gather_of(1, 0, 0, now_ns());
  gather.on_device = true;
  const auto launch = static_cast<uint64_t>(now_ns());
  gather.start = gather.issued;
  gather.end = now_ns() + 1;
  recorder_.collective(gather);
  recorder_.range_end();
  const auto second = std::max(static_cast<uint64_t>(now_ns()), launch + 2);
  while (static_cast<uint64_t>(now_ns()) <= second + 1) {
  }
  recorder_.range_begin(Range::kPostForward, 1);
  recorder_.hook({.hook = Hook::kPostForward, .unit = 1});
  recorder_.range_end();
  recorder_.step_end();
  const auto forward = trace::external_id_of({Section::kForward, 1});
  const uint64_t start = launch + 1'000'000;
  buffer_.add(kernel_of("ncclDevKernel_AllGather_RING_LL", 1, 20, start, start + 1000));
  buffer_.add(call_of(CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernelExC_v11060, 1, launch, launch + 1));
  buffer_.add(external_of(1, forward));
  buffer_.add(kernel_of("gemm", 2, 7, start + 800, start + 1400));
  buffer_.add(call_of(kLaunch, 2, second, second + 1));
  buffer_.add(external_of(2, forward));
  const Trace written = trace();
  const Trace trace = trace::parse_kineto(to_kineto_json(written), "as written");
  const analysis::Timeline timeline = analysis::make_timeline(trace);
  const analysis::WindowFigures figures = analysis::Partition(timeline).figures(timeline.span);
  EXPECT_EQ(figures.comm, 1000);
  EXPECT_EQ(figures.compute, 600);
  EXPECT_EQ(figures.exposed_comm, 800);
  EXPECT_EQ(figures.duration(), 1400);
  ASSERT_EQ(timeline.collectives.size(), 1U);
  const analysis::Collective& collective = timeline.collectives[0];
  EXPECT_EQ(collective.kind, CollectiveKind::kAllGather);
  EXPECT_EQ(collective.unit, 1U);
  EXPECT_EQ(collective.bytes, 2000);
  EXPECT_EQ(collective.issued, static_cast<Nanoseconds>(launch));
  const analysis::UnitWork work = unit_work(timeline, analysis::Partition(timeline), timeline.span);
  ASSERT_EQ(work.by_owner.size(), 1U);
  EXPECT_EQ(work.by_owner.begin()->first, std::pair(Section::kForward, UnitId{1}));
  EXPECT_EQ(work.by_owner.begin()->second.compute, 600);
  EXPECT_THAT(trace.diagnostics, testing::IsEmpty());
}

}  // namespace
}  // namespace shardlens::record
