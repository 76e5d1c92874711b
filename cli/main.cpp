#include "cli/command/subcommand.h"

int main(int argc, char** argv) {
  return shardlens::cli::run_command_line(argc, argv, shardlens::cli::subcommands());
}
