// Cost of simulating many plans: every candidate of the 80-layer 70B model on 8 GPUs, for 1, 2, 3,
// … sequences per rank and step, until at least --plans are simulated. Goals: 0.5 ms per plan,
// 10 000 plans in 3 s on two cores. search_bench.py runs llm-analysis on the same plans. With
// --per-block, searches settings of single blocks; goal: 2 s.
#include <chrono>
#include <ctime>
#include <fstream>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "core/base/heap.h"
#include "core/tree/module_tree.h"
#include "sim/search/per_block.h"
#include "sim/search/search.h"

namespace {

namespace plan = shardlens::plan;
namespace sim = shardlens::sim;

constexpr const char* kModel = R"({"model_type": "llama", "hidden_size": 8192,
  "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
  "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072})";
constexpr int64_t kRanks = 8, kSeq = 4096;

// Both searches, with equal blocks and per block, for 8 nodes, where the memory of the GPUs decides
// what is checkpointed.
void search_per_block(sim::Scenario scenario, int64_t gibibytes) {
  sim::HardwareSpec hardware = sim::load_hardware("8xH100");
  hardware.nodes = 8;
  scenario.machine = std::make_shared<const sim::TargetMachine>(hardware);
  scenario.world_size = hardware.ranks();
  scenario.step.batch = 4;
  sim::SearchOptions options;
  options.memory_limit = gibibytes << 30;
  const std::clock_t before = std::clock();
  const sim::SearchResult equal = sim::search(scenario, options);
  const auto found = sim::search_per_block(
      scenario, options, equal.best() == nullptr ? nullptr : &equal.best()->candidate);
  const double cpu = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  fmt::print(
      "per block, {} GiB: {:.3f} s of CPU, with equal blocks {:.3f} s a step{}", gibibytes, cpu,
      equal.best() == nullptr
          ? 0.0
          : static_cast<double>(equal.best()->outcome.figures.duration()) * 1e-9,
      equal.best() == nullptr || !equal.best()->candidate.cpu_offload ? "" : " (CPU offload)");
  if (found) {
    fmt::print(", {} steps simulated, {:.3f} s a step, gap {:.2f} %: {}", found->evaluated,
               static_cast<double>(found->outcome.figures.duration()) * 1e-9, 100 * found->gap,
               name_of(found->candidate, scenario.world_size));
  }
  fmt::print("\n");
}

}  // namespace

int main(int argc, char** argv) {
  shardlens::keep_freed_memory();  // as the program's search does
  size_t plans = 10000;
  unsigned threads = 2;
  std::string csv;
  CLI::App app{"Measures the cost of simulating many plans"};
  app.add_option("--plans", plans, "minimum number of plans [10000]");
  app.add_option("--threads", threads, "number of threads [2]");
  app.add_option("--csv", csv, "write the plans and their predictions to this file");
  bool per_block = false;
  app.add_flag("--per-block", per_block, "only search settings of single blocks, on 64 GPUs");
  CLI11_PARSE(app, argc, argv);

  sim::Scenario scenario;
  scenario.model =
      std::make_shared<const sim::ScenarioModel>(plan::parse_model_config(kModel, "70b"));
  scenario.plan.mixed_precision.param_dtype = shardlens::DType::kBF16;
  scenario.plan.mixed_precision.reduce_dtype = shardlens::DType::kF32;
  scenario.world_size = kRanks;
  scenario.step.seq = kSeq;
  sim::HardwareSpec hardware = sim::load_hardware("8xH100");
  hardware.gpu.memory = shardlens::Bytes{1} << 50;  // large enough that every plan fits
  scenario.machine = std::make_shared<const sim::TargetMachine>(hardware);

  if (per_block) {
    for (const int64_t gibibytes : {32, 48, 72}) {
      search_per_block(scenario, gibibytes);
    }
    return 0;
  }
  std::ofstream rows;
  if (!csv.empty()) {
    rows.open(csv);
    rows << "blocks,shard,replicate,reshard,backward_prefetch,forward_prefetch,checkpoint,batch,"
            "accumulate,step_ns,compute_ns,exposed_comm_ns,peak_bytes,allocated_bytes\n";
  }
  size_t done = 0;
  std::chrono::duration<double> taken{0};
  double cpu = 0;  // CPU time of all threads, which depends less on other programs
  for (int64_t samples = 1; done < plans; ++samples) {
    sim::SearchOptions options;
    options.memory_limit = hardware.gpu.memory;
    scenario.step.accumulate = samples;
    options.threads = threads;
    std::vector<sim::Found> found;
    options.on_progress = [&](const sim::Found& each, size_t, size_t) { found.push_back(each); };
    const auto begin = std::chrono::steady_clock::now();
    const std::clock_t before = std::clock();
    const sim::SearchResult result = sim::search(scenario, options);
    taken += std::chrono::steady_clock::now() - begin;
    cpu += static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
    done += result.evaluated;
    for (const sim::Found& each : found) {
      const sim::Candidate& c = each.candidate;
      const sim::Outcome& o = each.outcome;
      rows << fmt::format("{},{},{},{:d},{:d},{},{:d},{},{},{},{},{},{},{}\n", c.blocks_per_unit,
                          c.shard, kRanks / c.shard, c.reshard, c.backward_prefetch,
                          c.forward_prefetch, c.checkpoint, c.batch, c.accumulate,
                          o.figures.duration(), o.figures.compute, o.figures.exposed_comm,
                          o.peak_reserved, o.peak_allocated);
    }
  }
  fmt::print("{} plans in {:.3f} s on {} threads: {:.1f} us of CPU a plan\n", done, taken.count(),
             threads, cpu * 1e6 / static_cast<double>(done));
  return rows ? 0 : 4;
}
