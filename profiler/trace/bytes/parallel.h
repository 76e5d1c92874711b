#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <thread>
#include <vector>

namespace shardlens::trace {

// Calls work(i) for every i < count, on as many threads as there are processors, including the
// caller's thread.
//
// Errors  rethrows the exception of the lowest i that failed, after all calls have ended.
template <typename Work>
void in_parallel(size_t count, const Work& work) {
  std::vector<std::exception_ptr> errors(count);
  std::atomic<size_t> next = 0;
  const auto loop = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  };
  const size_t threads = std::min<size_t>(std::max(1U, std::thread::hardware_concurrency()), count);
  std::vector<std::jthread> others;
  for (size_t i = 1; i < threads; ++i) {
    others.emplace_back(loop);
  }
  loop();
  others.clear();  // joins
  for (const std::exception_ptr& error : errors) {
    if (error) {
      std::rethrow_exception(error);
    }
  }
}

}  // namespace shardlens::trace
