#pragma once

#include <algorithm>
#include <iterator>
#include <string_view>

#include "profiler/trace/model/owner.h"
#include "profiler/trace/spool/spool_trace.h"
#include "tests/profiler/record/recorded_run.h"

namespace shardlens::record {

// A spool of device records with the times that a test gives them, written and read as a capture's.
class DeviceSpool {
 public:
  static constexpr uint32_t kThread = 4242;

  // `unit`: nanoseconds per unit of the test's times.
  explicit DeviceSpool(Nanoseconds unit = 1)
      : unit_(unit), recorder_(options_in(directory_.path())) {
    static const std::vector<std::string> units{"", "layers.0", "layers.1"};
    recorder_.units(units);
    recorder_.append_text(trace::SpoolType::kDeviceProperties, 0,
                          R"({"id": 0, "name": "Test", "numSms": 4})");
  }

  [[nodiscard]] SpoolRecorder& recorder() { return recorder_; }
  [[nodiscard]] trace::Trace trace() {
    recorder_.finish();
    return spool_to_trace(trace::read_spool(recorder_.path()));
  }

  void add(trace::SpoolType type, const auto& fill) {
    trace::SpoolRecord record;
    record.type = type;
    fill(record);
    recorder_.device(record);
  }
  void step(int64_t number, Nanoseconds start, Nanoseconds end) {
    add(trace::SpoolType::kStepBegin, [&](auto& r) {
      r.step = {.step = number, .time = start * unit_, .dropped = 0, .reserved = {}};
    });
    add(trace::SpoolType::kStepEnd, [&](auto& r) {
      r.step = {.step = number, .time = end * unit_, .dropped = 0, .reserved = {}};
    });
  }
  void range(Range range, UnitId unit, Nanoseconds start, Nanoseconds end) {
    add(trace::SpoolType::kRange, [&](auto& r) {
      r.range = {.unit = unit,
                 .thread = kThread,
                 .start = start * unit_,
                 .end = end * unit_,
                 .range = static_cast<uint8_t>(range),
                 .reserved = {}};
    });
  }
  void call(std::string_view name,
            uint32_t correlation,
            Nanoseconds start,
            Nanoseconds end,
            const trace::Owner& owner = {}) {
    add(trace::SpoolType::kApiCall, [&](auto& r) {
      r.api = {.name = recorder_.text(name),
               .correlation = correlation,
               .thread = kThread,
               .is_driver = 0,
               .reserved1 = {},
               .start = start * unit_,
               .end = end * unit_,
               .reserved2 = {}};
    });
    if (const uint32_t id = external_id_of(owner); id != 0) {
      add(trace::SpoolType::kExternal,
          [&](auto& r) { r.external = {.id = id, .correlation = correlation, .reserved = {}}; });
    }
  }
  void kernel(std::string_view name,
              uint32_t correlation,
              uint32_t stream,
              Nanoseconds start,
              Nanoseconds end) {
    add(trace::SpoolType::kKernel, [&](auto& r) {
      r.kernel = {.name = recorder_.text(name),
                  .correlation = correlation,
                  .start = start * unit_,
                  .end = end * unit_,
                  .stream = stream,
                  .grid = {4, 2, 1},
                  .block = {256, 1, 1},
                  .registers = 32,
                  .shared_memory = 1024,
                  .context = 1,
                  .device = 0,
                  .occupancy = 25};
    });
  }
  void copy(std::string_view name,
            uint32_t correlation,
            uint32_t stream,
            int64_t bytes,
            Nanoseconds start,
            Nanoseconds end) {
    add(trace::SpoolType::kCopy, [&](auto& r) {
      r.copy = {.name = recorder_.text(name),
                .correlation = correlation,
                .start = start * unit_,
                .end = end * unit_,
                .bytes = bytes,
                .stream = stream,
                .context = 1,
                .device = 0,
                .is_memset = 0,
                .reserved = {}};
    });
  }
  void gather(
      UnitId unit, uint32_t sequence, Nanoseconds start, Nanoseconds end, uint32_t action = 0) {
    add(trace::SpoolType::kCollectiveCall, [&](auto& r) {
      r.a = static_cast<uint8_t>(CollectiveKind::kAllGather);
      r.b = static_cast<uint8_t>(DType::kBF16);
      r.collective = {.unit = unit,
                      .sequence = sequence,
                      .action = action,
                      .group_size = 2,
                      .group = static_cast<uint16_t>(recorder_.text("shard")),
                      .in_nelems = 500,
                      .out_nelems = 1000,
                      .issued = 0,
                      .start = start * unit_,
                      .end = end * unit_};
      r.collective.thread = kThread;
    });
  }
  void action(uint32_t seq, const schedule::Action& a, Nanoseconds time) {
    add(trace::SpoolType::kAction, [&](auto& r) {
      r.action = {.seq = seq,
                  .hook_seq = 0,
                  .unit = a.unit,
                  .buffer_unit = kNoUnit,
                  .generation = 0,
                  .event = a.event,
                  .thread = kThread,
                  .op = static_cast<uint8_t>(a.op),
                  .stream = static_cast<uint8_t>(a.stream),
                  .group = a.group,
                  .cause = static_cast<uint8_t>(a.cause),
                  .time = time * unit_,
                  .buffer_kind = 0,
                  .reserved = {}};
    });
  }
  void wait(uint32_t correlation, uint32_t stream, uint64_t event_sync, Nanoseconds start) {
    sync(correlation, stream, event_sync, start,
         event_sync == 0 ? trace::SyncKind::kContext : trace::SyncKind::kStreamWaitEvent);
  }
  // cudaEventQuery of an event that is complete; the call itself is not recorded.
  void query(uint32_t correlation, uint64_t event_sync, Nanoseconds start) {
    sync(correlation, trace::kNoStream, event_sync, start, trace::SyncKind::kEvent);
  }
  void sync(uint32_t correlation,
            uint32_t stream,
            uint64_t event_sync,
            Nanoseconds start,
            trace::SyncKind kind) {
    add(trace::SpoolType::kSync, [&](auto& r) {
      r.sync = {.event_sync = event_sync,
                .start = start * unit_,
                .end = (start + 1) * unit_,
                .correlation = correlation,
                .context = 1,
                .event = 3,
                .stream = stream,
                .kind = static_cast<uint8_t>(kind),
                .reserved = {}};
    });
  }
  void record_event(uint32_t correlation, uint32_t stream, uint64_t event_sync) {
    add(trace::SpoolType::kEventRecord, [&](auto& r) {
      r.event = {.event_sync = event_sync,
                 .time = 0,
                 .correlation = correlation,
                 .context = 1,
                 .stream = stream,
                 .event = 3,
                 .device = 0,
                 .reserved = {}};
    });
  }

