#include <csignal>
#include <memory>

#include <CLI/App.hpp>

#include "core/base/standard_output.h"

#include "cli/capture/capture.h"
#include "cli/command/subcommand.h"
#include "cli/flags/run_options.h"

namespace shardlens::cli {

Action add_capture_command(CLI::App& app) {
  auto options = std::make_shared<RunOptions>();
  add_run_options(app, *options);
  return [options] {
    // A capture is whole also if the reader of its messages has ended.
    ::signal(SIGPIPE, SIG_IGN);
    const int ranks = capture(*options);
    write_stderr("captured {} {} in {}; next: shardlens analyze {}\n", ranks,
                 ranks == 1 ? "rank" : "ranks", options->out, options->out);
    return ExitCode::kOk;
  };
}

}  // namespace shardlens::cli
