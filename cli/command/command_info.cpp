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
  out.required = option.get_required();
  out.several = option.get_items_expected_max() > 1;
  out.help = option.get_description();
  out.choices = choices_of(option);
  out.is_file = may_be_path(option);
  if (!out.choices.empty() && option.get_positional()) {
    out.value = value_of(option);
  }
  return out;
}

}  // namespace

CommandInfo describe(const Subcommand& subcommand) {
  CommandInfo command{
      std::string(subcommand.name), std::string(subcommand.help), {}, examples_of(subcommand.name)};
  CLI::App app(command.help, "shardlens " + command.name);
  (void)subcommand.add(app);
  for (const CLI::Option* option : app.get_options()) {
    command.arguments.push_back(info_of(*option));
  }
  return command;
}

std::vector<CommandInfo> describe(std::span<const Subcommand> table) {
  std::vector<CommandInfo> out;
  for (const Subcommand& each : table) {
    out.push_back(describe(each));
  }
  return out;
}

}  // namespace shardlens::cli
