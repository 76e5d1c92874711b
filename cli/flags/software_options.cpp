#include "cli/flags/software_options.h"

#include <map>
#include <string>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <CLI/Validators.hpp>

#include "core/workload/step_limits.h"

namespace shardlens::cli {
namespace {

// The enumerators by their names.
template <typename Enum>
std::map<std::string, Enum> by_name(int count) {
  std::map<std::string, Enum> out;
  for (int i = 0; i < count; ++i) {
    out.emplace(name_of(static_cast<Enum>(i)), static_cast<Enum>(i));
  }
  return out;
}

}  // namespace

void add_software_options(CLI::App& app, plan::Software& software) {
  static const auto kCompiles = by_name<plan::Compile>(plan::kCompileCount);
  app.add_option("--compile", software.compile,
                 "what torch.compile compiles: none; block, each of the model's blocks and the "
                 "loss; model")
      ->transform(CLI::CheckedTransformer(kCompiles))
      ->option_text("none|block|model [none]");
  app.add_flag(
      "--cuda-graphs", software.cuda_graphs,
      "forward and backward of a microbatch are one CUDA graph, as by default with --stack "
      "torchtitan-0.3");
  app.add_flag(
         "--no-cuda-graphs", [](int64_t) {}, "the host issues each kernel, as by default otherwise")
      ->excludes("--cuda-graphs");
  static const auto kDTypes = by_name<plan::MatmulDType>(plan::kMatmulDTypeCount);
  app.add_option("--matmul-dtype", software.matmul_dtype,
                 "in what the linear layers of blocks multiply, as torchao's recipes [the plan's]")
      ->transform(CLI::CheckedTransformer(kDTypes))
      ->option_text("fp8_tensorwise|fp8_rowwise|mxfp8|nvfp4|mxfp8_cublas_rceil");
  app.add_option("--matmul-tail", software.matmul_tail,
                 "with --matmul-dtype: so many of the last blocks keep the plan's products, as "
                 "torchtitan keeps 15 % of them with nvfp4")
      ->check(CLI::Range(int64_t{0}, plan::kMostMatmulTail))
      ->option_text("N [0]");
  app.add_option("--loss-chunks", software.loss_chunks,
                 "compute head and loss in so many parts of the rows, so that the logits of only "
                 "one exist")
      ->check(CLI::Range(int64_t{1}, plan::kMostLossChunks))
      ->option_text("N [1, or 8 with --stack torchtitan-0.3]");
  app.add_flag(
      "--expandable-segments", [&software](int64_t) { software.expandable_segments = true; },
      "the program runs with PYTORCH_ALLOC_CONF=expandable_segments:True, as by default with "
      "--stack torchtitan");
  app.add_flag(
         "--no-expandable-segments", [&software](int64_t) { software.expandable_segments = false; },
         "it does not, as by default otherwise")
      ->excludes("--expandable-segments");
  for (const char* flag : {"--compile", "--cuda-graphs", "--no-cuda-graphs", "--matmul-dtype",
                           "--matmul-tail", "--loss-chunks"}) {
    app.get_option(flag)->excludes("--workload")->excludes("--calibration");
  }
}

}  // namespace shardlens::cli
