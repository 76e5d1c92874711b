#include "profiler/analysis/figures/memory_figures.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <tuple>

#include <fmt/format.h>

namespace shardlens::analysis {
namespace {

struct Point {
  MemoryPoint memory;
  int32_t type, device;
  bool from_driver;
  int64_t address;
  Bytes bytes;  // that this event allocated; negative: freed
};

std::string device_name(int32_t type, int32_t device) {
  switch (type) {
    case 0:
      return "cpu";
    case 1:
      return fmt::format("cuda:{}", device);
    default:
      return fmt::format("device type {}:{}", type, device);
  }
}

// [Note: Frees that no thread reports] On CPUs PyTorch counts what the threads that its profiler
// watches allocate and free, for as long as it runs. A block that another thread frees stays
// counted, Gloo's threads may be the last to let go of the tensors of a collective, and so does
// what is freed after a recording: a later one of the process begins with it. So what the first
// event found is left out. An allocation at a place that is still taken shows that its blocks were
// freed; from then on they are not counted.
void leave_out_freed(std::vector<Point>& points) {
  constexpr Bytes kMost = Bytes{1} << 40;  // a damaged file may have any number
  std::map<int64_t, Bytes> blocks;         // by address
  const Point& first = points.front();
  Bytes freed = first.bytes > 0 ? std::max<Bytes>(0, first.memory.allocated - first.bytes) : 0;
  for (Point& point : points) {
    if (point.bytes < 0) {
      blocks.erase(point.address);
    } else if (point.bytes > 0 && point.bytes <= kMost && point.address > 0 &&
               point.address < INT64_MAX - kMost) {
      auto taken = blocks.upper_bound(point.address);
      if (taken != blocks.begin() &&
          std::prev(taken)->first + std::prev(taken)->second > point.address) {
        --taken;
      }
      while (taken != blocks.end() && taken->first < point.address + point.bytes) {
        freed += taken->second;
        taken = blocks.erase(taken);
      }
      blocks.emplace(point.address, point.bytes);
    }
    point.memory.allocated -= freed;
  }
}

// The highest point of each of at most kPoints groups of equal size.
std::vector<MemoryPoint> thin_out(const std::vector<Point>& points) {
  std::vector<MemoryPoint> out;
  const size_t run = (points.size() + MemoryFigures::kPoints - 1) / MemoryFigures::kPoints;
  for (size_t i = 0; i < points.size(); ++i) {
    const MemoryPoint& point = points[i].memory;
    if (i % run == 0) {
      out.push_back(point);
    } else if (point.allocated > out.back().allocated) {
      out.back() = point;
    }
  }
  return out;
}

}  // namespace

std::vector<MemoryFigures> memory_figures(const trace::Trace& trace, const Timeline& timeline) {
  if (trace.memory_events.empty()) {
    return {};
  }
  std::vector<std::vector<Point>> devices;  // by first event
  std::map<std::tuple<int32_t, int32_t, bool>, size_t> places;
  for (const trace::Event& event : trace.events) {
    const trace::MemoryArgs* args = trace.memory(event);
    if (args == nullptr) {
      continue;
    }
    const bool from_driver = args->total_allocated < 0;
    const Point point{{event.start, from_driver ? args->total_reserved : args->total_allocated,
                       args->total_reserved},
                      args->device_type,
                      args->device,
                      from_driver,
                      args->address,
                      args->bytes};
    const auto [place, fresh] =
        places.try_emplace({point.type, point.device, from_driver}, devices.size());
    if (fresh) {
      devices.emplace_back();
    }
    devices[place->second].push_back(point);
  }
  std::vector<MemoryFigures> out;
  for (std::vector<Point>& points : devices) {
    std::stable_sort(points.begin(), points.end(),
                     [](const Point& a, const Point& b) { return a.memory.time < b.memory.time; });
    if (points.front().type == 0 && !points.front().from_driver) {
      leave_out_freed(points);
    }
    MemoryFigures& f = out.emplace_back();
    f.device = device_name(points.front().type, points.front().device);
    f.from_driver = points.front().from_driver;
    f.events = static_cast<int64_t>(points.size());
    f.peak = points.front().memory;
    for (const Point& p : points) {
      f.peak_reserved = std::max(f.peak_reserved, p.memory.reserved);
      if (p.memory.allocated > f.peak.allocated) {
        f.peak = p.memory;
      }
    }
    auto latest = timeline.steps.end();
    auto step = timeline.steps.begin();  // by start, without overlap
    for (size_t i = 0; i < points.size(); ++i) {
      const Point& p = points[i];
      step = std::partition_point(step, timeline.steps.end(),
                                  [&](const Step& s) { return s.host.end <= p.memory.time; });
      if (step == timeline.steps.end() || p.memory.time < step->host.start) {
        continue;
      }
      if (f.steps.empty() || latest != step) {
        f.steps.push_back({step->number, 0,
                           i > 0 ? points[i - 1].memory.allocated : p.memory.allocated - p.bytes});
        latest = step;
      }
      f.steps.back().allocated = std::max(f.steps.back().allocated, p.memory.allocated);
    }
    f.timeline = thin_out(points);
  }
  return out;
}

}  // namespace shardlens::analysis
