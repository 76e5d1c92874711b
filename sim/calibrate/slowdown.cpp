#include "sim/calibrate/slowdown.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "core/base/median.h"

namespace shardlens::sim {

double Samples::release() {
  constexpr double kTimes = 3, kLeast = 1000;
  constexpr size_t kFew = 4;
  std::vector<double> alone;
  for (const auto& [us, share] : each) {
    if (share <= kAloneShare) {
      alone.push_back(us);
    }
  }
  if (alone.size() < kFew) {
    return 0;
  }
  const double middle = upper_median(alone);
  double lost = 0;
  for (auto& [us, share] : each) {
    if (share <= kAloneShare && us >= kTimes * middle && us >= middle + kLeast) {
      lost += std::exchange(us, middle) - middle;
    }
  }
  return lost;
}

double Samples::mean_alone(double slowdown) const {
  double sum = 0;
  for (const auto& [us, share] : each) {
    sum += us * (1 - share + share / slowdown);
  }
  return each.empty() ? 0 : sum / static_cast<double>(each.size());
}

double Samples::spread(double around, double slowdown) const {
  double sum = 0;
  for (const auto& [us, share] : each) {
    sum += std::abs(us * (1 - share + share / slowdown) - around);
  }
  return around > 0 && !each.empty() ? sum / static_cast<double>(each.size()) / around : 0;
}

void Slowdown::add(const Samples& samples) {
  constexpr double kBeside = 0.3;
  constexpr int64_t kFew = 2;
  Mean alone, share;
  double most = 0;
  for (const auto& [us, beside] : samples.each) {
    share.add(beside);
    most = std::max(most, beside);
    if (beside <= kAloneShare) {
      alone.add(us);
    }
  }
  if (alone.count >= kFew && most > kBeside) {
    anchored_.tell = true;
    for (const auto& [us, beside] : samples.each) {
      if (beside > kAloneShare) {
        anchored_.beside += us * beside;
        anchored_.alone += alone.value() - us * (1 - beside);
      }
    }
  }
  const auto [low, high] =
      std::minmax_element(samples.each.begin(), samples.each.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; });
  if (share.count >= 2 * kFew && high->second - low->second > kBeside) {
    correlated_.tell = true;
    for (const auto& [us, beside] : samples.each) {
      correlated_.beside += (beside - share.value()) * us * beside;
      correlated_.alone -= (beside - share.value()) * us * (1 - beside);
    }
  }
}

std::optional<double> Slowdown::value() const {
  constexpr double kMost = 4;
  const Sums& sums = anchored_.tell ? anchored_ : correlated_;
  if (!sums.tell) {
    return std::nullopt;
  }
  return sums.alone > 0 ? std::clamp(sums.beside / sums.alone, 1.0, kMost) : kMost;
}

}  // namespace shardlens::sim
