#include "profiler/trace/filter.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "profiler/trace/decimal.h"

namespace shardlens::trace {
namespace {

constexpr std::string_view kStepMark = "ProfilerStep#";

bool is_step_mark(const Trace& trace, const Event& event) {
  return event.category == Category::kUserAnnotation && trace.name(event).starts_with(kStepMark);
}

using Window = std::pair<Nanoseconds, Nanoseconds>;

std::vector<Window> windows_of(const Trace& trace, const std::pair<int64_t, int64_t>& steps) {
  std::vector<Window> windows;
  for (const Event& event : trace.events) {
    if (!is_step_mark(trace, event)) {
      continue;
    }
    const auto number = scaled_decimal(trace.name(event).substr(kStepMark.size()), 0);
    if (number && *number >= steps.first && *number < steps.second) {
      windows.emplace_back(event.start, event.end());
    }
  }
  if (windows.empty()) {
    throw InputError(trace.metadata.source,
                     fmt::format("no step in {}:{}", steps.first, steps.second));
  }
  std::sort(windows.begin(), windows.end());
  return windows;
}

bool within(const std::vector<Window>& windows, Nanoseconds time) {
  return std::any_of(windows.begin(), windows.end(),
                     [&](const Window& w) { return time >= w.first && time < w.second; });
}

bool is_on_device(const Event& event) {
  return event.category == Category::kKernel || event.category == Category::kGpuMemcpy ||
         event.category == Category::kGpuMemset || event.category == Category::kCudaSync;
}

void keep_steps(Trace& trace, const std::pair<int64_t, int64_t>& steps) {
  const std::vector<Window> windows = windows_of(trace, steps);
  std::unordered_set<uint32_t> launched;
  for (const Event& event : trace.events) {
    if ((event.category == Category::kCudaRuntime || event.category == Category::kCudaDriver) &&
        within(windows, event.start)) {
      launched.insert(event.correlation);
    }
  }
  erase_if(trace.events, [&](const Event& event) {
    const bool by_launch =
        event.correlation != 0 && (is_on_device(event) || event.category == Category::kAc2g);
    return by_launch ? !launched.contains(event.correlation) : !within(windows, event.start);
  });
}

}  // namespace

void apply(const Filter& filter, Trace& trace) {
  if (filter.steps) {
    keep_steps(trace, *filter.steps);
  }
  if (!filter.categories.empty()) {
    erase_if(trace.events, [&](const Event& event) {
      const std::string_view category = trace.category(event);
      return !is_step_mark(trace, event) &&
             std::find(filter.categories.begin(), filter.categories.end(), category) ==
                 filter.categories.end();
    });
  }
}

}  // namespace shardlens::trace
