// what_if RUN: duration in nanoseconds of the run's step, simulated under its own plan and with
// forward_prefetch 1.
#include <cstdio>
#include <filesystem>
#include <vector>

#include <shardlens/sim/scenario/scenario.h>

int main(int argc, char** argv) {
  const std::vector<std::filesystem::path> paths(argv + 1, argv + argc);
  shardlens::sim::Scenario scenario =
      shardlens::sim::own_scenario(shardlens::sim::RecordedRun::open(paths));
  for (const int prefetch : {0, 1}) {
    scenario.plan.forward_prefetch = prefetch;
    const shardlens::sim::Prediction prediction = shardlens::sim::evaluate(scenario);
    std::printf("%d %lld\n", prefetch, static_cast<long long>(prediction.figures.duration()));
  }
}
