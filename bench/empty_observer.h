#pragma once

#include <memory>

#include <ATen/record_function.h>

#include "profiler/record/host/clock.h"

namespace shardlens {

// What LibTorch takes for callbacks that record nothing, from construction to destruction: the
// least that an observer of the same functions can cost. With a clock, also two readings of it.
class EmptyObserver {
 public:
  explicit EmptyObserver(bool reads_clock)
      : handle_(at::addThreadLocalCallback(
            (reads_clock ? at::RecordFunctionCallback(start_with_clock, end_with_clock)
                         : at::RecordFunctionCallback(start, end))
                .scopes({at::RecordScope::FUNCTION}))) {
    calls() = 0;
  }
  ~EmptyObserver() { at::removeCallback(handle_); }
  EmptyObserver(const EmptyObserver&) = delete;
  EmptyObserver& operator=(const EmptyObserver&) = delete;

  // Functions that were observed since the latest construction.
  static int64_t& calls() {
    static int64_t count = 0;
    return count;
  }

 private:
  static std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& /*function*/) {
    ++calls();
    return nullptr;
  }
  static void end(const at::RecordFunction& /*function*/, at::ObserverContext* /*context*/) {}
  static std::unique_ptr<at::ObserverContext> start_with_clock(
      const at::RecordFunction& /*function*/) {
    ++calls();
    last_time = record::now_ns();
    return nullptr;
  }
  static void end_with_clock(const at::RecordFunction& /*function*/,
                             at::ObserverContext* /*context*/) {
    last_time = record::now_ns();
  }

  static inline Nanoseconds last_time = 0;
  at::CallbackHandle handle_;
};

}  // namespace shardlens
