#include "cli/capture/supervisor.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/standard_output.h"
#include "profiler/record/host/rank_now.h"

#include "cli/capture/private_directory.h"

namespace shardlens::cli {
namespace {

using Clock = std::chrono::steady_clock;

bool is_ignored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

// During its lifetime, signals are read from a descriptor, so that no code runs in a signal
// handler. Signals that the caller ignores, as nohup does with SIGHUP, stay ignored: blocked ones
// would be queued all the same.
class SignalReader {
 public:
  SignalReader() {
    sigset_t set;
    ::sigemptyset(&set);
    for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
      if (signal == SIGCHLD || !is_ignored(signal)) {
        ::sigaddset(&set, signal);
      }
    }
    ::sigprocmask(SIG_BLOCK, &set, &before_);
    pipe_before_ =
        ::signal(SIGPIPE, SIG_IGN);  // the run must not end when the reader of our output exits
    descriptor_ = ::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (descriptor_ < 0) {
      throw RuntimeFault(fmt::format("cannot read signals: {}", std::strerror(errno)));
    }
  }
  ~SignalReader() {
    ::close(descriptor_);
    ::signal(SIGPIPE, pipe_before_);
    ::sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  SignalReader(const SignalReader&) = delete;
  SignalReader& operator=(const SignalReader&) = delete;

  [[nodiscard]] int descriptor() const { return descriptor_; }
  // Reads all pending signals; returns those other than SIGCHLD.
  [[nodiscard]] std::vector<int> take() const {
    std::vector<int> ends;
    signalfd_siginfo info{};
    while (::read(descriptor_, &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
      if (info.ssi_signo != SIGCHLD) {
        ends.push_back(static_cast<int>(info.ssi_signo));
      }
    }
    return ends;
  }

 private:
  sigset_t before_{};
  void (*pipe_before_)(int) = SIG_DFL;
  int descriptor_ = -1;
};

// A port that was free a moment ago, for programs that use MASTER_PORT; our workers use
// SHARDLENS_RENDEZVOUS.
int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  const bool found = fd >= 0 && ::bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                     ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  if (fd >= 0) {
    ::close(fd);
  }
  return found ? ntohs(address.sin_port) : 29500;
}

std::vector<std::string> worker_environment(int rank,
                                            int processes,
                                            int port,
                                            const std::filesystem::path& rendezvous) {
  const std::vector<std::string> ours{fmt::format("RANK={}", rank),
                                      fmt::format("LOCAL_RANK={}", rank),
                                      fmt::format("WORLD_SIZE={}", processes),
                                      "MASTER_ADDR=127.0.0.1",
                                      fmt::format("MASTER_PORT={}", port),
                                      "SHARDLENS_RENDEZVOUS=" + rendezvous.string()};
  std::vector<std::string> environment = ours;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('=') + 1);
    const bool replaced = std::any_of(
        ours.begin(), ours.end(), [name](const std::string& our) { return our.starts_with(name); });
    if (!replaced) {
      environment.emplace_back(text);
    }
  }
  return environment;
}

// `line` without "[rank r] ".
std::string_view bare(std::string_view line) {
  const size_t end = line.starts_with("[rank ") ? line.find("] ") : std::string_view::npos;
  return end == std::string_view::npos ? line : line.substr(end + 2);
}

// Prints the workers' output. A message that several ranks print, such as an error in a file, is
// shown once.
class Printer {
 public:
  void operator()(int rank, Output output, std::string_view line) {
    if (output == Output::kStdout) {
      print_stdout(line);
      return;
    }
    const std::string text(bare(line));
    const auto same = [&](const auto& shown) {
      return shown.first != rank && shown.second == text;
    };
    if (std::any_of(shown_.begin(), shown_.end(), same)) {
      return;
    }
    write_stderr("[rank {}] {}\n", rank, text);
    shown_.emplace_back(rank, text);
    if (shown_.size() > kRemembered) {
      shown_.pop_front();
    }
  }

