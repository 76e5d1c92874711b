// shardlens-worker: runs one rank, or (`shard`) only creates its shards. The only program that
// links engine, recorder and collective timer.

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <string_view>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include <c10/util/Exception.h>

#include "core/base/error.h"
#include "core/base/standard_output.h"

#include "cli/flags/run_options.h"
#include "cli/flags/standard_descriptors.h"
#include "cli/worker/worker_environment.h"
#include "cli/worker/worker_run.h"
#include "cli/worker/worker_shard.h"

namespace shardlens::cli {
namespace {

// Exits without running destructors, since a communication thread may be blocked in a collective
// whose peer has ended.
[[noreturn]] void leave(int rank, ExitCode code, const std::string& message) {
  const std::string first_line = message.substr(0, message.find('\n'));
  if (first_line.starts_with("[rank ")) {
    write_stderr("{}\n", first_line);
  } else {
    write_stderr("[rank {}] {}\n", rank, first_line);
  }
  std::fflush(nullptr);
  std::_Exit(static_cast<int>(code));
}

int train(int argc, char** argv, int& rank) {
  CLI::App app(
      "One rank of a training run; `shardlens capture`, torchrun, srun or mpirun starts it",
      "shardlens-worker");
  RunOptions options;
  add_run_options(app, options);
  if (const auto ended = parse_worker_flags(app, argc, argv)) {
    return static_cast<int>(*ended);
  }
  check(options);
  const Placement placement = placement_of(options);
  rank = placement.rank;
  run_worker(options, placement);
  return static_cast<int>(ExitCode::kOk);
}

int main(int argc, char** argv) {
  int rank = 0;
  open_standard_descriptors();
  try {
    const bool shards = argc > 1 && std::string_view(argv[1]) == "shard";
    return shards ? shard_without_memory(argc - 1, argv + 1) : train(argc, argv, rank);
  } catch (const Error& error) {
    leave(rank, error.code(), error.what());
  } catch (const c10::Error& error) {
    leave(rank, ExitCode::kRuntime, error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    leave(rank, ExitCode::kRuntime, "out of memory");
  } catch (const std::exception& error) {
    leave(rank, ExitCode::kRuntime, error.what());
  }
}

}  // namespace
}  // namespace shardlens::cli

int main(int argc, char** argv) {
  return shardlens::cli::main(argc, argv);
}
