#include "gui/model/lanes/level_of_detail.h"

#include <algorithm>
#include <cmath>
#include <utility>

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

BusyPyramid::BusyPyramid(const std::vector<LaneItem>& items) {
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
  for (const LaneItem& item : items) {
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

LaneRow::LaneRow(std::vector<LaneItem> items) : items_(std::move(items)), pyramid_(items_) {}

size_t LaneRow::first_ending_after(Nanoseconds instant) const {
  const auto found =
      std::upper_bound(items_.begin(), items_.end(), instant,
                       [](Nanoseconds t, const LaneItem& item) { return t < item.end; });
  return static_cast<size_t>(found - items_.begin());
}

std::vector<LaneRow> rows_of(std::vector<LaneItem> items) {
  const auto by_start = [](const LaneItem& a, const LaneItem& b) { return a.start < b.start; };
  if (!std::is_sorted(items.begin(), items.end(), by_start)) {
    std::stable_sort(items.begin(), items.end(), by_start);
  }
  const auto overlaps = [](const LaneItem& a, const LaneItem& b) { return b.start < a.end; };
  if (std::adjacent_find(items.begin(), items.end(), overlaps) == items.end()) {
    std::vector<LaneRow> one;  // the usual case, without the copies made below
    if (!items.empty()) {
      items.shrink_to_fit();
      one.emplace_back(std::move(items));
    }
    return one;
  }
  std::vector<std::vector<LaneItem>> rows;
  std::vector<LaneItem> left;
  while (!items.empty()) {
    std::vector<LaneItem> row;
    row.reserve(items.size());
    left.clear();
    for (const LaneItem& item : items) {
      const bool fits = row.empty() || item.start >= row.back().end;
      (fits ? row : left).push_back(item);
    }
    row.shrink_to_fit();
    rows.push_back(std::move(row));
    std::swap(items, left);
  }
  std::vector<LaneRow> out;
  out.reserve(rows.size());
  for (std::vector<LaneItem>& row : rows) {
    out.emplace_back(std::move(row));
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
  const std::vector<LaneItem>& items = row.items();
  const size_t first = row.first_ending_after(view.start);
  const auto after =
      std::lower_bound(items.begin() + static_cast<std::ptrdiff_t>(first), items.end(), view.end,
                       [](const LaneItem& item, Nanoseconds t) { return item.start < t; });
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
    const double left =
        static_cast<double>(std::max(items[i].start, view.start) - view.start) * pixels_per_ns;
    const double right =
        static_cast<double>(std::min(items[i].end, view.end) - view.start) * pixels_per_ns;
    // The item's full length decides whether it is wide, so that it does not change at the view's
    // edge.
    if (static_cast<double>(items[i].end - items[i].start) >= kWidePixels * ns_per_pixel) {
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
