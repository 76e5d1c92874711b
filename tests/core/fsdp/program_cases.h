#pragma once

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "tests/core/fsdp/program_runner.h"

namespace shardlens::test {

// Runs the programs that the environment variable SHARDLENS_PROGRAMS names (FIRST:COUNT), or else
// the first 50, and reports the failed ones. `run` returns "" or what is wrong.
inline void run_programs(const std::function<std::string(const RandomProgram&)>& run) {
  const char* chosen = std::getenv("SHARDLENS_PROGRAMS");
  const auto range =
      chosen == nullptr ? ProgramRange{.first = 0, .count = 50} : ProgramRange::parse(chosen);
  ASSERT_TRUE(range.has_value()) << "expected SHARDLENS_PROGRAMS=FIRST:COUNT, found " << chosen;
  uint64_t failed = 0;
  for (uint64_t seed = range->first; seed < range->first + range->count; ++seed) {
    const RandomProgram program = RandomProgram::make(seed);
    const std::string wrong = run(program);
    if (!wrong.empty() && ++failed <= 10) {
      ADD_FAILURE() << wrong << "\n" << program.described();
    } else if (!wrong.empty()) {
      ADD_FAILURE() << "program " << seed << ": " << wrong.substr(0, 200);
    }
  }
  if (chosen != nullptr) {
    std::printf("%lu of %lu programs failed\n", failed, range->count);
  }
}

}  // namespace shardlens::test
