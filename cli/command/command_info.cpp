#include <string>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "cli/command/command_text.h"
#include "cli/command/documents.h"
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
  if (out.required && !out.names.empty() && out.value.find("(required") == std::string::npos) {
    out.value += " (required)";
  }
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
  app.set_help_flag("-h,--help", kHelpOfHelp);
  (void)subcommand.add(app);
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) {
      continue;  // there only to be refused with a reason
    }
    command.arguments.push_back(info_of(*option));
    if (command.name == "docs" && option->get_name() == "page") {
      for (const Document& page : documents()) {
        command.arguments.back().choices.emplace_back(page.name);
      }
    }
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
