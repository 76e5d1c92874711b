#include <string>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/command/command_text.h"

namespace shardlens::cli {
namespace {

// Text for troff: no line begins with a request, and hyphens are those that one can type.
std::string for_troff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) {
      out += R"(\&)";
    }
    if (c == '\\') {
      out += R"(\e)";
    } else if (c == '-') {
      out += R"(\-)";
    } else {
      out += c;
    }
  }
  return out;
}

std::string header(std::string_view name) {
  std::string upper(name);
  for (char& c : upper) {
    c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  }
  return fmt::format(".TH \"{}\" 1 \"\" \"Shardlens " SHARDLENS_VERSION "\" \"User Commands\"\n",
                     for_troff(upper));
}

constexpr std::string_view kExitCodes =
    ".SH EXIT STATUS\n"
    ".TP\n0\ndone\n"
    ".TP\n1\na check failed; nothing fits (search)\n"
    ".TP\n2\nwrong usage\n"
    ".TP\n3\nbad input: a file that is missing, damaged or of the wrong shape\n"
    ".TP\n4\na fault while running\n"
    ".TP\n5\ninconclusive (check)\n"
    ".TP\n130\nended by Ctrl\\-C\n";

}  // namespace

std::string program_page(const std::vector<CommandInfo>& commands) {
  std::string out = header("shardlens") +
                    ".SH NAME\nshardlens \\- profiler and simulator for sharded data-parallel "
                    "training\n.SH SYNOPSIS\n.B shardlens\n.I SUBCOMMAND\n.RI [ FLAGS ]\n"
                    ".br\n.B shardlens \\-\\-version\n.RB [ \\-\\-json ]\n"
                    ".SH DESCRIPTION\nShows which rank owns which bytes, when each collective "
                    "runs, how much of it overlaps with compute, and predicts what another "
                    "sharding plan would change.\n.SH SUBCOMMANDS\n";
  for (const CommandInfo& command : commands) {
    out += fmt::format(".TP\n.BR shardlens\\-{} (1)\n{}\n", for_troff(command.name),
                       for_troff(command.help));
  }
  return out + std::string(kExitCodes) +
         ".SH ENVIRONMENT\n.TP\nNO_COLOR\nif set, tables contain no escape sequences\n"
         ".TP\nTMPDIR\nwhere temporary files are made\n";
}

std::string command_page(const CommandInfo& command) {
  const std::string name = "shardlens-" + command.name;
  std::string out = header(name) +
                    fmt::format(".SH NAME\n{} \\- {}\n.SH SYNOPSIS\n.B shardlens {}\n.RI [ FLAGS ]",
                                for_troff(name), for_troff(command.help), for_troff(command.name));
  std::string arguments, flags;
  for (const ArgumentInfo& argument : command.arguments) {
    if (argument.names.empty()) {
      out += fmt::format("\n.I {}", for_troff(argument.value));
      arguments +=
          fmt::format(".TP\n.I {}\n{}\n", for_troff(argument.value), for_troff(argument.help));
      continue;
    }
    flags += fmt::format(".TP\n\\fB{}\\fR",
                         for_troff(fmt::format("{}", fmt::join(argument.names, ", "))));
    flags += argument.value.empty() ? "" : fmt::format(" \\fI{}\\fR", for_troff(argument.value));
    flags += "\n" + for_troff(argument.help) + "\n";
  }
  if (command.name == "gui") {  // the app's page too
    out += "\n.br\n.B shardlens\\-gui\n.RI [ FLAGS ]\n.I paths";
  }
  std::string examples;
  for (const ExampleInfo& example : command.examples) {
    examples +=
        fmt::format(".TP\n.B {}\n{}\n", for_troff(example.command), for_troff(example.says));
  }
  return out + "\n" + (arguments.empty() ? "" : ".SH ARGUMENTS\n" + arguments) + ".SH OPTIONS\n" +
         flags + ".SH EXAMPLES\n" + examples + std::string(kExitCodes) +
         ".SH SEE ALSO\n.BR shardlens (1)\n";
}

}  // namespace shardlens::cli
