// The tracer with its real callbacks, and a stub in place of CUPTI's library: buffers that come
// late, out of order, twice, or not at all.

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "profiler/record/device/device_recorder.h"
#include "profiler/record/device/device_tracer.h"
#include "profiler/record/host/finish.h"
#include "profiler/trace/kineto/kineto_reader.h"
#include "profiler/trace/model/overhead_names.h"
#include "tests/profiler/record/cupti_stub.h"
#include "tests/profiler/record/recorded_run.h"

namespace shardlens::record {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;
using trace::Category;

class RecordCuptiTest : public testing::Test {
 protected:
  RecordCuptiTest() { CuptiStub::get().reset(); }

  // The stub needs no driver, but a tracer asks for one.
  static CuptiOptions with_driver(CuptiOptions options = {}) {
    options.driver = SHARDLENS_FAKE_DRIVER;
    return options;
  }
  DeviceTracer& start(const CuptiOptions& options = {}) {
    tracer_ = start_cupti(spool_, with_driver(options));
    tracer_->enable(true);
    return *tracer_;
  }
  // The trace, written and read again.
  trace::Trace trace() {
    if (tracer_ != nullptr) {
      own_ranges_ = tracer_->finish(/*wait=*/true);
    }
    return trace::read_kineto(finish_trace(spool_));
  }
  static std::vector<std::string> names(const trace::Trace& trace, Category category) {
    std::vector<std::string> found;
    for (const trace::Event& event : trace.events) {
      if (event.category == category) {
        found.emplace_back(trace.name(event));
      }
    }
    return found;
  }
  static Buffer launch(const char* name, uint32_t id, uint64_t called, uint64_t ran) {
    Buffer buffer;
    buffer.add(call_of(kLaunch, id, called, called + 1));
    buffer.add(kernel_of(name, id, 7, ran, ran + 10));
    return buffer;
  }
  static uint64_t now() { return static_cast<uint64_t>(now_ns()); }

