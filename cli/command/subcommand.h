#pragma once

#include <functional>
#include <span>
#include <string_view>

#include "core/base/error.h"

namespace CLI {
class App;
}

namespace shardlens::cli {

// The function that runs after the flags have been parsed. Data goes to stdout or files
// (cli/results/output.h); errors are thrown as core/base/error.h classes and become message and
// exit code only in run_command_line.
using Action = std::function<ExitCode()>;

// One row of the table of subcommands (cli/command/subcommands.cpp). `add` declares flags on its
// own `app`, whose name and help are set, and returns what to run; the flags' storage lives in the
// closure.
struct Subcommand {
  std::string_view name;
  std::string_view help;
  Action (*add)(CLI::App& app);
};

// In the order of the help text.
[[nodiscard]] std::span<const Subcommand> subcommands();

// Parses argv and runs the subcommand it names. Messages go to stderr, prefixed "shardlens: "; the
// result is the process's exit code (ExitCode). Never throws.
[[nodiscard]] int run_command_line(int argc,
                                   const char* const* argv,
                                   std::span<const Subcommand> table);

}  // namespace shardlens::cli
