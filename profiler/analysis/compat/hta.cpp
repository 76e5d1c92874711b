#include "profiler/analysis/compat/hta.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>

namespace shardlens::analysis {
namespace {

using trace::Category;
using trace::Event;
using trace::Trace;

// A row of HTA's data frame: microseconds as doubles, as in pandas.
struct Row {
  double start = 0, end = 0;
  int64_t stream = -1, correlation = -1;
  std::string_view name;
  bool is_gpu = false;  // by HTA's filter
};

// HTA's regular expressions, with match() anchored at the beginning:
bool communicates(std::string_view name) {
  return name.starts_with("nccl") && name.find("Kernel", 4) != std::string_view::npos;
}
// (^Memcpy)|(^Memset)|(^dma)
bool is_memory(std::string_view name) {
  return name.starts_with("Memcpy") || name.starts_with("Memset") || name.starts_with("dma");
}
// not (^nccl.*Kernel)|(.*(Memcpy)|(Memset))|(.*Sync)
bool computes(std::string_view name) {
  return !communicates(name) && !is_memory(name) && name.find("Memcpy") == std::string_view::npos &&
         !name.starts_with("Memset") && name.find("Sync") == std::string_view::npos;
}

// The time as written, in microseconds: HTA does not add the base.
double written(const Trace& trace, Nanoseconds time) {
  return static_cast<double>(static_cast<long double>(time - trace.metadata.base_time) / 1000.0L);
}

// HTA rounds times only if pandas stores them as doubles, that is, if any time has a fraction.
bool has_fractions(const Trace& trace) {
  return std::any_of(trace.events.begin(), trace.events.end(),
                     [](const Event& e) { return e.start % 1000 != 0; });
}

std::vector<Row> rows_of(const Trace& trace) {
  const bool round = has_fractions(trace);
  std::vector<Row> rows;
  for (const Event& event : trace.events) {
    if (event.phase != trace::EventPhase::kComplete || event.category == Category::kTrace) {
      continue;
    }
    Row row;
    row.name = trace.name(event);
    row.start = written(trace, event.start);
    row.end = row.start + static_cast<double>(event.duration) / 1000.0;
    if (round) {
      row.start = std::ceil(row.start);
      row.end = std::floor(row.end);
    }
    if (const trace::DeviceArgs* device = trace.device(event)) {
      row.stream = device->stream;
    } else if (const trace::SyncArgs* sync = trace.sync(event)) {
      row.stream = sync->stream;
      // Older files write 2^32 - 1 for "no stream"; HTA takes this for a stream.
      if (trace.args_json(event).find("4294967295") != std::string_view::npos) {
        row.stream = 4294967295;
      }
    }
    row.correlation = event.correlation == 0 ? -1 : int64_t{event.correlation};
    row.is_gpu = (row.stream >= 0 && row.correlation >= 0) || row.name == "Event Sync" ||
                 row.name == "Context Sync";
    rows.push_back(row);
  }
  return rows;
}

// With two steps or more, HTA leaves out what the last step launched: GPU rows are kept if a CPU
// row with the same correlation starts before the last step.
void leave_out_last_step(std::vector<Row>& rows) {
  double last = -std::numeric_limits<double>::infinity();
  for (const Row& row : rows) {
    if (!row.is_gpu && row.name.find("ProfilerStep") != std::string_view::npos) {
      last = std::max(last, row.start);
    }
  }
  std::unordered_set<int64_t> correlations;
  for (const Row& row : rows) {
    if (!row.is_gpu && row.start < last) {
      correlations.insert(row.correlation);
    }
  }
  std::erase_if(rows, [&](const Row& row) {
    return row.is_gpu ? !correlations.contains(row.correlation) : row.start >= last;
  });
}

struct Span {
  double start, end;
};

template <class Wanted>
std::vector<Span> merged(const std::vector<Row>& rows, Wanted wanted) {
  std::vector<Span> spans;
  for (const Row& row : rows) {
    if (row.stream != -1 && wanted(row.name)) {
      spans.push_back({row.start, row.end});
    }
  }
  std::stable_sort(spans.begin(), spans.end(),
                   [](const Span& a, const Span& b) { return a.start < b.start; });
  std::vector<Span> out;
  double latest = -std::numeric_limits<double>::infinity();
  for (const Span& span : spans) {
    if (out.empty() || span.start > latest) {
      out.push_back(span);
    } else {
      out.back().end = std::max(out.back().end, span.end);
    }
    latest = std::max(latest, span.end);
  }
  return out;
}

double length_of(const std::vector<Span>& spans) {
  double sum = 0;
  for (const Span& span : spans) {
    sum += span.end - span.start;
  }
  return sum;
}

// Time during which both run. A span whose ends rounding has swapped is counted as in HTA's running
// sum.
double overlap_of(const std::vector<Span>& communication, const std::vector<Span>& compute) {
  struct Change {
    double time;
    int by;
  };
  std::vector<Change> changes;
  for (const auto& [spans, by] : {std::pair(&communication, 1), std::pair(&compute, 2)}) {
    for (const Span& span : *spans) {
      changes.push_back({span.start, by});
    }
    for (const Span& span : *spans) {
      changes.push_back({span.end, -by});
    }
  }
  std::stable_sort(changes.begin(), changes.end(),
                   [](const Change& a, const Change& b) { return a.time < b.time; });
  double sum = 0;
  int running = 0;
  for (size_t i = 0; i + 1 < changes.size(); ++i) {
    running += changes[i].by;
    sum += running == 3 ? changes[i + 1].time - changes[i].time : 0;
  }
  return sum;
}

double two_decimals(double value) {
  return std::nearbyint(value * 100) / 100;
}

HtaFigures figures_of(int64_t rank, const std::vector<Row>& rows) {
  HtaFigures f;
  f.rank = rank;
  const auto all = merged(rows, [](std::string_view) { return true; });
  const auto communication = merged(rows, communicates);
  const auto compute =
      merged(rows, [](std::string_view name) { return !is_memory(name) && computes(name); });
  if (!communication.empty() && length_of(communication) != 0) {
    f.overlap_percent =
        two_decimals(100 * (overlap_of(communication, compute) / length_of(communication)));
  }
  if (!all.empty()) {
    HtaFigures::Temporal t;
    t.kernel_us = all.back().end - all.front().start;
    t.idle_us = t.kernel_us - length_of(all);
    t.compute_us = length_of(compute);
    t.non_compute_us = t.kernel_us - t.compute_us - t.idle_us;
    t.idle_percent = two_decimals(100 * (t.idle_us / t.kernel_us));
    t.compute_percent = two_decimals(100 * (t.compute_us / t.kernel_us));
    t.non_compute_percent = two_decimals(100 * (t.non_compute_us / t.kernel_us));
    f.temporal = t;
  }
  return f;
}

}  // namespace

std::vector<HtaFigures> hta_figures(const std::vector<Trace>& traces) {
  std::vector<std::vector<Row>> ranks;
  std::set<std::string> steps;
  for (const Trace& trace : traces) {
    ranks.push_back(rows_of(trace));
    for (const Row& row : ranks.back()) {
      if (row.name.find("ProfilerStep") != std::string_view::npos) {
        steps.emplace(row.name);
      }
    }
  }
  std::vector<HtaFigures> out;
  for (size_t i = 0; i < traces.size(); ++i) {
    if (steps.size() > 1) {
      leave_out_last_step(ranks[i]);
    }
    out.push_back(figures_of(traces[i].metadata.rank.value_or(0), ranks[i]));
  }
  return out;
}

}  // namespace shardlens::analysis
