#include "profiler/analysis/overlap/memory_figures.h"

#include <algorithm>

#include <fmt/format.h>

namespace shardlens::analysis {
namespace {

struct Point {
  MemoryPoint memory;
  int32_t type, device;
  bool from_driver;
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
  std::vector<std::vector<Point>> devices;
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
                      from_driver};
    auto found = std::find_if(devices.begin(), devices.end(), [&](const std::vector<Point>& d) {
      return d.front().type == point.type && d.front().device == point.device &&
             d.front().from_driver == from_driver;
    });
    if (found == devices.end()) {
      found = devices.insert(devices.end(), std::vector<Point>());
    }
    found->push_back(point);
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
    for (const Step& step : timeline.steps) {
      const auto from = std::partition_point(points.begin(), points.end(), [&](const Point& p) {
        return p.memory.time < step.host.start;
      });
      if (from == points.end() || from->memory.time >= step.host.end) {
        continue;
      }
      MemoryFigures::StepPeak& peak = f.steps.emplace_back();
      peak.step = step.number;
      for (auto p = from; p != points.end() && p->memory.time < step.host.end; ++p) {
        peak.allocated = std::max(peak.allocated, p->memory.allocated);
      }
    }
    f.timeline = thin_out(points);
  }
  return out;
}

}  // namespace shardlens::analysis
