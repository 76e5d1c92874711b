#include "cli/worker/shared_settings.h"

#include <filesystem>
#include <functional>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/plan/plan.h"

namespace shardlens::cli {
namespace {

size_t hash_of(const std::string& text) {
  return std::hash<std::string>{}(text);
}

std::string text_of(const plan::ModuleTree& tree) {
  std::string out;
  for (const plan::Parameter& parameter : tree.parameters) {
    out += fmt::format("{} [{}]\n", parameter.fqn, fmt::join(parameter.shape, ", "));
  }
  return out;
}

}  // namespace

std::string shared_settings(const RunOptions& options,
                            const PreparedRun& prepared,
                            int64_t first_step) {
  RunOptions shared = options;
  // Paths may differ between nodes; model and plan are compared by what they contain.
  shared.model.clear();
  shared.tokens.clear();
  shared.plan.clear();
  shared.out.clear();
  shared.trigger_file.clear();
  for (std::filesystem::path* path : {&shared.save, &shared.resume}) {
    *path = path->empty() ? "" : "DIR";  // all ranks save or resume, or none
  }
  const RunOptions defaults;
  shared.strategy = defaults.strategy;
  shared.mesh = defaults.mesh;
  shared.nproc = defaults.nproc;
  shared.on_signal = defaults.on_signal;
  shared.record_limit = defaults.record_limit;
  shared.record_newest = defaults.record_newest;
  shared.threads = defaults.threads;
  shared.timeout = defaults.timeout;
  shared.host_name = defaults.host_name;
  const std::vector<std::string> flags = to_arguments(shared);
  return fmt::format("shardlens " SHARDLENS_VERSION " (torch " SHARDLENS_TORCH_VERSION
                     ") trains from step {} with {}, model {:08x}, plan {:08x}",
                     first_step,
                     flags.empty() ? "default flags" : fmt::format("{}", fmt::join(flags, " ")),
                     hash_of(text_of(prepared.plan.tree)) & 0xffffffffU,
                     hash_of(plan::to_json(plan_of(options, prepared.plan.tree))) & 0xffffffffU);
}

}  // namespace shardlens::cli
