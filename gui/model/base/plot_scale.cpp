#include "gui/model/base/plot_scale.h"

#include <algorithm>
#include <cmath>

namespace shardlens::gui {
namespace {

constexpr double kFar = 6, kAround = 0.06;  // of a logarithmic scale; of the range, on both sides

}  // namespace

std::vector<double> round_ticks(double low, double high, int most, double unit) {
  std::vector<double> out;
  double step = std::pow(10, std::floor(std::log10((high - low) / unit))) / 10 * unit;
  for (size_t i = 0; (high - low) / step > most; ++i) {
    step *= i % 3 == 1 ? 2.5 : 2;  // 1, 2, 5, 10
  }
  for (double tick = std::ceil(low / step) * step; tick <= high; tick += step) {
    out.push_back(tick);
  }
  return out;
}

void PlotScale::add(double value) {
  low_ = empty_ ? value : std::min(low_, value);
  high_ = empty_ ? value : std::max(high_, value);
  empty_ = false;
}

void PlotScale::settle() {
  if (empty_) {
    low_ = 0;
    high_ = 1;
    return;
  }
  logarithmic_ = low_ > 0 && high_ > kFar * low_;
  if (logarithmic_) {
    const double around = std::pow(high_ / low_, kAround);
    low_ /= around;
    high_ *= around;
  } else {
    const double around = high_ > low_ ? kAround * (high_ - low_) : std::max(0.05 * high_, 1e-9);
    low_ -= around;
    high_ += around;
  }
}

double PlotScale::position(double value) const {
  return logarithmic_ ? std::log(std::max(value, 1e-300) / low_) / std::log(high_ / low_)
                      : (value - low_) / (high_ - low_);
}

double PlotScale::value(double position) const {
  return logarithmic_ ? low_ * std::pow(high_ / low_, position) : low_ + position * (high_ - low_);
}

std::vector<double> PlotScale::ticks(int most, double unit) const {
  if (!logarithmic_) {
    return round_ticks(low_, high_, most, unit);
  }
  std::vector<double> out;
  for (const bool only_tens : {false, true}) {
    out.clear();
    for (double ten = std::pow(10, std::floor(std::log10(low_ / unit))); ten * unit <= high_;
         ten *= 10) {
      for (const double digit : {1.0, 2.0, 5.0}) {
        const double tick = digit * ten * unit;
        if (tick >= low_ && tick <= high_ && (digit == 1 || !only_tens)) {
          out.push_back(tick);
        }
      }
    }
    if (static_cast<int>(out.size()) <= most) {
      break;
    }
  }
  return out;
}

}  // namespace shardlens::gui
