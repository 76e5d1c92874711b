#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include <cuda_occupancy.h>
#include <cupti.h>

#include "profiler/record/spool_recorder.h"

namespace shardlens::record {

// Converts CUPTI's activity records into records of a spool.
//
// Names      kernels are demangled; a runtime call's version (cudaLaunchKernel_v7000) is cut off.
// NVTX       ranges of other domains than Shardlens's become annotations when they end; Shardlens's
// own ranges are only counted, because the recorder already has them.
// Windows    after the first begin_window(), only calls within a window are kept, and what these
//            calls launched, however late it ran. Correlations, which increase with time, connect
//            the two.
// Threads    one at a time; begin_window() and end_window() from any thread.
// Ownership  `recorder` must outlive the parser. Names that a record points to are copied at once.
// Errors     records without a time (start or end 0) are counted, not kept.
class ActivityParser {
 public:
  explicit ActivityParser(SpoolRecorder& recorder) : recorder_(recorder) {}

  // Reads the records in the first `size` bytes of a buffer that CUPTI filled. Returns CUPTI's
  // error for the buffer, or CUPTI_SUCCESS.
  CUptiResult parse(uint8_t* buffer, size_t size);
  void take(const CUpti_Activity& record);

  void begin_window(Nanoseconds time);
  void end_window(Nanoseconds time);

  [[nodiscard]] int64_t untimed() const { return untimed_; }
  [[nodiscard]] int64_t own_ranges() const { return own_ranges_; }  // Shardlens's ranges that ended

 private:
  struct OpenRange {
    Nanoseconds start = 0;
    uint32_t name = 0, thread = 0;
    bool ours = false;
  };

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
  void graph_node(
      uint32_t graph, uint64_t node, uint32_t correlation, uint32_t stream, uint64_t start);
  struct Window {
    Nanoseconds begin, end;
    // Correlations of calls: the last before the window, the last within it, the first after it; 0:
    // no such call was seen.
    uint32_t before = 0, last = 0, after = 0;
  };
  // Whether to keep a host event; records its correlation in the windows (0: it has none).
  [[nodiscard]] bool keeps_call(uint64_t start, uint64_t end, uint32_t correlation);
  // Whether to keep a device event.
  [[nodiscard]] bool keeps_launched(uint64_t start, uint64_t end, uint32_t correlation);
  [[nodiscard]] bool timed(uint64_t start, uint64_t end);
  uint32_t kernel_name(const char* name);
  uint32_t call_name(bool driver, uint32_t cbid);

  SpoolRecorder& recorder_;
  std::unordered_map<uint32_t, cudaOccDeviceProp> devices_;  // for occupancy
  std::mutex mutex_;
  std::vector<Window> windows_;  // by time; guarded by mutex_
  int64_t untimed_ = 0, own_ranges_ = 0;
  // By address: CUPTI keeps one text per kernel.
  std::unordered_map<const char*, uint32_t> kernel_names_;
  std::unordered_map<uint64_t, uint32_t> call_names_;
  std::unordered_map<uint64_t, OpenRange> open_ranges_;
};

}  // namespace shardlens::record
