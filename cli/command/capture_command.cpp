#include <csignal>
#include <cstdio>
#include <memory>

#include <CLI/App.hpp>
#include <fmt/format.h>

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
    // Not fmt::print, which throws where nobody reads.
    std::fputs(
        fmt::format("captured {} {} in {}; next: shardlens analyze {}\n", ranks,
                    ranks == 1 ? "rank" : "ranks", options->out.string(), options->out.string())
            .c_str(),
        stderr);
    return ExitCode::kOk;
  };
}

}  // namespace shardlens::cli
