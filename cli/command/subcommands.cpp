#include <array>

#include "cli/command/subcommand.h"

namespace shardlens::cli {

// Each in <name>_command.cpp.
Action add_advise_command(CLI::App& app);
Action add_analyze_command(CLI::App& app);
Action add_calibrate_command(CLI::App& app);
Action add_capture_command(CLI::App& app);
Action add_check_command(CLI::App& app);
Action add_checkpoint_command(CLI::App& app);
Action add_compare_command(CLI::App& app);
Action add_completion_command(CLI::App& app);
Action add_convert_command(CLI::App& app);
Action add_docs_command(CLI::App& app);
Action add_doctor_command(CLI::App& app);
Action add_gui_command(CLI::App& app);
Action add_merge_command(CLI::App& app);
Action add_plan_command(CLI::App& app);
Action add_report_command(CLI::App& app);
Action add_schema_command(CLI::App& app);
Action add_search_command(CLI::App& app);
Action add_simulate_command(CLI::App& app);
Action add_validate_command(CLI::App& app);

std::span<const Subcommand> subcommands() {
  // One line per subcommand; one file each.
  static constexpr std::array kTable{
      Subcommand{"plan", "show a sharding plan's units, bytes per rank and planned order",
                 add_plan_command},
      Subcommand{"capture", "train a model under a plan in N processes and record every rank",
                 add_capture_command},
      Subcommand{"analyze", "show how much communication of a run is exposed, and at which units",
                 add_analyze_command},
      Subcommand{"merge", "analyze a run of many ranks from summaries of its traces",
                 add_merge_command},
      Subcommand{"compare", "compare two runs: differences beyond noise, by unit and kind",
                 add_compare_command},
      Subcommand{"check", "test whether a change made steps slower; the result is the exit code",
                 add_check_command},
      Subcommand{"report", "write one HTML page about a run: figures, timeline, units, order",
                 add_report_command},
      Subcommand{"simulate", "predict time and memory of a plan on GPUs that need not be here",
                 add_simulate_command},
      Subcommand{"advise", "list the changes of a run's plan that would make its steps shorter",
                 add_advise_command},
      Subcommand{"calibrate", "measure how fast a machine is, from its own runs, for simulate",
                 add_calibrate_command},
      Subcommand{"search", "simulate many plans and find the fastest that fits a memory limit",
                 add_search_command},
      Subcommand{"validate", "compare predictions of the simulator with published training runs",
                 add_validate_command},
      Subcommand{"gui", "explore a run in the desktop app", add_gui_command},
      Subcommand{"checkpoint", "show, verify, merge or convert what a run has saved",
                 add_checkpoint_command},
      Subcommand{"convert", "cut out a part of a trace, or convert a spool to a trace",
                 add_convert_command},
      Subcommand{"doctor", "look at this machine: what Shardlens uses, what is missing, what to do",
                 add_doctor_command},
      Subcommand{"docs", "print a page of the documentation, or the sections about something",
                 add_docs_command},
      Subcommand{"schema", "print the JSON Schema of a file or of a command's --json",
                 add_schema_command},
      Subcommand{"completion", "print completions of the command line, or write manual pages",
                 add_completion_command},
  };
  return kTable;
}

}  // namespace shardlens::cli
