#include "cli/worker/stop_signal.h"

#include <csignal>
#include <cstdlib>
#include <ctime>
#include <utility>

#include <fmt/format.h>
#include <pthread.h>

#include "core/base/error.h"
#include "core/base/standard_output.h"

namespace shardlens::cli {
namespace {

sigset_t taken_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGUSR1);
  return set;
}

}  // namespace

StopSignal::StopSignal(int rank) : rank_(rank) {
  const sigset_t set = taken_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  thread_ = std::thread([this] { wait_for_signal(); });
}

StopSignal::~StopSignal() {
  done_ = true;
  thread_.join();
}

void StopSignal::set_last_words(std::function<void()> last_words) {
  const std::lock_guard lock(mutex_);
  last_words_ = std::move(last_words);
}

void StopSignal::set_on_user_signal(std::function<void()> on_user_signal) {
  const std::lock_guard lock(mutex_);
  on_user_signal_ = std::move(on_user_signal);
  for (; on_user_signal_ && missed_user_signals_ > 0; --missed_user_signals_) {
    on_user_signal_();
  }
}

void StopSignal::wait_for_signal() {
  const sigset_t set = taken_signals();
  const timespec tick{0, 50'000'000};  // longest delay until the destructor is noticed
  int ticks_left = kGraceSeconds * 20;
  while (!done_) {
    const int signal = sigtimedwait(&set, nullptr, &tick);
    if (signal == SIGUSR1) {
      const std::lock_guard lock(mutex_);
      if (on_user_signal_) {
        on_user_signal_();
      } else {
        ++missed_user_signals_;
      }
    } else if (signal > 0 && !requested_) {
      write_stderr("[rank {}] {}: ending after this step\n", rank_,
                   signal == SIGINT ? "interrupted" : "terminated");
      requested_ = true;
    }
    if (requested_ && !unlimited_ && --ticks_left == 0 && !done_) {
      const std::lock_guard lock(mutex_);
      if (last_words_) {
        last_words_();
      }
      write_stderr("[rank {}] the step did not end within {} s\n", rank_, kGraceSeconds);
      std::fflush(nullptr);
      std::_Exit(static_cast<int>(ExitCode::kRuntime));
    }
  }
}

}  // namespace shardlens::cli
