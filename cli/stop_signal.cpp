#include "cli/stop_signal.h"

#include <csignal>
#include <cstdlib>
#include <ctime>
#include <utility>

#include <fmt/format.h>
#include <pthread.h>

#include "core/base/error.h"

namespace shardlens::cli {
namespace {

sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

StopSignal::StopSignal(int rank) : rank_(rank) {
  const sigset_t set = stop_signals();
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

void StopSignal::wait_for_signal() {
  const sigset_t set = stop_signals();
  const timespec tick{0, 50'000'000};  // how late the destructor may be noticed
  int ticks_left = kGraceSeconds * 20;
  while (!done_) {
    const int signal = sigtimedwait(&set, nullptr, &tick);
    if (signal > 0 && !requested_) {
      fmt::print(stderr, "[rank {}] {}: ending after this step\n", rank_,
                 signal == SIGINT ? "interrupted" : "terminated");
      requested_ = true;
    }
    if (requested_ && !training_ended_ && --ticks_left == 0 && !done_) {
      const std::lock_guard lock(mutex_);
      if (last_words_) {
        last_words_();
      }
      fmt::print(stderr, "[rank {}] the step did not end within {} s\n", rank_, kGraceSeconds);
      std::fflush(nullptr);
      std::_Exit(static_cast<int>(ExitCode::kRuntime));
    }
  }
}

}  // namespace shardlens::cli
