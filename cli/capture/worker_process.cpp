#include "cli/capture/worker_process.h"

#include <cerrno>
#include <csignal>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/error.h"

namespace shardlens::cli {
namespace {

constexpr size_t kLongestLine = size_t{64} * 1024;  // longer lines are passed on in pieces

struct PipeEnds {
  int read = -1, write = -1;
};

PipeEnds make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw RuntimeFault(fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  }
  return {ends[0], ends[1]};
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> out;
  out.reserve(texts.size() + 1);
  for (const std::string& text : texts) {
    out.push_back(const_cast<char*>(
        text.c_str()));  // NOLINT(cppcoreguidelines-pro-type-const-cast): execve's signature
  }
  out.push_back(nullptr);
  return out;
}

// Runs in the child: makes only calls that are safe after fork. If the program cannot be started,
// writes errno to `failure` for the parent.
[[noreturn]] void become(
    char* const* arguments, char* const* environment, pid_t parent, int out, int err, int failure) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) {  // the parent died before prctl()
    ::_exit(127);
  }
  // SIGUSR1 stays blocked until the worker can handle it; before, it would end the worker.
  sigset_t mask;
  ::sigemptyset(&mask);
  ::sigaddset(&mask, SIGUSR1);
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  ::dup2(::open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(err, STDERR_FILENO);
  ::execve(arguments[0], arguments, environment);
  const int reason = errno;
  [[maybe_unused]] const ssize_t written = ::write(failure, &reason, sizeof(reason));
  ::_exit(127);
}

}  // namespace

WorkerProcess::WorkerProcess(int rank,
                             const std::string& program,
                             const std::vector<std::string>& arguments,
                             const std::vector<std::string>& environment)
    : rank_(rank) {
  std::vector<std::string> command{program};
  command.insert(command.end(), arguments.begin(), arguments.end());
  const std::vector<char*> argv = pointers(command);
  const std::vector<char*> envp = pointers(environment);
  const PipeEnds out = make_pipe(), err = make_pipe(), failure = make_pipe();
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) {
    become(argv.data(), envp.data(), parent, out.write, err.write, failure.write);
  }
  const int fork_error = errno;
  ::close(out.write);
  ::close(err.write);
  ::close(failure.write);
  pipes_[0].descriptor = out.read;
  pipes_[1].descriptor = err.read;
  int reason = pid_ < 0 ? fork_error : 0;
  if (pid_ > 0) {
    ::setpgid(pid_, pid_);  // also here, in case a signal is sent before the child has done it
    while (::read(failure.read, &reason, sizeof(reason)) < 0 && errno == EINTR) {
    }
  }
  ::close(failure.read);
  if (reason != 0) {
    if (pid_ > 0) {
      ::waitpid(pid_, nullptr, 0);
    }
    close(pipes_[0]);
    close(pipes_[1]);
    throw RuntimeFault(fmt::format("cannot start {}: {}", program, std::strerror(reason)));
  }
  for (const Pipe& pipe : pipes_) {
    ::fcntl(pipe.descriptor, F_SETFL, O_NONBLOCK);
  }
}

WorkerProcess::~WorkerProcess() {
  signal_group(SIGKILL);
  if (!end_) {
    ::waitpid(pid_, nullptr, 0);
  }
  close(pipes_[0]);
  close(pipes_[1]);
}

void WorkerProcess::close(Pipe& pipe) {
  if (pipe.descriptor >= 0) {
    ::close(pipe.descriptor);
    pipe.descriptor = -1;
  }
}

void WorkerProcess::emit(Output output, std::string_view line, const LineSink& sink) const {
  sink(rank_, output, line.ends_with('\r') ? line.substr(0, line.size() - 1) : line);
}

void WorkerProcess::relay(Output output, const LineSink& sink) {
  Pipe& pipe = pipes_[static_cast<size_t>(output)];
  std::array<char, size_t{16} * 1024> bytes{};
  while (pipe.descriptor >= 0) {
    const ssize_t n = ::read(pipe.descriptor, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0 && errno == EAGAIN) {
      return;
    }
    if (n <= 0) {
      close(pipe);
      if (!pipe.partial.empty()) {
        emit(output, pipe.partial, sink);
        pipe.partial.clear();
      }
      return;
    }
    pipe.partial.append(bytes.data(), static_cast<size_t>(n));
    size_t start = 0;
    for (size_t at = pipe.partial.find('\n'); at != std::string::npos;
         at = pipe.partial.find('\n', start)) {
      emit(output, std::string_view(pipe.partial).substr(start, at - start), sink);
      start = at + 1;
    }
    pipe.partial.erase(0, start);
    if (pipe.partial.size() > kLongestLine) {
      emit(output, pipe.partial, sink);
      pipe.partial.clear();
    }
  }
}

void WorkerProcess::drain(const LineSink& sink) {
  for (const Output output : {Output::kStdout, Output::kStderr}) {
    relay(output, sink);
    Pipe& pipe = pipes_[static_cast<size_t>(output)];
    if (!pipe.partial.empty()) {
      emit(output, pipe.partial, sink);
      pipe.partial.clear();
    }
    close(pipe);
  }
}

bool WorkerProcess::poll_stop() {
  const bool before = stopped_;
  siginfo_t info{};
  while (::waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WCONTINUED | WNOHANG) == 0 &&
         info.si_pid == pid_) {
    stopped_ = info.si_code == CLD_STOPPED;
    info = {};
  }
  return stopped_ != before;
}

bool WorkerProcess::poll_end() {
  if (end_) {
    return true;
  }
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) {
    return false;
  }
  end_ = WIFSIGNALED(status) ? WorkerEnd{.exit_code = 0, .signal = WTERMSIG(status)}
                             : WorkerEnd{.exit_code = WEXITSTATUS(status), .signal = 0};
  return true;
}

void WorkerProcess::signal_group(int signal) const {
  if (pid_ > 0) {
    ::kill(-pid_, signal);
  }
}

}  // namespace shardlens::cli
