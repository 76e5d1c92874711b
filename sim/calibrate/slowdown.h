#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace shardlens::sim {

struct Mean {  // a running mean
  double sum = 0;
  int64_t count = 0;
  void add(double value) {
    sum += value;
    ++count;
  }
  [[nodiscard]] double value() const { return count == 0 ? 0 : sum / static_cast<double>(count); }
};

// A sample ran alone if the other kind of work ran during at most this share of it.
inline constexpr double kAloneShare = 0.02;

// Samples of one thing (compute or communication), with and without concurrent work of the other
// kind.
struct Samples {
  // Microseconds, and the share of them with concurrent work of the other kind.
  std::vector<std::pair<double, double>> each;

  // Considers only samples that ran alone. Replaces each delayed one, at least three times their
  // median and at least a millisecond longer than it, with the median. Returns the sum of the
  // delays.
  double release();
  // The mean over samples of the time that each would have taken alone.
  [[nodiscard]] double mean_alone(double slowdown) const;
  // Mean |time that a sample would have taken alone - around| / around.
  [[nodiscard]] double spread(double around, double slowdown) const;
};

// The factor by which work takes longer with concurrent work of the other kind.
//
// [Note: Slowdown] Work that took t, a share p of it with concurrent work, would have taken
// t·(1 - p) + t·p/s alone. Samples that ran alone give the time a that a shape takes alone. s is
// chosen so that the other samples have the same sum: Σ t·p/s = Σ (a - t·(1 - p)), over all shapes.
// Where threads share cores, most samples with concurrent work take as long as those without, and
// some take a time slice longer; a delayed sample is also more likely to overlap other work. For
// such samples, sums give the right s; squares, medians and correlations do not. Where no shape ran
// alone, s is chosen so that no correlation with the share remains:
// Σ (p - mean p)·(t·(1 - p) + t·p/s) = 0.
class Slowdown {
 public:
  // Adds the samples of one shape. A shape whose samples all have about the same share of
  // concurrent work does not change the result.
  void add(const Samples& samples);
  // 1 to 4; nullopt: no shape's samples differ enough.
  [[nodiscard]] std::optional<double> value() const;

 private:
  // s = beside / alone.
  struct Sums {
    double beside = 0, alone = 0;
    bool tell = false;  // whether any shape contributed
  };
  Sums anchored_, correlated_;
};

}  // namespace shardlens::sim