  CuptiStub& stub_ = CuptiStub::get();
  TestDirectory directory_;
  SpoolRecorder spool_{options_in(directory_.path())};
  std::unique_ptr<DeviceTracer> tracer_;
  int64_t own_ranges_ = 0;
};

TEST_F(RecordCuptiTest, AFlushDeliversWhatIsDone) {
  DeviceTracer& tracer = start();
  EXPECT_TRUE(stub_.enabled(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
  tracer.begin_window();
  const uint64_t t = now();
  stub_.fill(launch("first", 1, t, t + 100));
  tracer.flush();
  EXPECT_TRUE(stub_.batch(0).delivered);
  stub_.fill(launch("second", 2, t + 10, t + 200));
  const trace::Trace trace = this->trace();
  EXPECT_THAT(names(trace, Category::kKernel), ElementsAre("first", "second"));
  EXPECT_THAT(trace.diagnostics, IsEmpty());
  EXPECT_FALSE(stub_.enabled(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
}

// CUPTI would otherwise clear each buffer in the thread that launches, which took 0.3 to 0.5 ms a
// buffer on an H200.
TEST_F(RecordCuptiTest, BuffersAreZeroWhenCuptiGetsThem) {
  DeviceTracer& tracer = start({.buffers = 2});
  EXPECT_TRUE(stub_.zeroed);
  tracer.begin_window();
  for (uint32_t id = 1; id <= 20; ++id) {
    const uint64_t t = now();
    stub_.fill(launch("kernel", id, t, t + 100));
    tracer.flush();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // the reader gives it back
  }
  EXPECT_GT(stub_.batch(19).valid, 0U);  // two buffers were given twenty times
  EXPECT_EQ(stub_.dirty, 0);
}

// The device still computes the last step when the program ends.
TEST_F(RecordCuptiTest, TheLastFlushWaitsForTheDevice) {
  int waits = 0;
  DeviceTracer& tracer = start({.synchronize = [&] {
    ++waits;
    stub_.finish_running();
  }});
  tracer.begin_window();
  const uint64_t t = now();
  stub_.fill(launch("still running", 1, t, t + 100), /*running=*/true);
  tracer.flush();
  EXPECT_FALSE(stub_.batch(0).delivered);
  EXPECT_EQ(waits, 0) << "a flush at a step's end does not wait";
  const trace::Trace trace = this->trace();
  EXPECT_EQ(waits, 1);
  EXPECT_THAT(names(trace, Category::kKernel), ElementsAre("still running"));
  EXPECT_THAT(trace.diagnostics, IsEmpty());
}

TEST_F(RecordCuptiTest, AfterAFaultItDoesNotWait) {
  DeviceTracer& tracer = start({.synchronize = [] { FAIL() << "the device may hang"; }});
  tracer.begin_window();
  const uint64_t t = now();
  stub_.fill(launch("never ends", 1, t, t + 100), /*running=*/true);
  tracer.finish(/*wait=*/false);
  tracer_.reset();
  const trace::Trace trace = this->trace();
  EXPECT_THAT(names(trace, Category::kKernel), IsEmpty());
  EXPECT_THAT(trace.diagnostics, ElementsAre(Field(&trace::Diagnostic::message,
                                                   "1 device records without times are left out")));
}

TEST_F(RecordCuptiTest, BuffersMayComeInAnyOrder) {
  DeviceTracer& tracer = start();
  tracer.begin_window();
  const uint64_t t = now();
  Buffer kernels, calls, later, begin, end;
  kernels.add(kernel_of("runs after the window", 2, 7, t + 2'000'000'000, t + 2'000'000'010));
  kernels.add(kernel_of("launched after it", 4, 7, t + 3'000'000'000, t + 3'000'000'010));
  calls.add(call_of(kLaunch, 1, t, t + 1));
  calls.add(call_of(kLaunch, 2, t + 2, t + 3));
  later.add(call_of(kLaunch, 4, t + 1'500'000'000, t + 1'500'000'001));
  CUpti_ActivityMarker2 marker{};
  marker.kind = CUPTI_ACTIVITY_KIND_MARKER;
  marker.id = 1;
  marker.flags = CUPTI_ACTIVITY_FLAG_MARKER_START;
  marker.timestamp = t;
  marker.name = "ncclAllGather";
  begin.add(marker);
  marker.flags = CUPTI_ACTIVITY_FLAG_MARKER_END;
  marker.timestamp = t + 5;
  end.add(marker);
  tracer.end_window();
  for (const Buffer& buffer : {begin, calls, later, kernels, end}) {
    stub_.fill(buffer);
  }
  stub_.flush_in_reverse = true;
  const trace::Trace trace = this->trace();
  EXPECT_THAT(names(trace, Category::kKernel), ElementsAre("runs after the window"));
  EXPECT_THAT(names(trace, Category::kUserAnnotation), ElementsAre("ncclAllGather"));
}

TEST_F(RecordCuptiTest, ABufferThatComesTwiceIsReadOnce) {
  DeviceTracer& tracer = start({.buffers = 2});
  tracer.begin_window();
  const uint64_t t = now();
  const size_t first = stub_.fill(launch("once", 1, t, t + 100));
  stub_.deliver(first);
  stub_.deliver(first);
  uint8_t foreign[64] = {};
  stub_.deliver_stale(foreign, sizeof(foreign));
  const trace::Trace trace = this->trace();
  EXPECT_THAT(names(trace, Category::kKernel), ElementsAre("once"));
  EXPECT_THAT(trace.diagnostics,
              Contains(Field(&trace::Diagnostic::message,
                             HasSubstr("delivered 2 buffers that it did not have"))));
  // Had it been given back twice, two requests would get the same buffer.
  const auto second = stub_.batch(stub_.fill({}));
  EXPECT_NE(second.buffer, stub_.batch(stub_.fill({})).buffer);
}

TEST_F(RecordCuptiTest, ALateBufferGoesToTheNextTracerAtItsSize) {
  start({.buffers = 2}).begin_window();
  const size_t late = stub_.fill(launch("of the first tracer", 1, now(), now()));
  stub_.hold = true;
  tracer_->finish(/*wait=*/false);
  tracer_.reset();
  stub_.hold = false;

  start({.buffers = 3});
  stub_.deliver(late);
  stub_.fill(launch("before the window", 2, now(), now()));
  tracer_->flush();
  tracer_->begin_window();
  const size_t within = stub_.fill(launch("within", 3, now(), now()));
  EXPECT_EQ(stub_.batch(within).capacity, stub_.batch(late).capacity);
  EXPECT_THAT(names(trace(), Category::kKernel), ElementsAre("within"));
}

TEST_F(RecordCuptiTest, RecordsWithoutABufferAreCountedInTheTrace) {
  DeviceTracer& tracer = start({.buffers = 4});
  tracer.begin_window();
  const uint64_t t = now();
  size_t given = 0;
  for (uint32_t i = 1; given < 100 && stub_.batch(stub_.fill(launch("kernel", i, t, t))).buffer;
       ++i) {
    ++given;
  }
  const trace::Trace trace = this->trace();
  EXPECT_EQ(names(trace, Category::kKernel).size(), given);
  EXPECT_THAT(trace.diagnostics,
              UnorderedElementsAre(
                  testing::AllOf(Field(&trace::Diagnostic::message,
                                       HasSubstr("records of the device were lost")),
                                 Field(&trace::Diagnostic::count, 2)),
                  Field(&trace::Diagnostic::message, HasSubstr("no free buffer for device"))));
}

TEST_F(RecordCuptiTest, NamesAreCopied) {
  DeviceTracer& tracer = start();
  tracer.begin_window();
  std::string text = "first";  // CUPTI reuses the memory of a name when a module is unloaded
  const uint64_t t = now();
  stub_.fill(launch(text.c_str(), 1, t, t + 100));
  const int64_t before = spool_.kept();
  tracer.flush();
  while (spool_.kept() < before + 4) {  // two names, the call and the kernel
    std::this_thread::yield();
  }
  text = "other";
  stub_.fill(launch(text.c_str(), 2, t + 10, t + 200));
  EXPECT_THAT(names(trace(), Category::kKernel), ElementsAre("first", "other"));
}

TEST_F(RecordCuptiTest, OverheadHasItsLengthAndTheFlushesOfOurOwnANameOfTheirOwn) {
  DeviceTracer& tracer = start();
  tracer.begin_window();
  CUpti_ActivityOverhead3 overhead{};
  overhead.kind = CUPTI_ACTIVITY_KIND_OVERHEAD;
  overhead.overheadKind = CUPTI_ACTIVITY_OVERHEAD_CUPTI_BUFFER_FLUSH;
  overhead.start = now();  // of CUPTI's own thread, when a buffer was full
  overhead.end = overhead.start + 40;
  Buffer before;
  before.add(overhead);
  overhead.overheadKind = CUPTI_ACTIVITY_OVERHEAD_CUPTI_INSTRUMENTATION;
  overhead.end = overhead.start + 90;
  before.add(overhead);
  const size_t first = stub_.fill(before);
  while (now() <= overhead.end) {
  }
  stub_.deliver(first);
  stub_.on_flush = [&] {
    overhead.overheadKind = CUPTI_ACTIVITY_OVERHEAD_CUPTI_BUFFER_FLUSH;
    overhead.start = now();
    overhead.end = overhead.start + 7;
    while (now() <= overhead.end) {
    }
  };
  tracer.flush();
  stub_.on_flush = nullptr;
  Buffer during;
  during.add(overhead);  // CUPTI makes the record when the flush has ended
  stub_.fill(during);
  const trace::Trace trace = this->trace();
  std::vector<std::pair<std::string, Nanoseconds>> found;
  for (const trace::Event& event : trace.events) {
    if (event.category == Category::kOverhead) {
      found.emplace_back(trace.name(event), event.duration);
    }
  }
  EXPECT_THAT(found, UnorderedElementsAre(testing::Pair("Buffer Flush", 40),
                                          testing::Pair("Instrumentation", 90),
                                          testing::Pair(std::string(trace::kOwnFlush), 7)));
}

TEST_F(RecordCuptiTest, WhatItCannotReadIsInTheTracesDiagnostics) {
  DeviceTracer& tracer = start();
  tracer.begin_window();
  Buffer unknown;
  unknown.add(CUpti_Activity{.kind = CUPTI_ACTIVITY_KIND_COUNT});
  stub_.fill(unknown);
  EXPECT_THAT(trace().diagnostics,
              ElementsAre(Field(&trace::Diagnostic::message,
                                HasSubstr("the rest of a buffer: CUPTI_ERROR_INVALID_KIND"))));
}

TEST_F(RecordCuptiTest, AnotherToolIsNamed) {
  stub_.subscriber = "CUPTI for Nsight Systems";
  EXPECT_THAT([this] { (void)start_cupti(spool_, with_driver()); },
              testing::ThrowsMessage<RuntimeFault>(
                  HasSubstr("'CUPTI for Nsight Systems' records this process")));
}

// CUPTI's callbacks on threads of its own, while the program trains and flushes.
TEST_F(RecordCuptiTest, CallbacksRunWhileTheProgramTrains) {
  constexpr uint32_t kThreads = 3, kBuffers = 200;
  start({.buffers = 64});
  DeviceRecorder recorder(spool_, tracer_.get());
  recorder.step_begin(0);
  const uint64_t t = now();
  std::atomic<uint32_t> given{0};
  std::vector<std::thread> threads;
  for (uint32_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (uint32_t i = 0; i < kBuffers; ++i) {
        const uint32_t id = 1 + thread * kBuffers + i;
        const size_t batch = stub_.fill(launch("kernel", id, t, t + id));
        if (stub_.batch(batch).buffer != nullptr) {
          ++given;
          stub_.deliver(batch);
        }
      }
    });
  }
  for (int64_t step = 1; step < 50; ++step) {
    recorder.hook({.hook = Hook::kPreForward, .unit = 0});
    recorder.step_end();
    recorder.step_begin(step);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  recorder.step_end();
  EXPECT_EQ(names(trace(), Category::kKernel).size(), given);
}

}  // namespace
}  // namespace shardlens::record
