#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "core/base/error.h"
#include "core/base/standard_output.h"
#include "core/files/atomic_file.h"

#include "cli/command/command_text.h"
#include "cli/command/subcommand.h"
#include "cli/flags/outputs.h"
#include "cli/results/output.h"

namespace shardlens::cli {
namespace {

// Writes shardlens.1 and a page of each subcommand.
void write_pages(const std::filesystem::path& directory, const Outputs& outputs) {
  const std::vector<CommandInfo> commands = describe(subcommands());
  std::vector<std::string> names{"shardlens.1"}, pages{program_page(commands)};
  for (const CommandInfo& command : commands) {
    names.push_back("shardlens-" + command.name + ".1");
    pages.push_back(command_page(command));
  }
  const auto paths = outputs.new_files_in("--out", directory, names);
  for (size_t i = 0; i < paths.size(); ++i) {
    write_file_atomically(paths[i], pages[i]);
  }
}

ExitCode run(const std::string& format, const Outputs& outputs) {
  const std::filesystem::path out = outputs.directory("--out");
  if ((format == "man") != !out.empty()) {
    throw UsageError("completion: man needs --out DIR; bash, zsh and fish have no --out");
  }
  if (format == "man") {
    write_pages(out, outputs);
    return ExitCode::kOk;
  }
  const std::vector<CommandInfo> commands = describe(subcommands());
  write_data(format == "bash"  ? bash_completion(commands)
             : format == "zsh" ? zsh_completion(commands)
                               : fish_completion(commands));
  return ExitCode::kOk;
}

}  // namespace

Action add_completion_command(CLI::App& app) {
  struct Options {
    std::string format;
    Outputs outputs;
  };
  auto options = std::make_shared<Options>();
  app.add_option("format", options->format,
                 "bash, zsh or fish: print what completes the command line in this shell; man: "
                 "write manual pages")
      ->option_text("bash|zsh|fish|man")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish", "man"}));
  options->outputs.add(app, "--out", "with man: the directory to write to")->option_text("DIR");
  return [options] { return run(options->format, options->outputs); };
}

}  // namespace shardlens::cli
