#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace shardlens::sim {

struct Mean {
  double sum = 0;
  int64_t count = 0;
  void add(double value) {
    sum += value;
    ++count;
  }
  [[nodiscard]] double value() const { return count == 0 ? 0 : sum / static_cast<double>(count); }
};

// Samples with a share of at most this much beside them ran alone.
inline constexpr double kAloneShare = 0.02;

// Samples of one thing with and without the other kind of work beside it.
struct Samples {
  std::vector<std::pair<double, double>> each;  // microseconds, share beside

  // Brings those alone that were held up, three times the others' median or more and a millisecond
  // at least, to that median, and tells by how much in sum.
  double release();
  // The mean of what each would have taken alone.
  [[nodiscard]] double mean_alone(double slowdown) const;
  // Mean |what one would have taken alone - around| / around.
  [[nodiscard]] double spread(double around, double slowdown) const;
};

// How much longer work takes with the other kind beside it.
//
// [Note: Slowdown] Work that took t, the share p of it beside, would have taken t·(1 - p) + t·p/s
// alone. Samples with nothing beside tell what a shape takes alone, a; s is what makes the others
// sum to the same: Σ t·p/s = Σ (a - t·(1 - p)), over all shapes. Where threads share cores most
// samples beside take as long as alone and some a time slice longer, and what is held up so is
// more likely to be beside in part than what is not; sums are right for such samples, squares,
// medians and correlations are not. Where no shape ran alone, s is what leaves no correlation with
// the share: Σ (p - mean p)·(t·(1 - p) + t·p/s) = 0.
class Slowdown {
 public:
  // Of one shape; one whose samples have much the same share beside them tells nothing.
  void add(const Samples& samples);
  // 1 to 4; nullopt: no shape tells.
  [[nodiscard]] std::optional<double> value() const;

 private:
  // s = beside / alone.
  struct Sums {
    double beside = 0, alone = 0;
    bool tell = false;
  };
  Sums anchored_, correlated_;
};

}  // namespace shardlens::sim
