#include <array>

#include "cli/plan_command.h"
#include "cli/subcommand.h"

namespace shardlens::cli {

std::span<const Subcommand> subcommands() {
  // One line per subcommand; one file each.
  static constexpr std::array kTable{
      Subcommand{"plan", "units, bytes per rank and planned order of a sharding plan",
                 add_plan_command},
  };
  return kTable;
}

}  // namespace shardlens::cli
