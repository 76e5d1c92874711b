#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

namespace shardlens::cli {

enum class Output : uint8_t { kStdout, kStderr };
// Receives one line of a worker's output, without its newline.
using LineSink = std::function<void(int rank, Output output, std::string_view line)>;

// How a process ended.
struct WorkerEnd {
  int exit_code = 0;
  int signal = 0;  // not 0: killed by this signal; exit_code has no meaning
  [[nodiscard]] bool failed() const { return signal != 0 || exit_code != 0; }
};

// One worker: a child process in its own process group that dies with its parent. Its stdout and
// stderr are read through pipes.
//
// Ownership   the destructor kills the group and reaps the child.
// Threads     not thread-safe.
// Errors      the constructor throws RuntimeFault naming the program and the reason.
class WorkerProcess {
 public:
  // `environment`: the whole environment, as "NAME=value". `program`: a path.
  WorkerProcess(int rank,
                const std::string& program,
                const std::vector<std::string>& arguments,
                const std::vector<std::string>& environment);
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  // Descriptor to poll for reading; -1 after the end of the stream.
  [[nodiscard]] int descriptor(Output output) const {
    return pipes_[static_cast<size_t>(output)].descriptor;
  }
  // Reads the available output without blocking and passes on complete lines; at the end of the
  // stream also a last line without newline.
  void relay(Output output, const LineSink& sink);
  // Passes on the remaining output, even if a grandchild keeps the pipe open.
  void drain(const LineSink& sink);

  // Reaps the child without blocking; true if it has ended.
  bool poll_end();
  [[nodiscard]] const std::optional<WorkerEnd>& end() const { return end_; }
  // Whether a signal stopped the child, or it continued, since the last call.
  bool poll_stop();
  [[nodiscard]] bool is_stopped() const { return stopped_; }
  // Sends the signal to the whole process group, even after the worker itself has ended.
  void signal_group(int signal) const;

 private:
  struct Pipe {
    int descriptor = -1;
    std::string partial;
  };
  void emit(Output output, std::string_view line, const LineSink& sink) const;
  void close(Pipe& pipe);

  int rank_;
  pid_t pid_ = -1;
  std::array<Pipe, 2> pipes_;
  std::optional<WorkerEnd> end_;
  bool stopped_ = false;
};

}  // namespace shardlens::cli