 private:
  static constexpr size_t kRemembered = 64;
  static void print_stdout(std::string_view line) {
    try {
      write_stdout("{}\n", line);
      flush_stdout();
    } catch (const RuntimeFault&) {
      // Whoever read it has ended; the run goes on.
    }
  }
  std::deque<std::pair<int, std::string>> shown_;
};

std::string signal_name(int signal) {
  return fmt::format("signal {} ({})", signal, ::strsignal(signal));
}

class Supervision {
 public:
  explicit Supervision(const SupervisorOptions& options)
      : options_(options), sink_(options.sink ? options.sink : LineSink(Printer())) {}

  SupervisorResult run() {
    const int port = free_port();
    for (int i = 0; i < options_.processes; ++i) {
      workers_.push_back(std::make_unique<WorkerProcess>(
          options_.first_rank + i, options_.program.string(), options_.arguments,
          worker_environment(i, options_.processes, port, rendezvous_.path() / "store")));
    }
    if (options_.longest) {
      deadline_ = Clock::now() + *options_.longest;
    }
    while (!all_ended()) {
      wait_for_something();
      for (const int signal : signals_.take()) {
        on_interrupt(signal);
      }
      reap();
      tell_of_stopped_ones();
      look_for_directory();
      act_on_deadline();
    }
    for (const auto& worker : workers_) {
      worker->signal_group(SIGKILL);  // kills processes that the worker may have started
      worker->drain(sink_);
    }
    return result();
  }

 private:
  [[nodiscard]] bool all_ended() const {
    return std::all_of(workers_.begin(), workers_.end(),
                       [](const auto& worker) { return worker->end().has_value(); });
  }

