// `trace_read FILE`: reads a trace file and prints the seconds that it took, and the number of
// events. bench/trace_bench.py runs it.
#include <chrono>
#include <cstdio>

#include "core/base/error.h"
#include "profiler/trace/kineto/kineto_reader.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: trace_read FILE\n", stderr);
    return 2;
  }
  try {
    const auto begin = std::chrono::steady_clock::now();
    const auto trace = shardlens::trace::read_kineto(argv[1]);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    std::printf("%.6f %zu\n", seconds.count(), trace.events.size());
  } catch (const shardlens::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 3;
  }
  return 0;
}
