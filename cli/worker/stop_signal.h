#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

namespace shardlens::cli {

// Also hands SIGUSR1 to whom it is for. Turns SIGINT and SIGTERM into a flag that the step loop
// asks between steps. A step that hangs in a collective never asks: after `kGraceSeconds` the
// process leaves with exit code 4, once `last_words` has run.
//
// Threads  make it before any other thread exists: they inherit the mask that keeps the signals for
//          the thread in here. `last_words` runs on that thread.
class StopSignal {
 public:
  static constexpr int kGraceSeconds = 5;

  explicit StopSignal(int rank);
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  [[nodiscard]] const std::atomic<bool>& requested() const { return requested_; }
  // Training has ended: what follows, such as writing the trace, may take its time.
  void training_ended() { training_ended_ = true; }
  void set_last_words(std::function<void()> last_words);
  // Called for each SIGUSR1, also those that came before, on the thread in here; empty: nothing.
  void set_on_user_signal(std::function<void()> on_user_signal);

 private:
  void wait_for_signal();

  int rank_;
  std::atomic<bool> requested_{false}, training_ended_{false}, done_{false};
  std::mutex mutex_;
  std::function<void()> last_words_, on_user_signal_;
  int missed_user_signals_ = 0;
  std::thread thread_;
};

}  // namespace shardlens::cli
