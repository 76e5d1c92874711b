#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/this_process.h"

#include "cli/command/subcommand.h"
#include "cli/flags/outputs.h"

namespace shardlens::cli {
namespace {

struct GuiOptions {
  std::vector<std::string> paths;
  std::vector<std::string> plans, compared, hardware;
  std::map<std::string, std::string> values;  // by flag; as given
  Outputs outputs;
  bool simulate = false, find_best = false, figures = false, selftest = false;
};

// The app next to this program, where a build has it, or else on PATH.
std::filesystem::path find_app() {
  constexpr const char* kName = "shardlens-gui";
  if (std::filesystem::path program = program_beside_or_on_path(kName); !program.empty()) {
    return program;
  }
  throw RuntimeFault(fmt::format(
      "{} does not exist, and {} is not on PATH. The app needs Qt 6 (Debian: qt6-base-dev "
      "qt6-svg-dev); scripts/setup --gui builds it from the sources, and the Debian package "
      "shardlens-gui has it. Or use 'shardlens report', which writes a page for a browser",
      (program_folder() / kName).string(), kName));
}

ExitCode run(const GuiOptions& options) {
  const std::filesystem::path program = find_app();
  std::vector<std::string> arguments{program.string()};
  for (const auto& [flag, value] : options.values) {
    if (!value.empty()) {
      arguments.push_back(flag);
      arguments.push_back(value);
    }
  }
  if (const std::filesystem::path picture = options.outputs.file("--export-png");
      !picture.empty()) {
    arguments.insert(arguments.end(), {"--export-png", picture.string()});
  }
  for (const auto& [flag, values] : {std::pair{"--plan", &options.plans},
                                     {"--compare", &options.compared},
                                     {"--hardware", &options.hardware}}) {
    for (const std::string& value : *values) {
      arguments.insert(arguments.end(), {flag, value});
    }
  }
  if (options.simulate) {
    arguments.emplace_back("--simulate");
  }
  if (options.find_best) {
    arguments.emplace_back("--find-best");
  }
  if (options.figures) {
    arguments.emplace_back("--figures");
  }
  if (options.selftest) {
    arguments.emplace_back("--selftest");
  }
  arguments.emplace_back("--");
  arguments.insert(arguments.end(), options.paths.begin(), options.paths.end());
  std::vector<char*> argv;
  for (std::string& argument : arguments) {
    argv.push_back(argument.data());
  }
  argv.push_back(nullptr);
  ::execv(program.c_str(), argv.data());
  throw RuntimeFault(fmt::format("{}: {}", program.string(), std::strerror(errno)));
}

}  // namespace

Action add_gui_command(CLI::App& app) {
  auto options = std::make_shared<GuiOptions>();
  app.add_option("paths", options->paths, "traces, or a capture directory")->option_text("[PATH…]");
  const auto flag = [&](const char* name, const char* text, const char* help) {
    app.add_option(name, options->values[name], help)->option_text(text);
  };
  flag("--select", "UNIT", "select this unit");
  flag("--step", "N", "select this step");
  flag("--model", "FILE", "simulate the model of this config.json instead of opening a run");
  app.add_option("--plan", options->plans,
                 "simulate this plan file next to the run; may be repeated")
      ->option_text("FILE")
      ->allow_extra_args(false);
  app.add_option("--hardware", options->hardware,
                 "simulate each plan on this spec, a name or a file; may be repeated, and is "
                 "required with --model")
      ->option_text("SPEC")
      ->allow_extra_args(false);
  app.add_flag("--figures", options->figures,
               "print the figures of the run and of each simulated plan as JSON, and exit; needs "
               "no display");
  app.add_flag("--simulate", options->simulate,
               "show the run's own plan, simulated, below the run");
  app.add_flag("--find-best", options->find_best,
               "search for the best plan, as Find best in the panel Advice does");
  flag("--run", "DIR",
       "run the last of the plans, as the panel Run plan does, and write its run into DIR");
  app.add_option("--compare", options->compared,
                 "a run to compare with; may be repeated for its traces")
      ->option_text("PATH")
      ->allow_extra_args(false);
  flag("--range", "FROM..TO", "select this range of time, such as 12ms..18ms");
  flag("--panel", "NAME",
       "show this panel, by its title in the window, such as what-if; another name lists them");
  flag("--choose", "ENTRY", "choose this entry of a list in the panel, such as 'By module'");
  flag("--dialog", "NAME", "open this dialog: capture, palette or shortcuts");
  flag("--theme", "light|dark", "colours");
  flag("--size", "WxH", "size of the window [1280x800]");
  options->outputs
      .add(app, "--export-png", "write a picture of the window and exit; needs no display")
      ->option_text("FILE");
  flag("--config-dir", "DIR", "directory for settings");
  app.add_flag("--selftest", options->selftest, "test the window with the run and exit");
  return [options] { return run(*options); };
}

}  // namespace shardlens::cli
