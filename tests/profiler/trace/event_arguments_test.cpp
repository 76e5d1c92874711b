// Arguments that become rows of side tables, as PyTorch writes them for each kind of event.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "profiler/trace/kineto/kineto_reader.h"
#include "profiler/trace/kineto/kineto_writer.h"
#include "profiler/trace/model/annotation.h"

namespace shardlens::trace {
namespace {

Trace parse_events(const std::string& events) {
  return parse_kineto(R"({"distributedInfo": {"rank": 0}, "traceEvents": [)" + events + "]}",
                      "t.json");
}

std::string complete(const std::string& category, const std::string& args) {
  return R"({"ph": "X", "cat": ")" + category +
         R"(", "name": "n", "pid": 0, "tid": 7, "ts": 1, "dur": 2, "args": {)" + args + "}}";
}

TEST(EventArgumentsTest, KernelsSayWhereTheyRanAndWhatLaunchedThem) {
  const Trace trace = parse_events(complete(
      "kernel",
      R"("External id": 12353, "queued": 0, "device": 1, "context": 2, "stream": 7, "correlation": 57541,
         "registers per thread": 40, "grid": [512, 1, 1], "est. achieved occupancy %": 75)"));
  const Event& event = trace.events.at(0);
  EXPECT_EQ(event.external_id, 12353U);
  EXPECT_EQ(event.correlation, 57541U);
  const DeviceArgs* device = trace.device(event);
  ASSERT_NE(device, nullptr);
  EXPECT_EQ(*device, (DeviceArgs{.device = 1, .context = 2, .stream = 7}));
}

TEST(EventArgumentsTest, EqualDeviceRowsAreStoredOnce) {
  std::string events;
  for (int i = 0; i < 100; ++i) {
    events += (i == 0 ? "" : ",") +
              complete("kernel", "\"device\": 0, \"stream\": " + std::to_string(7 + i % 2) +
                                     ", \"correlation\": " + std::to_string(i + 1));
  }
  const Trace trace = parse_events(events);
  EXPECT_EQ(trace.devices.size(), 2U);
  EXPECT_EQ(trace.device(trace.events.at(99))->stream, 8);
}

TEST(EventArgumentsTest, CopiesSayTheirBytesAndGraphsTheirNode) {
  const Trace trace = parse_events(
      complete("gpu_memcpy",
               R"("device": 0, "stream": 20, "bytes": 4096, "memory bandwidth": 12.5)") +
      "," +
      complete("kernel",
               R"("device": 0, "stream": 7, "graph id": 3, "graph node id": 12884901890)"));
  EXPECT_EQ(trace.device(trace.events.at(0))->bytes, 4096);
  EXPECT_EQ(trace.device(trace.events.at(0))->graph_node, -1);
  EXPECT_EQ(trace.device(trace.events.at(1))->graph_node, 12884901890);
  EXPECT_EQ(trace.device(trace.events.at(1))->graph, 3);
}

TEST(EventArgumentsTest, AnnotatedKernelsSayTheirModule) {
  const Trace trace = parse_events(
      complete("kernel", R"("stream": 7, "module_fqn": "layers.0.wq", "graph node id": 5)") + "," +
      complete("kernel", R"("stream": 7, "str": "L.layers.1", "autograd_phase": "backward")") +
      "," + complete("kernel", R"("stream": 7, "str": "layers.1")") + "," +
      complete("kernel", R"("stream": 7, "module_fqn": "")") + "," +
      complete("kernel", R"("stream": 7, "Collective name": "allreduce", "module_fqn": "norm")"));
  const auto module = [&](size_t i) {
    return trace.strings.view(trace.device(trace.events.at(i))->module);
  };
  EXPECT_EQ(module(0), "layers.0.wq");
  EXPECT_FALSE(trace.device(trace.events.at(0))->backward);
  EXPECT_EQ(module(1), "layers.1");
  EXPECT_TRUE(trace.device(trace.events.at(1))->backward);
  EXPECT_EQ(module(2), "") << "a text of the user, not a module";
  EXPECT_EQ(module(3), kRootModule);
  EXPECT_EQ(module(4), "norm");
  const Trace again = parse_kineto(to_kineto_json(trace), "t.json");
  for (size_t i = 0; i < trace.events.size(); ++i) {
    EXPECT_EQ(again.strings.view(again.device(again.events.at(i))->module), module(i));
    EXPECT_EQ(again.device(again.events.at(i))->backward,
              trace.device(trace.events.at(i))->backward);
  }
}

TEST(EventArgumentsTest, TritonOperatorsAndRocmKernelsKeepTheirStream) {
  const Trace trace = parse_events(
      complete("cpu_op", R"("External id": 9, "stream": 0, "grid": "8", "kernel_file": "x.py")") +
      "," +
      complete("kernel",
               R"("kind": "Dispatch Kernel", "stream": 0, "device": 4, "correlation": 5)"));
  EXPECT_EQ(trace.device(trace.events.at(0))->stream, 0);
  EXPECT_EQ(trace.device(trace.events.at(1))->device, 4);
  // In our traces the stream is a word.
  const Trace ours = parse_events(complete("cpu_op", R"("stream": "compute")"));
  EXPECT_EQ(ours.device(ours.events.at(0)), nullptr);
}

TEST(EventArgumentsTest, NcclKernelsHaveACollectiveAndADevice) {
  const Trace trace = parse_events(complete(
      "kernel", R"("stream": 20, "device": 3, "Collective name": "_allgather_base", "Seq": 12)"));
  const Event& event = trace.events.at(0);
  ASSERT_NE(trace.collective(event), nullptr);
  EXPECT_EQ(trace.collective(event)->sequence, 12);
  ASSERT_NE(trace.device(event), nullptr);
  EXPECT_EQ(trace.device(event)->stream, 20);
}

TEST(EventArgumentsTest, SynchronisationsSayWhatTheyWaitFor) {
  const Trace trace = parse_events(
      complete("cuda_sync",
               R"("External id": 1536, "cuda_sync_kind": "Event Sync", "wait_on_stream": 7,
          "wait_on_cuda_event_record_corr_id": 1533, "wait_on_cuda_event_id": 8, "stream": -1,
          "correlation": 1536, "device": 0, "context": 1)") +
      "," + complete("cuda_sync", R"("cuda_sync_kind": "Stream Wait Event", "stream": 20)"));
  const SyncArgs* sync = trace.sync(trace.events.at(0));
  ASSERT_NE(sync, nullptr);
  EXPECT_EQ(*sync, (SyncArgs{.kind = SyncKind::kEvent,
                             .device = 0,
                             .stream = -1,
                             .wait_on_stream = 7,
                             .wait_on_record = 1533,
                             .wait_on_event = 8}));
  EXPECT_EQ(trace.sync(trace.events.at(1))->kind, SyncKind::kStreamWaitEvent);
  EXPECT_EQ(trace.sync(trace.events.at(1))->stream, 20);
}

TEST(EventArgumentsTest, MemoryInstantsAreRead) {
  const Trace trace = parse_events(
      R"({"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 5, "tid": 5, "ts": 9,
          "args": {"Total Reserved": 2097152, "Total Allocated": 512, "Bytes": -1024, "Addr": 140234,
                   "Device Id": 0, "Device Type": 1, "Ev Idx": 4}})");
  const MemoryArgs* memory = trace.memory(trace.events.at(0));
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(*memory, (MemoryArgs{.address = 140234,
                                 .bytes = -1024,
                                 .total_allocated = 512,
                                 .total_reserved = 2097152,
                                 .device_type = 1,
                                 .device = 0}));
}