  void wait_for_something() {
    std::vector<pollfd> polled{{.fd = signals_.descriptor(), .events = POLLIN, .revents = 0}};
    for (const auto& worker : workers_) {
      for (const Output output : {Output::kStdout, Output::kStderr}) {
        polled.push_back(
            {.fd = worker->descriptor(output), .events = POLLIN, .revents = 0});  // -1 is ignored
      }
    }
    int timeout = 1000;  // in case a SIGCHLD is missed; reaping a child late does no harm
    if (deadline_) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(*deadline_ - Clock::now()).count() +
          1;
      timeout = static_cast<int>(std::clamp<int64_t>(left, 0, timeout));
    }
    ::poll(polled.data(), polled.size(), timeout);
    for (size_t i = 0; i < workers_.size(); ++i) {
      for (const Output output : {Output::kStdout, Output::kStderr}) {
        if (polled[1 + 2 * i + static_cast<size_t>(output)].revents != 0) {
          workers_[i]->relay(output, sink_);
        }
      }
    }
  }

  void on_interrupt(int signal) {
    if (signal == SIGUSR1) {
      signal_living(signal);
      return;
    }
    if (interrupt_ != 0 || stage_ == Stage::kTerminated) {
      stage_ = Stage::kTerminated;  // a second signal: end at once
      deadline_ = Clock::now();
      return;
    }
    interrupt_ = signal;
    terminate(options_.interrupt_grace);
  }

  void reap() {
    for (const auto& worker : workers_) {
      if (worker->end() || !worker->poll_end() || !worker->end()->failed()) {
        continue;
      }
      if (stage_ == Stage::kRunning) {
        stage_ = Stage::kBlaming;
        deadline_ = Clock::now() + options_.blame;
      }
      if (stage_ == Stage::kBlaming &&
          (culprit_ == nullptr || weight(*worker->end()) > weight(*culprit_->end()))) {
        culprit_ = worker.get();
      }
    }
  }

  // A stopped rank makes all others wait, up to the limit of their collectives.
  void tell_of_stopped_ones() {
    for (const auto& worker : workers_) {
      if (!worker->end() && worker->poll_stop()) {
        worker->relay(Output::kStdout, sink_);  // what it printed before comes first
        worker->relay(Output::kStderr, sink_);
        sink_(worker->rank(), Output::kStderr,
              worker->is_stopped() ? "was stopped by a signal; all ranks wait until it continues"
                                   : "continues");
      }
    }
  }

  void look_for_directory() {
    std::error_code ignored;
    if (stage_ == Stage::kRunning && !std::filesystem::exists(options_.directory, ignored)) {
      directory_gone_ = true;
      terminate(options_.grace);
    }
  }

  // When a rank dies, collectives of the other ranks fail (exit code 4), so these ranks are the
  // least likely cause.
  static int weight(const WorkerEnd& end) {
    if (end.signal != 0) {
      return 3;
    }
    return end.exit_code == static_cast<int>(ExitCode::kRuntime) ? 1 : 2;
  }

  void act_on_deadline() {
    if (!deadline_ || Clock::now() < *deadline_) {
      return;
    }
    deadline_.reset();
    if (stage_ == Stage::kRunning) {
      too_long_ = true;
      terminate(options_.grace);
    } else if (stage_ == Stage::kBlaming) {
      terminate(options_.grace);
    } else if (stage_ == Stage::kTerminated) {
      signal_living(SIGKILL);
    }
  }

  void terminate(std::chrono::milliseconds grace) {
    stage_ = Stage::kTerminated;
    signal_living(SIGTERM);
    deadline_ = Clock::now() + grace;
  }

  void signal_living(int signal) {
    for (const auto& worker : workers_) {
      if (!worker->end()) {
        worker->signal_group(signal);
      }
    }
  }

  [[nodiscard]] std::string doing(int rank) const {
    const auto now = record::read_rank_now(record::now_path(options_.directory, rank));
    if (!now || now->step < 0) {  // nothing is known before training
      return "";
    }
    return now->in_step ? "at " + now->sentence() : now->sentence();
  }

  [[nodiscard]] SupervisorResult result() const {
    const int runtime = static_cast<int>(ExitCode::kRuntime);
    if (directory_gone_) {
      return {runtime,
              fmt::format("{} was removed while the run wrote to it", options_.directory.string())};
    }
    if (too_long_) {
      return {runtime, fmt::format("the run did not end within {} s",
                                   std::chrono::duration<double>(*options_.longest).count())};
    }
    if (culprit_ != nullptr) {
      const WorkerEnd& end = *culprit_->end();
      const int rank = culprit_->rank();
      std::string message =
          end.signal != 0 ? fmt::format("rank {} was killed by {}", rank, signal_name(end.signal))
                          : fmt::format("rank {} failed with exit code {}", rank, end.exit_code);
      if (const std::string now = doing(rank); !now.empty()) {
        message += "; it was " + now;
      }
      return {end.signal != 0 ? runtime : end.exit_code, message};
    }
    if (interrupt_ != 0) {
      std::string message = fmt::format("interrupted by {}", signal_name(interrupt_));
      if (const std::string now = doing(options_.first_rank); !now.empty()) {
        message += fmt::format("; rank {} was {}", options_.first_rank, now);
      }
      return {static_cast<int>(ended_by_signal(interrupt_)), message};
    }
    return {};
  }

  enum class Stage : uint8_t { kRunning, kBlaming, kTerminated };

  const SupervisorOptions& options_;
  LineSink sink_;
  const PrivateDirectory rendezvous_;
  const SignalReader signals_;
  std::vector<std::unique_ptr<WorkerProcess>> workers_;
  Stage stage_ = Stage::kRunning;
  std::optional<Clock::time_point> deadline_;  // deadline of the current stage
  const WorkerProcess* culprit_ = nullptr;
  int interrupt_ = 0;
  bool directory_gone_ = false, too_long_ = false;
};

}  // namespace

SupervisorResult supervise(const SupervisorOptions& options) {
  return Supervision(options).run();
}

}  // namespace shardlens::cli
