#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

namespace shardlens::cli {

// Turns SIGINT and SIGTERM into a flag that the step loop checks between steps, and calls a
// callback for SIGUSR1. A step that hangs in a collective never checks the flag: after
// `kGraceSeconds` `last_words` is called, and the process exits with code 4.
//
// Threads  construct it before any other thread exists: other threads inherit the signal mask, so
//          only this object's thread receives the signals. It also runs the callbacks.
class StopSignal {
 public:
  static constexpr int kGraceSeconds = 5;

  explicit StopSignal(int rank);
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  [[nodiscard]] const std::atomic<bool>& requested() const { return requested_; }
  // Work that has no time limit begins or ends: a checkpoint, or what follows training, such as
  // writing the trace.
  void set_unlimited(bool unlimited) { unlimited_ = unlimited; }
  void set_last_words(std::function<void()> last_words);
  // Called on this object's thread for each SIGUSR1, including those before this call; empty: no
  // callback.
  void set_on_user_signal(std::function<void()> on_user_signal);

 private:
  void wait_for_signal();

  int rank_;
  std::atomic<bool> requested_{false}, unlimited_{false}, done_{false};
  std::mutex mutex_;
  std::function<void()> last_words_, on_user_signal_;
  int missed_user_signals_ = 0;
  std::thread thread_;
};

}  // namespace shardlens::cli
