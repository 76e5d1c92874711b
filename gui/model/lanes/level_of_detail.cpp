#include "gui/model/lanes/level_of_detail.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "profiler/analysis/events/sort_runs.h"

namespace shardlens::gui {
namespace {

constexpr double kWidePixels = 1.5;
constexpr size_t kWalked = 8'000;
constexpr size_t kPyramidFrom = 8'000;  // items; rows with fewer have no pyramid
constexpr int kHighestShift = 31;       // a bucket's busy time must fit a uint32_t

// The busy fraction of each pixel. Runs of pixels with similar fractions become one tile.
class Columns {
 public:
  Columns(int width, double ns_per_pixel)
      : busy_(static_cast<size_t>(width)), ns_per_pixel_(ns_per_pixel) {}

  void add(double left, double right) {
    const int last = static_cast<int>(busy_.size()) - 1;
    const int from = std::min(static_cast<int>(left), last);  // neither is negative
    const int to = std::min(static_cast<int>(right), last);
    if (from == to) {
      busy_[static_cast<size_t>(from)] += right - left;
      return;
    }
    for (int x = from; x <= to; ++x) {
      const double part = std::min(right, x + 1.0) - std::max(left, static_cast<double>(x));
      busy_[static_cast<size_t>(x)] += std::max(0.0, part);
    }
  }
  void set(int x, double nanoseconds) {
    busy_[static_cast<size_t>(x)] = nanoseconds / ns_per_pixel_;
  }

  void append(std::vector<Tile>& out) const {
    constexpr double kStep = 1.0 / 24;  // smaller than the height of a pixel in a row
    for (size_t x = 0; x < busy_.size();) {
      size_t end = x + 1;
      double sum = busy_[x];
      if (busy_[x] <= 0) {
        x = end;
        continue;
      }
      while (end < busy_.size() && busy_[end] > 0 && std::abs(busy_[end] - busy_[x]) < kStep) {
        sum += busy_[end++];
      }
      const double busy = std::min(1.0, sum / static_cast<double>(end - x));
      out.push_back({static_cast<double>(x), static_cast<double>(end), busy, -1});
      x = end;
    }
  }

