#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <cuda_occupancy.h>
#include <cupti.h>

#include "profiler/record/host/spool_recorder.h"

namespace shardlens::record {

// Converts CUPTI's activity records into records of a spool.
//
// Names      kernels are demangled; a runtime call's version (cudaLaunchKernel_v7000) is cut off.
// NVTX       ranges of other domains than Shardlens's become annotations when they end; Shardlens's
//            own ranges are only counted, because the recorder already has them.
// Overhead   what CUPTI needs for a flush that Shardlens asked for is named trace::kOwnFlush, so
//            that `check` does not leave out the step.
// Windows    after the first begin_window(), only calls within a window are kept, and what these
//            calls launched, however late it ran. Correlations, which increase with time, connect
//            the two.
// Threads    one at a time; windows and flushes from any thread.
// Ownership  `recorder` must outlive the parser. Names that a record points to are copied at once.
// Errors     records without a time (start or end 0) are counted, not kept.
class ActivityParser {
 public:
  explicit ActivityParser(SpoolRecorder& recorder) : recorder_(recorder) {}

  // Reads the records in the first `size` bytes of a buffer that CUPTI filled. Returns CUPTI's
  // error for the buffer, or CUPTI_SUCCESS.
  CUptiResult parse(uint8_t* buffer, size_t size);
  void take(const CUpti_Activity& record);
  // Decides on the records that waited for others.
  void finish();

  // Keeps nothing before the first window either.
  void keep_only_windows();
  void begin_window(Nanoseconds time);
  void end_window(Nanoseconds time);
  void begin_flush(Nanoseconds time);
  void end_flush(Nanoseconds time);

  [[nodiscard]] int64_t untimed() const { return untimed_; }
  [[nodiscard]] int64_t own_ranges() const { return own_ranges_; }  // Shardlens's ranges that ended

 private:
  // A range of which one end is known.
  struct OpenRange {
    Nanoseconds start = 0, end = 0;
    uint32_t name = 0, thread = 0;
    bool ours = false;
  };
  void close(const OpenRange& range);

  void kernel(const CUpti_ActivityKernel10& k);
  void copy(const CUpti_ActivityMemcpy6& m);
  void peer_copy(const CUpti_ActivityMemcpyPtoP4& m);
  void memset(const CUpti_ActivityMemset4& m);
  void graph(const CUpti_ActivityGraphTrace2& g);
  void api_call(const CUpti_ActivityAPI& call);
  void sync(const CUpti_ActivitySynchronization2& s);
  void event_record(const CUpti_ActivityCudaEvent2& e);
  void external(const CUpti_ActivityExternalCorrelation& e);
  void overhead(const CUpti_ActivityOverhead3& o);
  void memory(const CUpti_ActivityMemory4& m);
  void marker(const CUpti_ActivityMarker2& m);
  void device(const CUpti_ActivityDevice5& d);

  // A copy of either kind, or a memset.
  struct Moved {
    uint64_t start, end, bytes;
    uint32_t device, context, stream, correlation, graph;
    uint64_t node;
  };
  void moved(const Moved& m, const std::string& name, bool is_memset);

  // A kernel, copy or graph, with the record of its graph node if it has one.
  struct Launched {
    uint64_t start, end;
    uint32_t correlation;
    trace::SpoolRecord record;
    std::optional<trace::SpoolRecord> node;
  };
  static std::optional<trace::SpoolRecord> graph_node(
      uint32_t graph, uint64_t node, uint32_t correlation, uint32_t stream, uint64_t start);
  // Keeps it, drops it, or, if the record of the call that launched it has yet to come, waits.
  void launched(const Launched& event);
  void keep(const Launched& event);
  void decide_waiting();
  struct Window {
    Nanoseconds begin, end;
    // Correlations of calls: the last before the window, the last within it, the first after it; 0:
    // no such call was seen.
    uint32_t before = 0, last = 0, after = 0;
  };
  // Whether to keep a host event; records its correlation in the windows (0: it has none).
  [[nodiscard]] bool keeps_call(uint64_t start, uint64_t end, uint32_t correlation);
  // Whether to keep a device event; nullopt: its call may have been in a window, but is not known.
  [[nodiscard]] std::optional<bool> keeps_launched(uint64_t start, uint32_t correlation);
  [[nodiscard]] bool timed(uint64_t start, uint64_t end);
  [[nodiscard]] bool is_own_flush(const CUpti_ActivityOverhead3& o);
  uint32_t kernel_name(const char* name);
  uint32_t call_name(bool driver, uint32_t cbid);

  SpoolRecorder& recorder_;
  std::unordered_map<uint32_t, cudaOccDeviceProp> devices_;  // for occupancy
  std::mutex mutex_;
  bool only_windows_ = false;                                 // guarded by mutex_
  std::vector<Window> windows_;                               // by time; guarded by mutex_
  std::vector<std::pair<Nanoseconds, Nanoseconds>> flushes_;  // by time; guarded by mutex_
  int64_t untimed_ = 0, own_ranges_ = 0;
  // By value: CUPTI frees the text when a module is unloaded, and may reuse its address.
  std::unordered_map<std::string, uint32_t> kernel_names_;
  std::unordered_map<uint64_t, uint32_t> call_names_;
  std::unordered_map<uint64_t, OpenRange> open_ranges_;  // by id
  std::vector<Launched> waiting_;
};

}  // namespace shardlens::record
