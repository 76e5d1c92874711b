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
    const int ranks = capture(*options);
    fmt::print(stderr, "captured {} {} in {}; next: shardlens analyze {}\n", ranks,
               ranks == 1 ? "rank" : "ranks", options->out.string(), options->out.string());
    return ExitCode::kOk;
  };
}

}  // namespace shardlens::cli
