#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "core/plan/resolved_plan.h"
#include "core/workload/workload.h"

namespace shardlens::schedule {

// Numbers of operators and communications (plan::number_of()), in the order in which they run.
class OperatorRuns {
 public:
  void clear() {
    numbers_.clear();
    since_.clear();
  }
  // `count` numbers from `first` on.
  void add(uint32_t first, uint32_t count) {
    const uint32_t before = size();
    const bool continues = before > 0 && numbers_.back() + 1 == first;
    since_.resize(before + count, continues ? since_.back() : before);
    numbers_.resize(before + count);
    std::iota(numbers_.begin() + static_cast<std::ptrdiff_t>(before), numbers_.end(), first);
  }
  [[nodiscard]] uint32_t size() const { return static_cast<uint32_t>(numbers_.size()); }
  [[nodiscard]] uint32_t operator[](uint32_t i) const { return numbers_[i]; }
  // Whether each number from `begin` to `end` is one more than the one before it.
  [[nodiscard]] bool successive(uint32_t begin, uint32_t end) const {
    return since_[end - 1] <= begin;
  }

 private:
  std::vector<uint32_t> numbers_, since_;  // `since_`: from where on numbers are successive
};

// Whether each operator or communication, by plan::number_of(), is an operator of a module that has
// parameters which are not frozen. Empty: no parameter is frozen.
[[nodiscard]] std::vector<bool> trained_operators(const plan::Workload& workload,
                                                  const plan::ResolvedPlan& plan);

}  // namespace shardlens::schedule
