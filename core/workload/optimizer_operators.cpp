#include "core/workload/optimizer_operators.h"

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "core/plan/unit_sizes.h"

namespace shardlens::plan {
namespace {

// Update of AdamW per element: two moments, bias correction, decay, step.
constexpr int64_t kAdamWFlops = 14;
// Update of SGD per element: decay and step, plus the update of the momentum if it is used.
constexpr int64_t kSgdFlops = 4, kMomentumFlops = 2;

// One operator of torch.optim with foreach: numbers per element that it reads and writes.
struct Foreach {
  std::string_view name;
  int64_t read = 1, written = 1;
  int64_t kept = 0;  // written to new tensors, which the last operator takes
};
// torch.optim.adamw._multi_tensor_adamw and torch.optim.sgd._multi_tensor_sgd, torch 2.11.
constexpr Foreach kForeachAdamW[] = {
    {.name = "aten::_foreach_mul_"},              // decay
    {.name = "aten::_foreach_lerp_", .read = 2},  // first moment
    {.name = "aten::_foreach_mul_"},              // second moment
    {.name = "aten::_foreach_addcmul_", .read = 2},
    {.name = "aten::_foreach_sqrt", .kept = 1},
    {.name = "aten::_foreach_div_"},
    {.name = "aten::_foreach_add_"},
    {.name = "aten::_foreach_addcdiv_", .read = 3},
};
constexpr Foreach kForeachSgd[] = {
    {.name = "aten::_foreach_add_", .read = 2},
};
constexpr Foreach kForeachMomentum[] = {
    {.name = "aten::_foreach_mul_"},
    {.name = "aten::_foreach_add_", .read = 2},
    {.name = "aten::_foreach_add_", .read = 2},
};

// What a rank updates: elements, and the bytes of one number of each in the dtype in which the
// parameter is trained, which gradients and states have too. The host updates what is offloaded.
struct Updated {
  int64_t elements = 0;
  Bytes bytes = 0, on_device = 0;  // on_device: without what is offloaded

  void add(const ResolvedPlan& plan, UnitId id, const UnitSize& size) {
    const Bytes one = size.stepped * size_of(plan.master_dtype(id));
    elements += size.stepped;
    bytes += one;
    on_device += plan.units[id].cpu_offload ? 0 : one;
  }
};

std::vector<Operator> operators_for(const Updated& updated, const StepSettings& settings) {
  const bool adamw = settings.optimizer == Optimizer::kAdamW;
  const int64_t states = settings.optimizer_states();
  const Bytes one = updated.bytes;
  Operator op;
  op.kind = OperatorKind::kOptimizer;
  op.phase = Phase::kOptimizer;
  op.flops = (adamw ? kAdamWFlops : kSgdFlops + kMomentumFlops * states) * updated.elements;
  if (settings.optimizer_impl == OptimizerImpl::kFused) {
    op.name = adamw ? "aten::_fused_adamw_" : "aten::_fused_sgd_";
    op.read = (2 + states) * one;     // parameter, gradient, states
    op.written = (1 + states) * one;  // all but the gradient
    return {op};
  }
  const std::span<const Foreach> list = adamw        ? std::span<const Foreach>(kForeachAdamW)
                                        : states > 0 ? std::span<const Foreach>(kForeachMomentum)
                                                     : std::span<const Foreach>(kForeachSgd);
  op.flops /= static_cast<int64_t>(list.size());
  std::vector<Operator> out;
  for (const Foreach& each : list) {
    op.name = each.name;
    op.read = each.read * one;
    op.written = each.written * one;
    op.saved = each.kept * updated.on_device;
    out.push_back(op);
  }
  return out;
}

// torchao 0.18's precompute_float8_dynamic_scale_for_fsdp: max(abs) of the new weights that are
// gathered as float8. The ranks' results are then reduced: float8_scales().
void add_scales(const ResolvedPlan& plan,
                std::span<const UnitSize> sizes,
                std::vector<Operator>& out) {
  Operator op;
  op.kind = OperatorKind::kOptimizer;
  op.phase = Phase::kOptimizer;
  op.name = "aten::_foreach_norm";
  for (UnitId id = 0; id < sizes.size(); ++id) {
    const int64_t numel = sizes[id].float8 / plan.groups[plan.units[id].gather].size;
    op.flops += numel;
    op.read += numel * size_of(plan.master_dtype(id));
  }
  if (op.flops > 0) {
    out.push_back(std::move(op));
  }
}

}  // namespace

bool zeroes_gradients(Program program, const Software& software) {
  return keeps_gradients(program, software) && !is_traced(program);
}

std::vector<Operator> optimizer_operators(const ResolvedPlan& plan,
                                          std::span<const UnitSize> sizes,
                                          const StepSettings& settings) {
  Updated updated;
  for (UnitId id = 0; id < sizes.size(); ++id) {
    if (!plan.units[id].optimizer_in_backward) {
      updated.add(plan, id, sizes[id]);
    }
  }
  std::vector<Operator> out;
  if (updated.elements > 0 || !plan.steps_in_backward()) {
    out = operators_for(updated, settings);
  }
  add_scales(plan, sizes, out);
  if (zeroes_gradients(settings.program, settings.software)) {
    Operator zero;
    zero.kind = OperatorKind::kOptimizer;
    zero.phase = Phase::kOptimizer;
    zero.name = "aten::_foreach_zero_";
    zero.written = updated.on_device;
    out.push_back(std::move(zero));
  }
  return out;
}

std::optional<Communication> float8_scales(const ResolvedPlan& plan) {
  Communication out;
  for (UnitId id = 0; id < plan.units.size(); ++id) {
    for (const uint32_t parameter : plan.units[id].parameters) {
      if (plan.gathers_float8(id, parameter)) {
        out.bytes += size_of(plan.master_dtype(id));
        out.group = plan.units[id].gather;
      }
    }
  }
  if (out.bytes == 0) {
    return std::nullopt;
  }
  out.phase = Phase::kOptimizer;
  return out;
}

std::vector<Operator> operators_in_backward(const ResolvedPlan& plan,
                                            std::span<const UnitSize> sizes,
                                            const StepSettings& settings) {
  std::vector<Operator> out;
  for (UnitId id = 0; id < sizes.size(); ++id) {
    if (plan.units[id].optimizer_in_backward && sizes[id].stepped > 0) {
      Updated updated;
      updated.add(plan, id, sizes[id]);
      for (Operator& op : operators_for(updated, settings)) {
        op.unit = id;
        out.push_back(std::move(op));
      }
    }
  }
  return out;
}

}  // namespace shardlens::plan
