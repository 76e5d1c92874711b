#include "core/workload/host_launches.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace shardlens::plan {
namespace {

constexpr int kOutside = -1, kLossCall = -2, kModelCall = -3;

// Backward and what a checkpoint runs again in it are one call.
bool in_backward(Phase phase) {
  return phase == Phase::kBackward || phase == Phase::kRecompute;
}

// An operator that the builder describes as one kernel, by the name of inductor's.
void name_as_kernel(Operator& op) {
  constexpr std::string_view kOwn = "shardlens::";
  constexpr std::array<std::string_view, 5> kActivations{
      "aten::gelu", "aten::silu", "aten::relu", "aten::threshold_backward", "aten::softmax"};
  const bool own = op.name.starts_with(kOwn) && op.kind != OperatorKind::kGemm &&
                   op.kind != OperatorKind::kAttention;
  if (own || std::ranges::any_of(
                 kActivations, [&](std::string_view name) { return op.name.starts_with(name); })) {
    op.name = "triton_poi_fused_" + op.name.substr(op.name.find("::") + 2);
  }
}

}  // namespace

BlockOfModule::BlockOfModule(const ModuleTree& tree) {
  for (const uint32_t block : tree.blocks) {
    prefixes_.push_back(tree.modules[block].fqn + ".");
  }
}

int BlockOfModule::of(std::string_view module) const {
  for (size_t i = 0; i < prefixes_.size(); ++i) {
    const std::string_view prefix = prefixes_[i];
    if (module.starts_with(prefix) || module == prefix.substr(0, prefix.size() - 1)) {
      return static_cast<int>(i);
    }
  }
  return kOutside;
}

void set_launches(const ModuleTree& tree, Workload& workload) {
  const Software& software = workload.software;
  if (software.compile == Compile::kNone && !software.cuda_graphs) {
    return;
  }
  const BlockOfModule blocks(tree);
  std::pair<int, bool> last{kOutside, false};  // the call that is running, and its direction
  bool begun = false;
  for (const WorkloadItem& item : workload.order) {
    if (item.kind != WorkloadItem::Kind::kOperator) {
      continue;
    }
    Operator& op = workload.operators[item.index];
    if (op.phase == Phase::kOptimizer) {
      continue;
    }
    const bool loss = op.kind == OperatorKind::kLoss;
    const std::pair<int, bool> now{software.compile == Compile::kNone    ? kOutside
                                   : software.compile == Compile::kModel ? kModelCall
                                   : loss                                ? kLossCall
                                                                         : blocks.of(op.module),
                                   in_backward(op.phase)};
    if (now.first != kOutside) {
      op.launch = now == last ? Launch::kKernel : Launch::kFirstKernel;
      name_as_kernel(op);
    }
    if (software.cuda_graphs) {
      op.launch = std::exchange(begun, true) ? Launch::kInGraph : Launch::kFirstInGraph;
    }
    last = now;
  }
}

}  // namespace shardlens::plan
