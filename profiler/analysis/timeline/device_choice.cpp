#include "profiler/analysis/timeline/device_choice.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/error.h"
#include "profiler/analysis/events/names.h"
#include "profiler/analysis/timeline/sources.h"

namespace shardlens::analysis {
namespace {

using trace::Category;
using trace::Event;
using trace::Trace;

// Less of the kernels' time on other devices than one part in this many is an accident of the
// program, such as a tensor made on device 0 by every rank.
constexpr Nanoseconds kNearlyAll = 100;

// The backends of c10d whose collectives run on a device.
struct DeviceBackend {
  std::string_view backend, name, activity;
};
constexpr std::array<DeviceBackend, 4> kDeviceBackends{{{"nccl", "NCCL", "CUDA"},
                                                        {"rccl", "RCCL", "CUDA"},
                                                        {"xccl", "XCCL", "XPU"},
                                                        {"hccl", "HCCL", "PrivateUse1"}}};

int64_t device_of(const Trace& trace, const Event& event) {
  const trace::DeviceArgs* args = trace.device(event);
  return args != nullptr && args->device >= 0 ? args->device : trace.tracks[event.track].pid;
}

const DeviceBackend* backend_named(std::string_view name) {
  const auto* const found = std::find_if(kDeviceBackends.begin(), kDeviceBackends.end(),
                                         [&](const auto& each) { return each.backend == name; });
  return found == kDeviceBackends.end() ? nullptr : found;
}

// The backend of an annotation of c10d ("nccl:all_reduce"); nullptr: none that runs on a device.
const DeviceBackend* backend_of_range(std::string_view name) {
  return is_c10d_annotation(name) ? backend_named(name.substr(0, name.find(':'))) : nullptr;
}

// Whether no event can be of a second device, from what many events share. To look at each of them
// reads memory that is in no cache.
bool have_one_device(const Trace& trace, const EventLists& lists) {
  std::optional<int64_t> only;
  const auto is_only = [&only](int64_t device) { return only.value_or(device) == device; };
  for (const trace::DeviceArgs& args : trace.devices) {
    if (args.device >= 0 && !is_only(args.device)) {
      return false;
    }
    only = args.device >= 0 ? args.device : only;
  }
  std::vector<bool> seen(trace.tracks.size());
  for (const EventLists::DeviceStart& each : lists.device) {
    if (!seen[each.track]) {
      seen[each.track] = true;
      if (!is_only(trace.tracks[each.track].pid)) {
        return false;
      }
      only = trace.tracks[each.track].pid;
    }
  }
  return true;
}

}  // namespace

void choose_device(const Trace& trace,
                   const TimelineOptions& options,
                   EventLists& lists,
                   std::vector<trace::Diagnostic>& diagnostics) {
  if (!options.device && have_one_device(trace, lists)) {
    return;
  }
  std::map<int64_t, Nanoseconds> time;  // of kernels, by device
  std::map<int64_t, int64_t> kernels;
  Nanoseconds all = 0;
  for (const EventLists::DeviceStart& each : lists.device) {
    const Event& event = trace.events[each.event];
    if (event.category == Category::kKernel) {
      const int64_t device = device_of(trace, event);
      time[device] += event.duration;
      ++kernels[device];
      all += event.duration;
    }
  }
  std::vector<int64_t> devices;
  for (const auto& [device, busy] : time) {
    devices.push_back(device);
  }
  if (options.device && !time.contains(*options.device)) {
    throw InputError(trace.metadata.source,
                     devices.empty()
                         ? "--device: the trace has no kernels"
                         : fmt::format("no kernels of device {}; the trace has those of {}",
                                       *options.device, fmt::join(devices, ", ")));
  }
  if (devices.size() < 2) {
    return;
  }
  const auto most = std::max_element(
      time.begin(), time.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  if (!options.device && (all - most->second) * kNearlyAll > all) {
    throw InputError(
        trace.metadata.source,
        fmt::format("one process ran kernels on the devices {}, but a rank's figures are those of "
                    "one device; add --device N, or run one process for each device (torchrun)",
                    fmt::join(devices, ", ")));
  }
  const int64_t chosen = options.device.value_or(most->first);
  for (const auto& [device, count] : kernels) {
    if (device != chosen) {
      trace::add_diagnostic(diagnostics, trace::Severity::kNote,
                            fmt::format("kernels of device {} are left out: the figures are those "
                                        "of device {}",
                                        device, chosen),
                            count);
    }
  }
  std::erase_if(lists.device, [&](const EventLists::DeviceStart& each) {
    return device_of(trace, trace.events[each.event]) != chosen;
  });
}

std::string missing_kernels(const Sources& sources) {
  const Trace& trace = sources.trace;
  const bool any = std::any_of(
      sources.lists.device.begin(), sources.lists.device.end(),
      [&](const auto& each) { return trace.events[each.event].category == Category::kKernel; });
  if (any || trace.metadata.simulated()) {
    return "";
  }
  std::string found;
  const bool none = sources.lists.device.empty();  // otherwise the copies may be the collectives
  if (none) {
    sources.lists.for_annotations_named(
        trace, [](std::string_view name) { return backend_of_range(name) != nullptr; },
        [&](uint32_t i) {
          const std::string_view name = trace.name(trace.events[i]);
          found = found.empty() ? fmt::format("{} ran ({})", backend_of_range(name)->name, name)
                                : found;
        });
  }
  const DeviceBackend* backend = backend_named(trace.metadata.backend);
  if (none && found.empty() && backend != nullptr) {
    sources.lists.for_operators_named(
        trace,
        [](std::string_view name) {
          return name == "record_param_comms" || is_collective_operator(name);
        },
        [&](uint32_t i) {
          found = found.empty()
                      ? fmt::format("{} ran ({})", backend->name, trace.name(trace.events[i]))
                      : found;
        });
  }
  if (found.empty()) {
    std::set<uint32_t> ran;  // a copy may be launched by such a call
    for (const EventLists::DeviceStart& each : sources.lists.device) {
      ran.insert(trace.events[each.event].correlation);
    }
    sources.lists.for_calls_named(
        trace,
        [](std::string_view name) { return name.find("LaunchKernel") != std::string_view::npos; },
        [&](uint32_t i) {
          const Event& call = trace.events[i];
          if (found.empty() && !ran.contains(call.correlation)) {
            found = fmt::format("kernels were launched ({})", trace.name(call));
          }
        });
  }
  return found;
}

std::string_view activity_of_kernels(const Trace& trace) {
  const DeviceBackend* backend = backend_named(trace.metadata.backend);
  return backend == nullptr ? "CUDA" : backend->activity;
}

}  // namespace shardlens::analysis
