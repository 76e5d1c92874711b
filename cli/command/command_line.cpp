#include <algorithm>
#include <csignal>
#include <exception>
#include <filesystem>
#include <new>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/show.h"
#include "core/base/standard_output.h"

#include "cli/capture/engine_program.h"
#include "cli/command/command_text.h"
#include "cli/command/subcommand.h"
#include "cli/flags/option_values.h"
#include "cli/flags/parse_flags.h"
#include "cli/flags/standard_descriptors.h"
#include "cli/results/output.h"

namespace shardlens::cli {
namespace {

constexpr size_t kLongestMessage = 4000;

const Subcommand& named(std::span<const Subcommand> table, const std::string& name) {
  const bool is_flag = name.starts_with('-');
  std::vector<std::string> names;
  for (const Subcommand& each : table) {
    if (each.name == name) {
      return each;
    }
    if (!is_flag) {
      names.emplace_back(each.name);
    }
  }
  if (is_flag) {
    names = {"--help", "--version"};
  }
  throw UsageError(show("unknown {} '{}'{}\nrun 'shardlens --help' for the subcommands",
                        is_flag ? "flag" : "subcommand", name, did_you_mean(name, names)));
}

Shown shown_help(std::span<const Subcommand> table) {
  Shown out;
  std::istringstream lines(help_text(table, width_of_stdout()));
  for (std::string line; std::getline(lines, line);) {
    out += show("{}\n", line);
  }
  return out;
}

ExitCode print_version(const std::vector<std::string>& rest) {
  const bool json = rest.size() == 1 && rest[0] == "--json";
  if (!rest.empty() && !json) {
    throw UsageError(fmt::format("--version: expected nothing or --json, found '{}'", rest[0]));
  }
  if (!json) {
    write_stdout("shardlens " SHARDLENS_VERSION "\n");
    return ExitCode::kOk;
  }
  const std::filesystem::path worker = worker_path();
  const bool engine = ::access(worker.c_str(), X_OK) == 0;
  const nlohmann::ordered_json out{
      {"schema", 1},
      {"version", SHARDLENS_VERSION},
      {"engine", engine},
      {"torch", engine ? nlohmann::json(torch_of(worker)) : nlohmann::json(nullptr)},
      {"compiler", __VERSION__}};
  write_data(out.dump() + "\n");
  return ExitCode::kOk;
}

void print_help(const Subcommand& subcommand) {
  write_data(help_text(describe(subcommand), width_of_stdout()));  // text of this program
}

// Flags contain no spaces, so an argument that begins with "--" and contains a space is the value
// of the flag before it: check --run "--model DIR --steps 10".
void join_quoted_flags(std::vector<std::string>& arguments) {
  for (size_t i = 1; i < arguments.size(); ++i) {
    const std::string& flag = arguments[i - 1];
    if (arguments[i].starts_with("--") && arguments[i].find(' ') != std::string::npos &&
        flag.starts_with("--") && flag.find_first_of("= ") == std::string::npos) {
      arguments[i - 1] += "=" + arguments[i];
      arguments.erase(arguments.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
}

ExitCode dispatch(const std::vector<std::string>& arguments, std::span<const Subcommand> table) {
  if (arguments.empty()) {
    throw UsageError("expected a subcommand\n\n" + shown_help(table));
  }
  if (arguments[0] == "--help" || arguments[0] == "-h" || arguments[0] == "help") {
    if (arguments.size() > 2) {
      throw UsageError(
          show("{}: expected one subcommand, found '{}' too", arguments[0], arguments[2]));
    }
    if (arguments.size() == 2) {
      print_help(named(table, arguments[1]));
    } else {
      write_stdout(shown_help(table));
    }
    return ExitCode::kOk;
  }
  if (arguments[0] == "--version") {
    return print_version({arguments.begin() + 1, arguments.end()});
  }
  const Subcommand& chosen = named(table, arguments[0]);
  CLI::App app(std::string(chosen.help), "shardlens " + std::string(chosen.name));
  app.set_help_flag("-h,--help", kHelpOfHelp);
  const Action action = chosen.add(app);
  std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
  join_quoted_flags(rest);
  read_dash_as_stdin(app, rest);
  if (!parse_flags(app, chosen.name, rest)) {
    print_help(chosen);
    return ExitCode::kOk;
  }
  return action();
}

}  // namespace

int run_command_line(int argc, const char* const* argv, std::span<const Subcommand> table) {
  ExitCode code = ExitCode::kOk;
  Shown message;
  open_standard_descriptors();
  ::signal(SIGXFSZ,
           SIG_IGN);  // a write beyond the limit of file sizes is an error like a full disk
  try {
    code = dispatch(std::vector<std::string>(argv + std::min(argc, 1), argv + argc), table);
    flush_stdout();
  } catch (const Error& error) {
    code = error.code();
    message = error.shown();
  } catch (const std::bad_alloc&) {
    code = ExitCode::kRuntime;
    message = Literal("out of memory");
  } catch (const std::filesystem::filesystem_error& error) {
    code = error.code() == std::errc::no_space_on_device || error.code() == std::errc::io_error
               ? ExitCode::kRuntime
               : ExitCode::kBadInput;
    message = show("{}: {}", error.path1(), error.code().message());
  } catch (const std::exception& error) {
    code = ExitCode::kRuntime;
    message = show("internal error: {}", error.what());
  }
  if (!message.empty()) {
    std::error_code gone;
    (void)std::filesystem::current_path(gone);
    // Names in a message may be of any length.
    write_stderr("shardlens: {}\n", message.shortened(kLongestMessage));
    if (gone) {
      write_stderr("the working directory no longer exists; only absolute paths work\n");
    }
  }
  return static_cast<int>(code);
}

}  // namespace shardlens::cli
