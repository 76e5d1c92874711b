#include "profiler/analysis/events/event_lists.h"

#include "profiler/analysis/events/nesting.h"

namespace shardlens::analysis {

using trace::Category;

EventLists::EventLists(const trace::Trace& trace) {
  // Capacity that is not used takes no memory, but growth is copied.
  for (std::vector<uint32_t>* list : {&operators, &calls, &device}) {
    list->reserve(trace.events.size());
  }
  operator_names_.reserve(trace.events.size());
  for (uint32_t i = 0; i < trace.events.size(); ++i) {
    const trace::Event& event = trace.events[i];
    if (event.phase != trace::EventPhase::kComplete) {
      continue;
    }
    switch (event.category) {
      case Category::kUserAnnotation:
        annotations.push_back(i);
        break;
      case Category::kCpuOp:
        operators.push_back(i);
        operator_names_.push_back(event.name);
        break;
      case Category::kCudaRuntime:
      case Category::kCudaDriver:
        calls.push_back(i);
        break;
      case Category::kKernel:
      case Category::kGpuMemcpy:
      case Category::kGpuMemset:
        device.push_back(i);
        break;
      default:
        break;
    }
  }
  ranges = annotations;
  sort_by_track_and_start(trace, ranges);
}

}  // namespace shardlens::analysis