 private:
  std::vector<double> busy_;  // 0 to 1
  double ns_per_pixel_;
};

}  // namespace

BusyPyramid::BusyPyramid(const LaneItems& items) {
  if (items.size() < kPyramidFrom) {
    return;
  }
  origin_ = items.front().start;
  const Nanoseconds span = std::max<Nanoseconds>(1, items.back().end - origin_);
  const Nanoseconds buckets = static_cast<Nanoseconds>(items.size() / 4);
  while (shift_ < kHighestShift && (span >> shift_) > buckets) {
    ++shift_;
  }
  if ((span >> shift_) > 4 * buckets) {
    return;  // few events over a very long time: walking them is cheaper
  }
  levels_.emplace_back(static_cast<size_t>((span >> shift_) + 1));
  for (const LaneItem item : items) {
    Nanoseconds at = item.start - origin_;
    const Nanoseconds end = item.end - origin_;
    while (at < end) {
      const Nanoseconds bucket = at >> shift_;
      const Nanoseconds until = std::min(end, (bucket + 1) << shift_);
      levels_[0][static_cast<size_t>(bucket)] += static_cast<uint32_t>(until - at);
      at = until;
    }
  }
  for (int shift = shift_ + 1; shift <= kHighestShift && levels_.back().size() > 1; ++shift) {
    const std::vector<uint32_t>& fine = levels_.back();
    std::vector<uint32_t> coarse((fine.size() + 1) / 2);
    for (size_t i = 0; i < fine.size(); ++i) {
      coarse[i / 2] += fine[i];
    }
    levels_.push_back(std::move(coarse));
  }
}

double BusyPyramid::busy(const analysis::Interval& window, double resolution) const {
  size_t level = 0;
  while (level + 1 < levels_.size() &&
         static_cast<double>(Nanoseconds{2} << (shift_ + static_cast<int>(level))) <= resolution) {
    ++level;
  }
  const std::vector<uint32_t>& buckets = levels_[level];
  const int shift = shift_ + static_cast<int>(level);
  const Nanoseconds size = Nanoseconds{1} << shift;
  const Nanoseconds limit = static_cast<Nanoseconds>(buckets.size()) * size;
  const Nanoseconds start = std::clamp<Nanoseconds>(window.start - origin_, 0, limit);
  const Nanoseconds end = std::clamp<Nanoseconds>(window.end - origin_, 0, limit);
  double sum = 0;
  for (Nanoseconds at = start; at < end;) {
    const Nanoseconds bucket = at >> shift;
    const Nanoseconds until = std::min(end, (bucket + 1) * size);
    sum += buckets[static_cast<size_t>(bucket)] * static_cast<double>(until - at) /
           static_cast<double>(size);
    at = until;
  }
  return sum;
}

LaneRow::LaneRow(ItemTable table, std::vector<uint32_t> positions)
    : table_(table), positions_(std::move(positions)), pyramid_(items()) {}

size_t LaneRow::first_ending_after(Nanoseconds instant) const {
  const auto found = std::ranges::partition_point(
      positions_, [this, instant](uint32_t position) { return table_(position).end <= instant; });
  return static_cast<size_t>(found - positions_.begin());
}

std::vector<LaneRow> rows_of(const ItemTable& table, std::vector<uint32_t> positions) {
  bool sorted = true, overlap = false;
  LaneItem last;
  for (size_t i = 0; i < positions.size(); ++i) {
    const LaneItem item = table(positions[i]);
    sorted = sorted && (i == 0 || item.start >= last.start);
    overlap = overlap || (i > 0 && item.start < last.end);
    last = item;
  }
  std::vector<LaneRow> out;
  if (sorted && !overlap) {  // the usual case, without the copies made below
    if (!positions.empty()) {
      positions.shrink_to_fit();
      out.emplace_back(table, std::move(positions));
    }
    return out;
  }
  analysis::sort_runs(positions,
                      [&table](uint32_t a, uint32_t b) { return table(a).start < table(b).start; });
  std::vector<uint32_t> left;
  while (!positions.empty()) {
    std::vector<uint32_t> row;
    Nanoseconds end = 0;  // of the row's last item
    left.clear();
    for (const uint32_t position : positions) {
      const LaneItem item = table(position);
      const bool fits = row.empty() || item.start >= end;
      (fits ? row : left).push_back(position);
      end = fits ? item.end : end;
    }
    row.shrink_to_fit();
    out.emplace_back(table, std::move(row));
    std::swap(positions, left);
  }
  return out;
}

void append_tiles(const LaneRow& row,
                  const analysis::Interval& view,
                  int width,
                  std::vector<Tile>& out) {
  if (width <= 0 || view.end <= view.start) {
    return;
  }
  const LaneItems items = row.items();
  const size_t first = row.first_ending_after(view.start);
  const auto after = std::ranges::lower_bound(items.begin() + static_cast<std::ptrdiff_t>(first),
                                              items.end(), view.end, {}, &LaneItem::start);
  const size_t last = static_cast<size_t>(after - items.begin());
  const double ns_per_pixel =
      static_cast<double>(view.end - view.start) / static_cast<double>(width);
  if (last - first > kWalked && !row.pyramid().empty()) {
    Columns columns(width, ns_per_pixel);
    for (int x = 0; x < width; ++x) {
      const auto edge = [&](int pixel) {
        return view.start + static_cast<Nanoseconds>(std::llround(pixel * ns_per_pixel));
      };
      columns.set(x, row.pyramid().busy({edge(x), edge(x + 1)}, ns_per_pixel));
    }
    columns.append(out);
    return;
  }
  Columns columns(width, ns_per_pixel);
  const double pixels_per_ns = 1 / ns_per_pixel;
  const size_t before = out.size();
  for (size_t i = first; i < last; ++i) {
    const LaneItem item = items[i];
    const double left =
        static_cast<double>(std::max(item.start, view.start) - view.start) * pixels_per_ns;
    const double right =
        static_cast<double>(std::min(item.end, view.end) - view.start) * pixels_per_ns;
    // The item's full length decides whether it is wide, so that it does not change at the view's
    // edge.
    if (static_cast<double>(item.end - item.start) >= kWidePixels * ns_per_pixel) {
      out.push_back({left, right, 1, static_cast<int64_t>(i)});
    } else {
      columns.add(left, right);
    }
  }
  const size_t wide = out.size();
  columns.append(out);
  std::inplace_merge(out.begin() + static_cast<std::ptrdiff_t>(before),
                     out.begin() + static_cast<std::ptrdiff_t>(wide), out.end(),
                     [](const Tile& a, const Tile& b) { return a.left < b.left; });
}

}  // namespace shardlens::gui
