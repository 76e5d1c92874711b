// Device records in a spool, worked out by hand: the trace that they must give.

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>

#include "profiler/analysis/figures/exposed_time.h"
#include "profiler/analysis/figures/window_figures.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/kineto/kineto_reader.h"
#include "profiler/trace/kineto/kineto_writer.h"
#include "profiler/trace/model/owner.h"
#include "profiler/trace/spool/spool_trace.h"
#include "tests/profiler/record/device_records.h"
#include "tests/profiler/record/recorded_run.h"

namespace shardlens::record {
namespace {

using trace::Category;
using trace::Event;
using trace::Section;
using trace::Trace;

Trace by_hand() {
  DeviceSpool spool;
  fill_by_hand(spool);
  return spool.trace();
}

std::vector<Event> of_category(const Trace& trace, Category category) {
  std::vector<Event> found;
  std::copy_if(trace.events.begin(), trace.events.end(), std::back_inserter(found),
               [&](const Event& event) { return event.category == category; });
  return found;
}

TEST(DeviceSpoolTest, KernelsAreOnTheirStreamWithArgumentsAsKinetos) {
  const Trace trace = by_hand();
  const auto kernels = of_category(trace, Category::kKernel);
  ASSERT_EQ(kernels.size(), 4U);
  EXPECT_EQ(trace.tracks[kernels[0].track].pid, 0);
  const nlohmann::json json = nlohmann::json::parse(to_kineto_json(trace));
  const auto& events = json.at("traceEvents");
  const auto gemm = std::find_if(events.begin(), events.end(), [](const nlohmann::json& e) {
    return e.value("cat", "") == "kernel" && e.at("name") == "gemm";
  });
  ASSERT_NE(gemm, events.end());
  EXPECT_EQ(gemm->at("tid"), 7);
  const nlohmann::json& args = gemm->at("args");
  EXPECT_EQ(args.at("grid"), nlohmann::json::parse("[4, 2, 1]"));
  EXPECT_EQ(args.at("block"), nlohmann::json::parse("[256, 1, 1]"));
  EXPECT_EQ(args.at("registers per thread"), 32);
  EXPECT_EQ(args.at("shared memory"), 1024);
  EXPECT_EQ(args.at("device"), 0);
  EXPECT_EQ(args.at("context"), 1);
  EXPECT_EQ(args.at("stream"), 7);
  EXPECT_EQ(args.at("queued"), 0);
  EXPECT_DOUBLE_EQ(args.at("blocks per SM"), 2);  // 8 blocks on 4 multiprocessors
  EXPECT_DOUBLE_EQ(args.at("warps per SM"), 16);  // of 8 warps
  EXPECT_EQ(args.at("est. achieved occupancy %"), 25);
  EXPECT_EQ(json.at("deviceProperties").at(0).at("numSms"), 4);
}

TEST(DeviceSpoolTest, EveryKernelHasItsLaunchAFlowAndAHull) {
  const Trace trace = by_hand();
  for (const Category category : {Category::kKernel, Category::kGpuMemcpy}) {
    for (const Event& event : of_category(trace, category)) {
      const auto launches = of_category(trace, Category::kCudaRuntime);
      EXPECT_EQ(
          std::count_if(launches.begin(), launches.end(),
                        [&](const Event& call) { return call.correlation == event.correlation; }),
          1);
      int starts = 0, ends = 0;
      for (const Event& flow : of_category(trace, Category::kAc2g)) {
        if (flow.correlation == event.correlation) {
          starts += flow.phase == trace::EventPhase::kFlowStart ? 1 : 0;
          ends += flow.phase == trace::EventPhase::kFlowEnd && flow.start == event.start ? 1 : 0;
        }
      }
      EXPECT_EQ(starts, 1);
      EXPECT_EQ(ends, 1);
    }
  }
  std::vector<std::string> hulls;
  for (const Event& hull : of_category(trace, Category::kGpuUserAnnotation)) {
    hulls.emplace_back(trace.name(hull));
  }
  EXPECT_THAT(hulls, testing::UnorderedElementsAre("FSDP::all_gather (layers.0)",
                                                   "FSDP::all_gather (layers.1)",
                                                   "shardlens::forward", "Optimizer.step"));
}

TEST(DeviceSpoolTest, ACollectivesKernelsTakeItsArguments) {
  const Trace trace = by_hand();
  int found = 0;
  for (const Event& event : of_category(trace, Category::kKernel)) {
    const trace::CollectiveArgs* args = trace.collective(event);
    if (args == nullptr) {
      EXPECT_THAT(std::string(trace.name(event)), testing::Not(testing::StartsWith("nccl")));
      continue;
    }
    ++found;
    EXPECT_EQ(trace.strings.view(args->collective), "_allgather_base");
    EXPECT_EQ(args->in_nelems, 500);
    EXPECT_EQ(args->out_nelems, 1000);
    EXPECT_EQ(trace.strings.view(args->group_ranks), "[0, 1]");
    ASSERT_NE(trace.device(event), nullptr);
    EXPECT_EQ(trace.device(event)->stream, 20);
  }
  EXPECT_EQ(found, 2);
  const auto ops = of_category(trace, Category::kCpuOp);
  EXPECT_EQ(std::count_if(ops.begin(), ops.end(),
                          [&](const Event& e) { return trace.name(e) == "record_param_comms"; }),
            2);
}

// By hand: all-gathers run 1300-2300 and 2300-3300; layers.0's kernel 2300-2800, the optimizer's
// 3400-3500, the copy 3600-3650. Communication 2000, 500 of them under compute: 1500 exposed.
TEST(DeviceSpoolTest, ExposedCommunicationIsThatWorkedByHand) {
  const Trace trace = by_hand();
  const analysis::Timeline timeline = analysis::make_timeline(trace);
  ASSERT_TRUE(timeline.device);
  const analysis::Partition partition(timeline);
  const analysis::WindowFigures figures = partition.figures(timeline.span);
  EXPECT_EQ(figures.duration(), 2350);
  EXPECT_EQ(figures.comm, 2000);
  EXPECT_EQ(figures.compute, 600);
  EXPECT_EQ(figures.exposed_comm, 1500);
  EXPECT_EQ(figures.exposed_copy, 50);
}

// The same in microseconds, HTA's resolution: 500 of 2000 under compute. HTA counts a stream's wait
// (1087-1088) as a kernel that computes, in PyTorch's traces too: span 1087-3650, compute 601,
// copies and exposed communication 1550, idle the remaining 412.
TEST(DeviceSpoolTest, HolisticTraceAnalysisFindsTheSame) {
  const char* python = std::getenv("SHARDLENS_TEST_PYTHON");
  DeviceSpool spool(1000);
  fill_by_hand(spool);
  const TestDirectory directory;
  write_kineto(spool.trace(), directory.path() / "rank1.pt.trace.json.gz");
  const TestDirectory result;
  const std::string command = std::string(python == nullptr ? "python3" : python) +
                              " " SHARDLENS_SOURCE_DIR "/tests/tools/overlap_in_hta.py " +
                              directory.path().string() + " >" + (result.path() / "out").string() +
                              " 2>/dev/null";
  const int status = std::system(command.c_str());
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
    GTEST_SKIP() << "Holistic Trace Analysis is not installed";
  }
  ASSERT_EQ(status, 0);
  std::string line;
  std::ifstream in(result.path() / "out");
  std::getline(in, line);
  EXPECT_EQ(line, "25.00 412 601 1550");
}

TEST(DeviceSpoolTest, UnitsAreThoseThatTheLaunchWasFor) {
  const Trace trace = by_hand();
  for (const Event& event : of_category(trace, Category::kKernel)) {
    const auto owner = trace::owner_of_external_id(event.external_id);
    ASSERT_TRUE(owner) << trace.name(event);
    const bool optimizer = trace.name(event) == "adamw";
    EXPECT_EQ(owner->section, optimizer ? Section::kOptimizer : Section::kForward);
    EXPECT_EQ(owner->unit == kNoUnit, optimizer);
  }
}

// The host makes the compute stream wait at 1090; the kernel that needs the parameters is launched
// at 1300, when its stream is free.
TEST(DeviceSpoolTest, AGatherIsNeededWhenTheDeviceCouldGoOn) {
  using schedule::Op;
  using schedule::Stream;
  DeviceSpool spool;
  spool.step(0, 1000, 4000);
  spool.range(Range::kPreForward, 1, 1020, 1200);
  spool.range(Range::kAllGather, 1, 1030, 1080);
  spool.action(1, action_of(Op::kAllGather, Stream::kAllGather, 1), 1030);
  spool.gather(1, 0, 1040, 1070, /*action=*/1);
  spool.call("cudaLaunchKernelExC", 4, 1050, 1060);
  spool.kernel("ncclDevKernel_AllGather_RING_LL", 4, 20, 1300, 2300);
  spool.action(2, action_of(Op::kRecord, Stream::kAllGather, 1, 9), 1082);
  spool.action(3, action_of(Op::kStreamWait, Stream::kCompute, 1, 9), 1090);
  spool.call("cudaLaunchKernel", 9, 1300, 1310);
  spool.kernel("gemm", 9, 7, 2300, 2800);
  spool.range(Range::kPostForward, 1, 1400, 1410);
  const analysis::Timeline timeline = analysis::make_timeline(spool.trace());
  ASSERT_EQ(timeline.collectives.size(), 1U);
  EXPECT_EQ(timeline.collectives[0].issued_by, schedule::Cause::kOwn);
  EXPECT_EQ(timeline.collectives[0].needed_at, 1300);
}

// A query is not a wait, although CUPTI has a record of the same kind for both.
TEST(DeviceSpoolTest, AStreamThatWaitsSaysForWhichRecord) {
  const Trace trace = by_hand();
  const auto syncs = of_category(trace, Category::kCudaSync);
  ASSERT_EQ(syncs.size(), 2U);
  const trace::SyncArgs* wait = trace.sync(syncs[0]);
  ASSERT_NE(wait, nullptr);
  EXPECT_EQ(wait->kind, trace::SyncKind::kStreamWaitEvent);
  EXPECT_EQ(wait->stream, 7);
  EXPECT_EQ(wait->wait_on_stream, 20);
  EXPECT_EQ(wait->wait_on_record, 5U);
  EXPECT_EQ(wait->device, 0);
  const trace::SyncArgs* host = trace.sync(syncs[1]);
  EXPECT_EQ(host->kind, trace::SyncKind::kContext);
  EXPECT_EQ(host->stream, -1);
}

TEST(DeviceSpoolTest, KinetosJsonSaysTheSame) {
  const Trace trace = by_hand();
  const Trace read = trace::parse_kineto(to_kineto_json(trace), "by hand");
  ASSERT_EQ(read.events.size(), trace.events.size());
  for (size_t i = 0; i < read.events.size(); ++i) {
    const Event &a = trace.events[i], &b = read.events[i];
    EXPECT_EQ(read.name(b), trace.name(a));
    EXPECT_EQ(b.start, a.start);
    EXPECT_EQ(b.external_id, a.external_id);
    EXPECT_EQ(b.correlation, a.correlation);
    EXPECT_EQ(b.category, a.category);
  }
  const analysis::Timeline timeline = analysis::make_timeline(read);
  EXPECT_EQ(analysis::Partition(timeline).figures(timeline.span).exposed_comm, 1500);
}

TEST(DeviceSpoolTest, WhatWasLostIsSaid) {
  DeviceSpool spool;
  spool.recorder().device_dropped(3);
  spool.recorder().device_dropped(12);
  spool.recorder().note("no device records: another tool, Nsight Systems, records this process");
  spool.recorder().note("no device records: another tool, Nsight Systems, records this process");
  const Trace trace = spool.trace();
  std::vector<std::pair<std::string, int64_t>> said;
  for (const trace::Diagnostic& diagnostic : trace.diagnostics) {
    said.emplace_back(diagnostic.message, diagnostic.count);
  }
  EXPECT_THAT(said, testing::UnorderedElementsAre(
                        testing::Pair(testing::HasSubstr("records of the device were lost"), 12),
                        testing::Pair(testing::HasSubstr("Nsight Systems"), 1)));
}

TEST(DeviceSpoolTest, WithoutItsLaunchAKernelStaysAndIsNobodys) {
  DeviceSpool spool;
  spool.kernel("lost", 99, 7, 1000, 2000);
  const Trace trace = spool.trace();
  const auto kernels = of_category(trace, Category::kKernel);
  ASSERT_EQ(kernels.size(), 1U);
  EXPECT_EQ(kernels[0].external_id, 0U);
  EXPECT_THAT(of_category(trace, Category::kAc2g), testing::IsEmpty());
}

TEST(OwnerTest, IdsComeBack) {
  for (const Section section : {Section::kForward, Section::kLoss, Section::kBackward,
                                Section::kClip, Section::kOptimizer}) {
    for (const UnitId unit : {UnitId{0}, UnitId{1}, UnitId{70000}, kNoUnit}) {
      const trace::Owner owner{section, unit};
      EXPECT_EQ(trace::owner_of_external_id(external_id_of(owner)), owner);
    }
  }
  EXPECT_EQ(trace::external_id_of({}), 0U);
  EXPECT_FALSE(trace::owner_of_external_id(0));
  EXPECT_FALSE(trace::owner_of_external_id(7));
}

}  // namespace
}  // namespace shardlens::record
