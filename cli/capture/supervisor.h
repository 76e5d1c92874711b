#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/capture/worker_process.h"

namespace shardlens::cli {

struct SupervisorOptions {
  std::filesystem::path program;
  std::vector<std::string> arguments;
  int processes = 1;
  int first_rank = 0;  // of messages and of rank<r>.now; an emulated world runs one rank of many
  std::filesystem::path directory;        // where workers keep rank<r>.now
  LineSink sink;                          // empty: to this process's stdout and stderr
  std::chrono::milliseconds blame{300};   // after a failure: others may turn out to be its cause
  std::chrono::milliseconds grace{7000};  // from SIGTERM to SIGKILL; a worker gives itself 5 s
  std::chrono::milliseconds interrupt_grace{
      15000};  // the same after Ctrl-C: workers finish their step and their trace
};

struct SupervisorResult {
  int exit_code = 0;
  std::string message;  // "" when all went well
};

// Runs `processes` workers side by side with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
// and SHARDLENS_RENDEZVOUS (a file in a directory of mode 0700 that is removed at the end) until
// all have ended, and passes on what they print line by line. Lines of stderr begin with
// "[rank r] "; one that another rank printed too is shown once.
//
// When one fails, the others get SIGTERM and, after `grace`, SIGKILL; the result is the exit code
// of the one that failed first (4 if a signal killed it; a death by signal goes before an error
// that it caused in another rank) and a message that names the rank, how it ended and what it was
// doing. SIGUSR1 is passed on to the workers. SIGINT, SIGTERM or SIGHUP to this process ends the
// run the same way with exit code 4; a second one at once. No process of a worker's group is left
// behind.
//
// Threads  no other thread may run: signals are blocked meanwhile.
// Errors   RuntimeFault if a worker cannot be started.
[[nodiscard]] SupervisorResult supervise(const SupervisorOptions& options);

}  // namespace shardlens::cli
