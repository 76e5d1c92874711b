#include "profiler/analysis/figures/memory_figures.h"

#include <algorithm>
#include <map>
#include <tuple>

#include <fmt/format.h>

namespace shardlens::analysis {
namespace {

struct Point {
  MemoryPoint memory;
  int32_t type, device;
  bool from_driver;
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
