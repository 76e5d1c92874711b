#include <array>

#include "cli/command/subcommand.h"

namespace shardlens::cli {

// Each in <name>_command.cpp.
Action add_analyze_command(CLI::App& app);
Action add_calibrate_command(CLI::App& app);
Action add_capture_command(CLI::App& app);
Action add_check_command(CLI::App& app);
Action add_compare_command(CLI::App& app);
Action add_convert_command(CLI::App& app);
Action add_gui_command(CLI::App& app);
Action add_plan_command(CLI::App& app);
Action add_report_command(CLI::App& app);
Action add_search_command(CLI::App& app);
Action add_simulate_command(CLI::App& app);
Action add_validate_command(CLI::App& app);

std::span<const Subcommand> subcommands() {
  // One line per subcommand; one file each.
  static constexpr std::array kTable{
      Subcommand{"plan", "units, bytes per rank and planned order of a sharding plan",
                 add_plan_command},
      Subcommand{"capture", "train a model under a plan in N processes and record every rank",
                 add_capture_command},
      Subcommand{"analyze", "how much communication a run hid, and at which unit it did not",
                 add_analyze_command},
      Subcommand{"compare", "two runs side by side: what changed, by unit and kind, beyond noise",
                 add_compare_command},
      Subcommand{"check", "did a change make steps slower, or hide less: a gate with an exit code",
                 add_check_command},
      Subcommand{"report", "one HTML page of a run: figures, timeline, units, order",
                 add_report_command},
      Subcommand{"simulate", "what a plan would cost on GPUs that are not here: time and memory",
                 add_simulate_command},
      Subcommand{"calibrate", "how fast this machine is, from runs of its own: what simulate takes",
                 add_calibrate_command},
      Subcommand{"search", "the fastest plan that fits a memory limit, of all that are simulated",
                 add_search_command},
      Subcommand{"validate", "published training runs beside what the simulator predicts",
                 add_validate_command},
      Subcommand{"gui", "the desktop app: explore a run, linked", add_gui_command},
      Subcommand{"convert", "trim a trace, or turn a spool into one", add_convert_command},
  };
  return kTable;
}

}  // namespace shardlens::cli
