#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"

namespace CLI {
class App;
}

namespace shardlens::cli {

// Runs a subcommand after its flags have been parsed. Data goes to stdout or files (cli/output.h);
// errors are thrown as classes of core/base/error.h, and only run_command_line turns them into
// message and exit code.
using Action = std::function<ExitCode()>;

// One row of the table of subcommands (cli/subcommands.cpp). `add` declares flags on an `app` whose
// name and help are set, and returns the function to run, which owns the flags' storage.
struct Subcommand {
  std::string_view name;
  std::string_view help;
  Action (*add)(CLI::App& app);
};

// In the order of the help text.
[[nodiscard]] std::span<const Subcommand> subcommands();

// Parses `arguments` into the variables of `app`'s flags; false if they contain --help. Messages
// begin with `name` and point to the help of subcommand `help`. Errors: UsageError.
[[nodiscard]] bool parse_flags(CLI::App& app,
                               std::string_view name,
                               std::string_view help,
                               const std::vector<std::string>& arguments);

// Parses argv and runs the subcommand it names. Messages go to stderr, prefixed "shardlens: "; the
// result is the process's exit code (ExitCode). Never throws.
[[nodiscard]] int run_command_line(int argc,
                                   const char* const* argv,
                                   std::span<const Subcommand> table);

}  // namespace shardlens::cli
