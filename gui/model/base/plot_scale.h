#pragma once

#include <vector>

namespace shardlens::gui {

// Round values from `low` to `high`, at most about `most` of them, ascending. `unit`: they are
// round in multiples of it.
[[nodiscard]] std::vector<double> round_ticks(double low, double high, int most, double unit);

// One axis of a plot: values to positions from 0 to 1, linear, or logarithmic where the largest
// value is many times the smallest.
class PlotScale {
 public:
  // Values above 0; the scale has a margin around them. Without values it is from 0 to 1.
  void add(double value);
  void settle();  // after the last add()
  [[nodiscard]] double position(double value) const;
  [[nodiscard]] double value(double position) const;
  [[nodiscard]] bool isLogarithmic() const { return logarithmic_; }
  // Round values, at most `most` of them, ascending. `unit`: they are round in multiples of it.
  [[nodiscard]] std::vector<double> ticks(int most, double unit) const;

 private:
  double low_ = 0, high_ = 0;
  bool logarithmic_ = false, empty_ = true;
};

}  // namespace shardlens::gui
