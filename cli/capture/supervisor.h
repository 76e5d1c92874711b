#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cli/capture/worker_process.h"

namespace shardlens::cli {

struct SupervisorOptions {
  std::filesystem::path program;
  std::vector<std::string> arguments;
  int processes = 1;
  int first_rank = 0;  // for messages and rank<r>.now; an emulated world runs one rank of many
  std::filesystem::path directory;        // where workers write rank<r>.now
  LineSink sink;                          // empty: this process's stdout and stderr
  std::chrono::milliseconds blame{300};   // after a failure: time in which its cause may appear
  std::chrono::milliseconds grace{7000};  // from SIGTERM to SIGKILL; a worker's own limit is 5 s
  std::chrono::milliseconds interrupt_grace{
      15000};  // the same after Ctrl-C: workers finish their step and their trace
  std::optional<std::chrono::milliseconds> longest;  // ends a run that takes longer
};

struct SupervisorResult {
  int exit_code = 0;
  std::string message;  // "": no error
};

// Runs `processes` workers concurrently with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
// and SHARDLENS_RENDEZVOUS (a file in a directory of mode 0700 that is removed at the end) until
// all have ended, and passes on their output line by line. Lines of stderr begin with "[rank r] ";
// a line that several ranks print is shown once.
//
// When one worker fails, the others get SIGTERM and, after `grace`, SIGKILL. The result is the exit
// code of the worker that failed first (4 if a signal killed it; a death by signal takes precedence
// over the errors that it causes in other ranks), and a message with the rank, how it ended and
// what it was doing. SIGUSR1 is passed on to the workers. SIGINT, SIGTERM or SIGHUP to this process
// ends the run in the same way with exit code 128 + signal; a second one ends it at once; those
// that this process ignores (nohup) are ignored. The run also ends if `directory` is removed, and
// with exit code 4 after `longest`. A rank that a signal stops is named on stderr. No process of a
// worker's group is left running.
//
// Threads  no other thread may run, since signals are blocked in the meantime.
// Errors   RuntimeFault if a worker cannot be started.
[[nodiscard]] SupervisorResult supervise(const SupervisorOptions& options);

}  // namespace shardlens::cli
