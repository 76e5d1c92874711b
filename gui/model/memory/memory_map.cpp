#include "gui/model/memory/memory_map.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <span>
#include <utility>

namespace shardlens::gui {
namespace {

// A strip of items along the `length` of its area, which together need `weight` of it.
double mean_aspect(
    const std::vector<double>& weights, size_t begin, size_t end, double weight, double length) {
  const double thick = weight / length;
  double sum = 0;
  for (size_t i = begin; i < end; ++i) {
    const double wide = std::max(weights[i] / thick, 1e-9);
    sum += std::max(wide / thick, thick / wide);
  }
  return sum / static_cast<double>(end - begin);
}

// Of several moments at one time the highest, so that the peak is not lost.
const sim::MemoryCurve::Point& moment_at(const sim::MemoryCurve& curve, Nanoseconds time) {
  const sim::MemoryCurve::Point* point = &curve.at(time);
  const sim::MemoryCurve::Point* highest = point;
  for (; point != &curve.points.front() && (point - 1)->time == highest->time; --point) {
    highest = (point - 1)->sum() > highest->sum() ? point - 1 : highest;
  }
  return *highest;
}

struct Size {  // of a group, and of what is in it
  Bytes bytes = 0;
  std::map<std::pair<UnitId, sim::MemoryCategory>, Bytes> parts;
};

}  // namespace

std::vector<QRectF> strip_treemap(const std::vector<double>& weights, const QRectF& area) {
  std::vector<QRectF> out(weights.size());
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (sum <= 0 || area.isEmpty()) {
    return out;
  }
  const bool upright = area.width() > area.height();  // strips are columns
  const double length = upright ? area.height() : area.width();
  const double scale = area.width() * area.height() / sum;
  std::vector<double> scaled;
  for (const double weight : weights) {
    scaled.push_back(weight * scale);
  }
  double offset = 0;  // of the strip, from the area's left or top
  for (size_t begin = 0; begin < scaled.size();) {
    double strip = scaled[begin];
    size_t end = begin + 1;
    while (end < scaled.size() &&
           (strip <= 0 || mean_aspect(scaled, begin, end + 1, strip + scaled[end], length) <=
                              mean_aspect(scaled, begin, end, strip, length))) {
      strip += scaled[end++];
    }
    const double thick = strip / length;
    double along = 0;
    for (size_t i = begin; i < end; ++i) {
      const double wide = strip > 0 ? scaled[i] / thick : 0;
      out[i] = upright ? QRectF(area.left() + offset, area.top() + along, thick, wide)
                       : QRectF(area.left() + along, area.top() + offset, wide, thick);
      along += wide;
    }
    offset += thick;
    begin = end;
  }
  return out;
}

MemoryMap memory_map(const sim::MemoryCurve& curve,
                     Nanoseconds time,
                     MemoryMap::Order order,
                     const QRectF& area) {
  MemoryMap out;
  const sim::MemoryCurve::Point& point = moment_at(curve, time);
  out.sum = point.sum();
  out.peak = curve.points[curve.peak].sum();
  const double share =
      out.peak == 0 ? 0 : static_cast<double>(out.sum) / static_cast<double>(out.peak);
  out.used = QRectF(area.left(), area.top(), area.width() * share, area.height());
  out.free = QRectF(out.used.right(), area.top(), area.width() - out.used.width(), area.height());
  const std::vector<Bytes> held = curve.held_at(point);
  std::map<uint32_t, Size> groups;  // by unit or category; what belongs to no unit is last
  for (size_t i = 0; i < held.size(); ++i) {
    if (held[i] <= 0) {
      continue;
    }
    const sim::MemoryHolder& holder = curve.holders[i];
    const bool by_unit = order == MemoryMap::Order::kByUnit;
    Size& group = groups[by_unit ? holder.unit : static_cast<uint32_t>(holder.category)];
    group.bytes += held[i];
    group.parts[{holder.unit, holder.category}] += held[i];
  }
  std::vector<double> weights;
  for (const auto& [key, group] : groups) {
    weights.push_back(static_cast<double>(group.bytes));
  }
  const std::vector<QRectF> areas = strip_treemap(weights, out.used);
  for (const auto& [key, group] : groups) {
    const QRectF& where = areas[out.groups.size()];
    weights.clear();
    for (const auto& [part, bytes] : group.parts) {
      weights.push_back(static_cast<double>(bytes));
    }
    const std::vector<QRectF> inner = strip_treemap(weights, where);
    const size_t begin = out.tiles.size();
    for (const auto& [part, bytes] : group.parts) {
      const size_t at = out.tiles.size() - begin;
      out.tiles.push_back(
          {inner[at], part.second, curve.unit_of({part.second, part.first, {}}), bytes, false});
    }
    const auto tiles = std::span(out.tiles).subspan(begin);
    std::ranges::max_element(tiles, {}, &MemoryMap::Tile::bytes)->largest = true;
    out.groups.push_back({where, group.bytes, begin, out.tiles.size()});
  }
  return out;
}

const MemoryMap::Tile* MemoryMap::at(const QPointF& position) const {
  const auto found = std::ranges::find_if(
      tiles, [&position](const Tile& tile) { return tile.area.contains(position); });
  return found == tiles.end() ? nullptr : &*found;
}

std::vector<HeldMemory> held_memory(const sim::MemoryCurve& curve,
                                    Nanoseconds time,
                                    const std::optional<std::string>& unit,
                                    sim::MemoryCategory category) {
  std::vector<HeldMemory> out;
  const std::vector<Bytes> held = curve.held_at(moment_at(curve, time));
  for (size_t i = 0; i < held.size(); ++i) {
    const sim::MemoryHolder& holder = curve.holders[i];
    if (held[i] > 0 && holder.category == category && curve.unit_of(holder) == unit) {
      out.push_back({holder.what, held[i]});
    }
  }
  std::ranges::stable_sort(out, std::ranges::greater{}, &HeldMemory::bytes);
  return out;
}

}  // namespace shardlens::gui
