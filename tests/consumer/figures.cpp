// figures RUN: hidden communication of each rank of a recorded run.
#include <cstdio>
#include <filesystem>
#include <vector>

#include <shardlens/core/base/error.h>
#include <shardlens/profiler/analysis/analysis.h>
#include <shardlens/profiler/analysis/recover/recorded_program.h>

int main(int argc, char** argv) try {
  const std::vector<std::filesystem::path> paths(argv + 1, argv + argc);
  const shardlens::trace::Run run = shardlens::analysis::open_run(paths);
  for (const auto& rank : shardlens::analysis::analyze(run).ranks) {
    std::printf("%lld %lld %lld\n", static_cast<long long>(rank.rank),
                static_cast<long long>(rank.figures.comm),
                static_cast<long long>(rank.figures.exposed_comm));
  }
} catch (const shardlens::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return static_cast<int>(error.code());
}
