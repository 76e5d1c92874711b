#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// The complete events of a trace by what they are, as indices into Trace::events, in the order of
// the file. Most parts of an analysis need few of the events and do not visit the others.
//
// Complexity  O(n), and a sort of the annotations; 4 to 8 bytes per event listed.
struct EventLists {
  EventLists() = default;
  explicit EventLists(const trace::Trace& trace);

  std::vector<uint32_t> annotations;  // user_annotation
  std::vector<uint32_t> ranges;       // the same by track and start, see sort_by_track_and_start()
  std::vector<uint32_t> operators;    // cpu_op
  std::vector<uint32_t> calls;        // cuda_runtime, cuda_driver
  std::vector<uint32_t> device;       // kernel, gpu_memcpy, gpu_memset

  // Calls visit(event) for the operators whose name passes the test, in the order of the file. Each
  // distinct name is tested once.
  template <class Test, class Visit>
  void for_operators_named(const trace::Trace& trace, Test test, Visit visit) const {
    std::vector<bool> passes(trace.strings.size()), tested(trace.strings.size());
    for (size_t i = 0; i < operators.size(); ++i) {
      const trace::StringId name = operator_names_[i];
      if (!tested[name]) {
        tested[name] = true;
        passes[name] = test(trace.strings.view(name));
      }
      if (passes[name]) {
        visit(operators[i]);
      }
    }
  }

 private:
  std::vector<trace::StringId> operator_names_;  // by position in `operators`
};

}  // namespace shardlens::analysis
