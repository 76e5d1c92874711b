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
// One line of a worker, without its newline.
using LineSink = std::function<void(int rank, Output output, std::string_view line)>;

// The worker that stands beside this executable, for `command`. Errors: RuntimeFault in a build
// without the engine.
[[nodiscard]] std::string worker_program(std::string_view command);

// How a process ended.
struct WorkerEnd {
  int exit_code = 0;
  int signal = 0;  // not 0: killed by it, and exit_code says nothing
  [[nodiscard]] bool failed() const { return signal != 0 || exit_code != 0; }
};

// One worker: a child in a process group of its own that dies with its parent, whose stdout and
// stderr come through pipes.
//
// Ownership   the destructor kills the group and reaps the child.
// Threads     not thread-safe.
// Errors      the constructor throws RuntimeFault naming program and reason.
class WorkerProcess {
 public:
  // `environment`: "NAME=value", all of it. `program`: a path.
  WorkerProcess(int rank,
                const std::string& program,
                const std::vector<std::string>& arguments,
                const std::vector<std::string>& environment);
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  // Descriptor to poll for reading, -1 once it is at its end.
  [[nodiscard]] int descriptor(Output output) const {
    return pipes_[static_cast<size_t>(output)].descriptor;
  }
  // Reads what is there without blocking and passes on whole lines; a last one without newline at
  // the end of the stream.
  void relay(Output output, const LineSink& sink);
  // Passes on what is left, also where a grandchild keeps the pipe open.
  void drain(const LineSink& sink);

  // Reaps without blocking; true from then on.
  bool poll_end();
  [[nodiscard]] const std::optional<WorkerEnd>& end() const { return end_; }
  // To the whole process group, also after the worker itself ended.
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
};

}  // namespace shardlens::cli
