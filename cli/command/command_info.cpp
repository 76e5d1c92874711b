#include <string>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "cli/command/command_text.h"
#include "cli/flags/option_values.h"

namespace shardlens::cli {
namespace {

ArgumentInfo info_of(const CLI::Option& option) {
  ArgumentInfo out;
  if (!option.get_positional()) {
    for (const std::string& name : option.get_snames()) {
      out.names.push_back("-" + name);
    }
    for (const std::string& name : option.get_lnames()) {
      out.names.push_back("--" + name);
    }
  }
  out.value = option.get_positional() ? option.get_name() : value_of(option);
  out.help = option.get_description();
  out.choices = choices_of(option);
  out.is_file = may_be_path(option);
  if (!out.choices.empty() && option.get_positional()) {
    out.value = value_of(option);
  }
  return out;
}

}  // namespace

std::vector<CommandInfo> describe(std::span<const Subcommand> table) {
  std::vector<CommandInfo> out;
  for (const Subcommand& each : table) {
    CommandInfo command{std::string(each.name), std::string(each.help), {}};
    CLI::App app(command.help, "shardlens " + command.name);
    (void)each.add(app);
    for (const CLI::Option* option : app.get_options()) {
      command.arguments.push_back(info_of(*option));
    }
    out.push_back(std::move(command));
  }
  return out;
}

}  // namespace shardlens::cli
