#include <array>
#include <string_view>

#include "cli/command/command_text.h"

namespace shardlens::cli {

// Two or three for each subcommand, in the order of its name in subcommands.cpp. "llama" is a
// folder with a config.json, "run" a capture or a run of shardlens.record.
std::vector<ExampleInfo> examples_of(std::string_view subcommand) {
  struct Row {
    std::string_view subcommand, flags, says;
  };
  static constexpr std::array kTable{
      Row{"plan", "--model llama --world-size 8", "units and bytes of each rank, fully sharded"},
      Row{"plan", "--model llama --plan plan.json --world-size 8 --actions",
          "what a rank does in a step, in order"},
      Row{"plan", "--from-trace run", "the plan that a recorded run had"},
      Row{"capture", "--model llama --tokens text.txt --nproc 2 --out run",
          "train 10 steps in two processes"},
      Row{"capture", "--model llama --tokens text.txt --plan plan.json --out run",
          "the same under a plan of your own"},
      Row{"analyze", "run", "what is exposed, and why"},
      Row{"analyze", "run --by unit --steps 5:10", "of steps 5 to 9, by unit"},
      Row{"analyze", "rank0.json.gz rank1.json.gz --json", "traces of two ranks, for programs"},
      Row{"merge", "rank0.summary rank1.summary", "of summaries made by analyze --summarize"},
      Row{"compare", "before after", "differences beyond noise"},
      Row{"check", "--baseline before --candidate after", "exit code 1 if steps became slower"},
      Row{"check", "--baseline before --candidate after --metric structure",
          "only the order and number of collectives"},
      Row{"check", "--candidate run --update-baseline baseline.json",
          "show what changed, and accept it"},
      Row{"report", "run --simulate --advise --out run.html", "one page to share"},
      Row{"simulate", "--model llama --hardware 8xH100 --strategy full_shard",
          "time and memory of a step on eight GPUs"},
      Row{"simulate", "--workload run --plan plan.json", "a recorded run under another plan"},
      Row{"simulate", "--model llama --hardware 8xH100 --fits", "the largest batch that fits"},
      Row{"advise", "run", "changes of the plan that would pay, with intervals"},
      Row{"advise", "run --memory-limit 60GiB --top 3", "of those that fit in 60 GiB"},
      Row{"calibrate", "--capture run --out machine.json",
          "constants of this machine for simulate --calibration"},
      Row{"search", "--model llama --hardware 8xH100 --memory-limit 70GiB",
          "the fastest plans that fit"},
      Row{"search", "--workload run --memory-limit 70GiB --out plan.json",
          "for a recorded run; the fastest plan as a file"},
      Row{"validate", "--runs published.csv", "published runs with the predictions for them"},
      Row{"gui", "run", "timeline, units and memory of a run"},
      Row{"gui", "--model llama --hardware 8xH100", "plan for GPUs that need not be here"},
      Row{"checkpoint", "verify run/checkpoints", "whether every saved byte is there"},
      Row{"checkpoint", "merge run/checkpoints --out model.safetensors",
          "one file for other programs"},
      Row{"convert", "rank0.json.gz --steps 5:7 --out part.json.gz", "two steps of a long trace"},
      Row{"convert", "run --compat tensorboard --out logs",
          "a run whose communication TensorBoard's PyTorch plugin sees"},
      Row{"doctor", "", "what works on this machine, and what to install"},
      Row{"docs", "plan", "the plan file, key by key"},
      Row{"docs", "metrics causes", "what each cause of exposed time means"},
      Row{"schema", "analyze", "what analyze --json prints, as a JSON Schema"},
      Row{"schema", "plan_file", "for editors and programs that write a plan.json"},
      Row{"completion", "bash", "to be evaluated: eval \"$(shardlens completion bash)\""},
      Row{"completion", "man --out man1", "manual pages"},
  };
  std::vector<ExampleInfo> out;
  for (const Row& row : kTable) {
    if (row.subcommand == subcommand) {
      out.push_back({"shardlens " + std::string(row.subcommand) +
                         (row.flags.empty() ? "" : " " + std::string(row.flags)),
                     std::string(row.says)});
    }
  }
  return out;
}

}  // namespace shardlens::cli
