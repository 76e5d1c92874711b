#include "sim/search/predictions.h"

#include <algorithm>

namespace shardlens::sim {

Outcome Predictions::of(const Candidate& candidate, Evaluator& evaluator) {
  const auto known = options_.known.empty() ? options_.known.end()
                                            : options_.known.find(name_of(candidate, ranks_));
  if (known != options_.known.end()) {
    const std::lock_guard lock(mutex_);
    ++done_;
    return known->second;
  }
  const Outcome outcome = evaluator.evaluate(candidate);
  const std::lock_guard lock(mutex_);
  ++done_;
  if (options_.on_progress) {
    options_.on_progress({candidate, outcome}, done_, all_);
  }
  return outcome;
}

unsigned threads_of(const SearchOptions& options) {
  return options.threads > 0 ? options.threads : std::max(1U, std::thread::hardware_concurrency());
}

void on_threads(unsigned threads, size_t count, const std::function<void(size_t)>& run) {
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      for (size_t i = next++; i < count; i = next++) {
        run(i);
      }
    } catch (...) {
      next = count;
      const std::lock_guard lock(mutex);
      failure = failure ? failure : std::current_exception();
    }
  };
  std::vector<std::thread> workers;
  for (size_t i = 1; i < std::min<size_t>(threads, count); ++i) {
    workers.emplace_back(work);
  }
  work();
  for (std::thread& worker : workers) {
    worker.join();
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
}

}  // namespace shardlens::sim