// Writers print a hash of 64 bits with or without a sign, or as text.
TEST(EventArgumentsTest, IdentifiersOfCollectivesAreReadInEveryForm) {
  const auto id = [](const std::string& written) {
    const Trace trace = parse_events(complete(
        "kernel", R"("Collective name": "allreduce", "stream": 7, "Comms Id": )" + written));
    return trace.collectives.at(0).comms_id;
  };
  EXPECT_EQ(id("12"), 12);
  EXPECT_EQ(id("18446744073709551615"), -1);
  EXPECT_EQ(id("-1"), -1);
  EXPECT_EQ(id(R"("18446744073709551615")"), -1);
  EXPECT_EQ(id(R"("")"), 0);
  EXPECT_EQ(id("null"), 0);
  EXPECT_EQ(id(R"("0xab")"), id(R"("0xab")"));
  EXPECT_NE(id(R"("0xab")"), id(R"("0xac")"));
}

TEST(EventArgumentsTest, WhatWasReadIsWrittenAgain) {
  const Trace trace = parse_events(
      complete(
          "kernel",
          R"("External id": 3, "device": 1, "stream": 7, "correlation": 5, "graph node id": 9)") +
      "," +
      complete("cuda_sync",
               R"("cuda_sync_kind": "Event Sync", "wait_on_stream": 7, "stream": -1)") +
      R"(,{"ph": "i", "cat": "x", "name": "[memory]", "pid": 5, "tid": 5, "ts": 9,
           "args": {"Bytes": 8, "Addr": 16, "Total Allocated": 1, "Total Reserved": 2, "Device Type": 0, "Device Id": -1}})");
  const Trace again = parse_kineto(to_kineto_json(trace), "t.json");
  ASSERT_EQ(again.events.size(), 3U);
  EXPECT_EQ(again.events.at(0).external_id, 3U);
  EXPECT_EQ(*again.device(again.events.at(0)), *trace.device(trace.events.at(0)));
  EXPECT_EQ(*again.sync(again.events.at(1)), *trace.sync(trace.events.at(1)));
  EXPECT_EQ(*again.memory(again.events.at(2)), *trace.memory(trace.events.at(2)));
}

}  // namespace
}  // namespace shardlens::trace
