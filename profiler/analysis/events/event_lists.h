#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// The complete events of a trace by what they are, as indices into Trace::events, in the order of
// the file. Most parts of an analysis need few of the events and do not visit the others. The times
// and tracks of calls, ranges and device events are repeated here, so that these parts read memory
// in order.
//
// Complexity  O(n), and sorts of annotations and device events; 8 to 32 bytes per event listed.
struct EventLists {
  struct Call {
    Nanoseconds start = 0;
    uint32_t event = trace::kNoIndex;
    uint32_t track = 0;
    uint32_t correlation = 0;
    trace::StringId name = trace::kEmptyString;
  };
  struct DeviceStart {
    Nanoseconds start = 0;
    uint32_t track = 0;
    uint32_t event = trace::kNoIndex;
  };
  struct Range {
    Nanoseconds start = 0, end = 0;
    uint32_t event = trace::kNoIndex;
    uint32_t track = 0;
    trace::StringId name = trace::kEmptyString;
  };

  EventLists() = default;
  explicit EventLists(const trace::Trace& trace);

  std::vector<uint32_t> annotations;  // user_annotation
  std::vector<uint32_t> operators;    // cpu_op
  std::vector<Call> calls;            // cuda_runtime, xpu_driver, …: trace::is_runtime_call()
  // The annotations by track and start; of those with the same start, the longest first. Empty in a
  // timeline.
  std::vector<Range> ranges;
  // kernel, gpu_memcpy, gpu_memset; by start, and by event where starts are equal. Empty in a
  // timeline, which has device_events.
  std::vector<DeviceStart> device;

  // These call visit(event), or visit(range), for those of a list whose name passes the test, in
  // the list's order. Each distinct name is tested once, and no other event is read: most of their
  // memory is in no cache.
  template <class Test, class Visit>
  void for_operators_named(const trace::Trace& trace, Test test, Visit visit) const {
    for_named(
        trace, operators.size(), [&](size_t i) { return operator_names_[i]; }, test,
        [&](size_t i) { visit(operators[i]); });
  }
  template <class Test, class Visit>
  void for_annotations_named(const trace::Trace& trace, Test test, Visit visit) const {
    for_named(
        trace, annotations.size(), [&](size_t i) { return annotation_names_[i]; }, test,
        [&](size_t i) { visit(annotations[i]); });
  }
  template <class Test, class Visit>
  void for_ranges_named(const trace::Trace& trace, Test test, Visit visit) const {
    for_named(
        trace, ranges.size(), [&](size_t i) { return ranges[i].name; }, test,
        [&](size_t i) { visit(ranges[i]); });
  }
  template <class Test, class Visit>
  void for_calls_named(const trace::Trace& trace, Test test, Visit visit) const {
    for_named(
        trace, calls.size(), [&](size_t i) { return calls[i].name; }, test,
        [&](size_t i) { visit(calls[i].event); });
  }

 private:
  // `name_at`: the name at a position of a list.
  template <class NameAt, class Test, class Visit>
  static void for_named(
      const trace::Trace& trace, size_t size, NameAt name_at, Test test, Visit visit) {
    std::vector<bool> passes(trace.strings.size()), tested(trace.strings.size());
    for (size_t i = 0; i < size; ++i) {
      const trace::StringId name = name_at(i);
      if (!tested[name]) {
        tested[name] = true;
        passes[name] = test(trace.strings.view(name));
      }
      if (passes[name]) {
        visit(i);
      }
    }
  }
  void sort_device(size_t tracks);
  void sort_ranges(size_t tracks);

  std::vector<trace::StringId> operator_names_, annotation_names_;  // by position
};

}  // namespace shardlens::analysis
