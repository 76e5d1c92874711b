#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "sim/search/evaluator.h"
#include "sim/search/search.h"

namespace shardlens::sim {

// The outcomes of a search: those that it knows, and new ones, which it reports to its caller.
//
// Threads  any number at the same time, each with its own evaluator.
class Predictions {
 public:
  // `options` must outlive it. `all`: the largest number of candidates.
  Predictions(const SearchOptions& options, int64_t ranks, size_t all)
      : options_(options), ranks_(ranks), all_(all) {}

  // Errors: InputError as Evaluator::evaluate().
  [[nodiscard]] Outcome of(const Candidate& candidate, Evaluator& evaluator);
  [[nodiscard]] bool cancelled() const {
    return options_.cancelled != nullptr && *options_.cancelled;
  }

 private:
  const SearchOptions& options_;
  int64_t ranks_;
  size_t all_;
  std::mutex mutex_;
  size_t done_ = 0;  // guarded by mutex_
};

// Threads of a search with these options, at least one.
[[nodiscard]] unsigned threads_of(const SearchOptions& options);

// Calls run(i) for each i below `count`, each once, on this many threads. Errors: those of run().
void on_threads(unsigned threads, size_t count, const std::function<void(size_t)>& run);

}  // namespace shardlens::sim
