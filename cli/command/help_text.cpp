#include <algorithm>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/command/command_text.h"

namespace shardlens::cli {
namespace {

constexpr size_t kColumn = 34;     // where the help of a flag begins
constexpr size_t kNarrowest = 60;  // less would leave no room for words

// The words of `text` in lines of at most `width` columns, the later ones indented.
std::string wrapped(std::string_view text, size_t indent, size_t width) {
  std::string out;
  size_t column = indent;
  bool first = true;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    if (!first && column + 1 + word.size() > width) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
      first = true;
    }
    out += first ? "" : " ";
    out += word;
    column += word.size() + (first ? 0 : 1);
    first = false;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

// "  --plan FILE      also simulate …"; a long name has its help on the next line.
std::string entry(const std::string& name, const std::string& help, size_t width) {
  const std::string head = "  " + name;
  const bool fits = head.size() + 2 <= kColumn;
  return head +
         (fits ? std::string(kColumn - head.size(), ' ') : "\n" + std::string(kColumn, ' ')) +
         wrapped(help, kColumn, width) + "\n";
}

}  // namespace

std::string help_text(const CommandInfo& command, size_t terminal_width) {
  const size_t width = std::max(kNarrowest, terminal_width);
  std::string usage = "Usage: shardlens " + command.name + " [FLAGS]", arguments, flags, examples;
  for (const ArgumentInfo& argument : command.arguments) {
    if (argument.names.empty()) {
      const std::string value = argument.value + (argument.several ? "..." : "");
      usage += argument.required ? " " + value : " [" + value + "]";
      arguments += entry(argument.value, argument.help, width);
      continue;
    }
    const std::string value = argument.value.empty() ? "" : " " + argument.value;
    flags +=
        entry(fmt::format("{}{}", fmt::join(argument.names, ","), value), argument.help, width);
  }
  for (const ExampleInfo& example : command.examples) {
    examples += fmt::format("  {}\n      {}\n", example.command, wrapped(example.says, 6, width));
  }
  return fmt::format("{}\n\n{}\n\n{}Flags:\n{}\nExamples:\n{}", wrapped(command.help, 0, width),
                     wrapped(usage, 0, width),
                     arguments.empty() ? "" : "Arguments:\n" + arguments + "\n", flags, examples);
}

}  // namespace shardlens::cli
