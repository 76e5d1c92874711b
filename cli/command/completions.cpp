#include <algorithm>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/command/command_text.h"

namespace shardlens::cli {
namespace {

// In single quotes, for each of the three shells; fish also reads \\ there.
std::string in_quotes(std::string_view text, bool fish = false) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') {
      out += fish ? "\\'" : R"('\'')";
    } else if (c == '\\' && fish) {
      out += R"(\\)";
    } else {
      out += c;
    }
  }
  return out + "'";
}

std::vector<std::string> flags_of(const CommandInfo& command) {
  std::vector<std::string> out;
  for (const ArgumentInfo& argument : command.arguments) {
    out.insert(out.end(), argument.names.begin(), argument.names.end());
  }
  return out;
}

std::vector<std::string> words_of_positionals(const CommandInfo& command) {
  std::vector<std::string> out;
  for (const ArgumentInfo& argument : command.arguments) {
    if (argument.names.empty()) {
      out.insert(out.end(), argument.choices.begin(), argument.choices.end());
    }
  }
  return out;
}

std::vector<std::string> names_of(const std::vector<CommandInfo>& commands) {
  std::vector<std::string> out;
  for (const CommandInfo& command : commands) {
    out.push_back(command.name);
  }
  return out;
}

// zsh's _arguments reads ':', '[' and ']' in descriptions as its own.
std::string for_zsh(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == ':' || c == '[' || c == ']' || c == '\\') {
      out += '\\';
    }
    out += c;
  }
  return out;
}

std::string zsh_value(const ArgumentInfo& argument) {
  if (!argument.choices.empty()) {
    return fmt::format(":value:({})", fmt::join(argument.choices, " "));
  }
  return argument.is_file ? ":file:_files" : ":value: ";
}

}  // namespace

std::string bash_completion(const std::vector<CommandInfo>& commands) {
  std::string out = fmt::format(
      "# Completions of shardlens for bash, made by `shardlens completion bash`.\n"
      "_shardlens() {{\n"
      "  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} "
      "command=${{COMP_WORDS[1]}}\n"
      "  COMPREPLY=()\n"
      "  if ((COMP_CWORD == 1)); then\n"
      "    mapfile -t COMPREPLY < <(compgen -W '{} --help --version' -- \"$word\")\n"
      "    return\n"
      "  fi\n"
      "  local flags='' words=''\n"
      "  case $command in\n",
      fmt::join(names_of(commands), " "));
  for (const CommandInfo& command : commands) {
    out += fmt::format("    {})\n      flags='{}' words='{}'\n      case $before in\n",
                       command.name, fmt::join(flags_of(command), " "),
                       fmt::join(words_of_positionals(command), " "));
    for (const ArgumentInfo& argument : command.arguments) {
      if (argument.names.empty() || argument.value.empty()) {
        continue;
      }
      out += fmt::format("        {}) ", fmt::join(argument.names, " | "));
      if (!argument.choices.empty()) {
        out += fmt::format("mapfile -t COMPREPLY < <(compgen {}-W '{}' -- \"$word\")",
                           argument.is_file ? "-f " : "", fmt::join(argument.choices, " "));
      } else {
        out += argument.is_file ? R"(mapfile -t COMPREPLY < <(compgen -f -- "$word"))" : ":";
      }
      out += "; return ;;\n";
    }
    out += "      esac\n      ;;\n";
  }
  return out +
         "  esac\n"
         "  if [[ $word == -* ]]; then\n"
         "    mapfile -t COMPREPLY < <(compgen -W \"$flags\" -- \"$word\")\n"
         "  elif [[ -n $words ]]; then\n"
         "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n"
         "  else\n"
         "    mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n"
         "  fi\n"
         "}\n"
         "complete -o filenames -F _shardlens shardlens\n";
}

std::string zsh_completion(const std::vector<CommandInfo>& commands) {
  std::string out =
      "#compdef shardlens\n"
      "# Completions of shardlens for zsh, made by `shardlens completion zsh`.\n"
      "_shardlens() {\n"
      "  if ((CURRENT == 2)); then\n"
      "    local -a commands=(\n";
  for (const CommandInfo& command : commands) {
    out += "      " + in_quotes(command.name + ":" + for_zsh(command.help)) + "\n";
  }
  out +=
      "      '--help:the subcommands'\n"
      "      '--version:the version'\n"
      "    )\n"
      "    _describe 'subcommand' commands\n"
      "    return\n"
      "  fi\n"
      "  local command=$words[2]\n"
      "  shift words\n"
      "  ((CURRENT--))\n"
      "  case $command in\n";
  for (const CommandInfo& command : commands) {
    out += fmt::format("    {})\n      _arguments -S", command.name);
    for (const ArgumentInfo& argument : command.arguments) {
      for (const std::string& name : argument.names) {
        out += " \\\n        " + in_quotes("*" + name + "[" + for_zsh(argument.help) + "]" +
                                           (argument.value.empty() ? "" : zsh_value(argument)));
      }
      if (argument.names.empty()) {
        out += " \\\n        " +
               in_quotes("*" + (argument.choices.empty() ? ":file:_files" : zsh_value(argument)));
      }
    }
    out += "\n      ;;\n";
  }
  return out + "  esac\n}\n_shardlens \"$@\"\n";
}

std::string fish_completion(const std::vector<CommandInfo>& commands) {
  std::string out =
      "# Completions of shardlens for fish, made by `shardlens completion fish`.\n"
      "complete -c shardlens -n __fish_use_subcommand -f\n"
      "complete -c shardlens -n __fish_use_subcommand -l help -d 'the subcommands'\n"
      "complete -c shardlens -n __fish_use_subcommand -l version -d 'the version'\n";
  for (const CommandInfo& command : commands) {
    out += fmt::format("complete -c shardlens -n __fish_use_subcommand -a {} -d {}\n", command.name,
                       in_quotes(command.help, true));
    const std::string condition = in_quotes("__fish_seen_subcommand_from " + command.name, true);
    for (const ArgumentInfo& argument : command.arguments) {
      std::string line = "complete -c shardlens -n " + condition;
      for (const std::string& name : argument.names) {
        line += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      }
      if (!argument.value.empty() && !argument.names.empty()) {
        line += argument.is_file ? " -r -F" : " -x";
      }
      if (!argument.choices.empty()) {
        line += (argument.names.empty() ? " -f -a " : " -a ") +
                in_quotes(fmt::format("{}", fmt::join(argument.choices, " ")), true);
      }
      if (argument.names.empty() && argument.choices.empty()) {
        continue;  // files, which fish completes by itself
      }
      out += line + " -d " + in_quotes(argument.help, true) + "\n";
    }
  }
  return out;
}

}  // namespace shardlens::cli