 private:
  TestDirectory directory_;
  const Nanoseconds unit_;
  SpoolRecorder recorder_;
};

// One step of two units on streams 7 (compute) and 20 (all-gather): each unit's parameters are
// gathered, layers.1's ahead of time, layers.0 computes, the optimizer steps, a copy comes back.
inline void fill_by_hand(DeviceSpool& s) {
  using trace::Section;
  const trace::Owner first{Section::kForward, 1}, second{Section::kForward, 2},
      optimizer{Section::kOptimizer, kNoUnit};
  s.step(0, 1000, 4000);
  s.range(Range::kForward, kNoUnit, 1010, 1600);
  s.range(Range::kPreForward, 1, 1020, 1200);
  s.range(Range::kAllGather, 1, 1030, 1080);
  s.gather(1, 0, 1040, 1070);
  s.call("cudaLaunchKernelExC", 4, 1050, 1060, first);
  s.kernel("ncclDevKernel_AllGather_RING_LL", 4, 20, 1300, 2300);
  s.call("cudaEventRecord", 5, 1082, 1084, first);
  s.record_event(5, 20, 77);
  s.call("cudaStreamWaitEvent", 6, 1086, 1088, first);
  s.wait(6, 7, 77, 1087);
  s.range(Range::kAllGather, 2, 1100, 1150);
  s.gather(2, 1, 1110, 1140);
  s.call("cudaLaunchKernelExC", 8, 1120, 1130, second);
  s.kernel("ncclDevKernel_AllGather_RING_LL", 8, 20, 2300, 3300);
  s.call("cudaLaunchKernel", 9, 1300, 1310, first);
  s.kernel("gemm", 9, 7, 2300, 2800);
  s.range(Range::kPostForward, 1, 1400, 1410);
  s.range(Range::kOptimizer, kNoUnit, 2000, 2100);
  s.call("cudaLaunchKernel", 12, 2010, 2020, optimizer);
  s.kernel("adamw", 12, 7, 3400, 3500);
  s.call("cudaMemcpyAsync", 14, 2200, 2210);
  s.copy("Memcpy DtoH (Device -> Pinned)", 14, 7, 100, 3600, 3650);
  s.call("cudaDeviceSynchronize", 15, 2300, 3700);
  s.wait(15, trace::kNoStream, 0, 2301);
  s.query(16, 77, 3702);
}

}  // namespace shardlens::record
