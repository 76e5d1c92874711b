#include "core/workload/step_support.h"

#include <string>

#include <fmt/format.h>

#include "core/base/error.h"

namespace shardlens::plan {

void require_step_support(const ResolvedPlan& plan, const StepSettings& settings) {
  bool fp16 = false;
  for (UnitId id = 0; id < plan.units.size(); ++id) {
    fp16 = fp16 || plan.param_dtype(id) == DType::kF16 || plan.reduce_dtype(id) == DType::kF16;
  }
  const bool adds = settings.accumulate > 1 && settings.sync_every_microbatch;
  const char* why =
      settings.clip
          ? "clipping needs the norm of all gradients before any of them is used; expected "
            "no clipping"
      : adds
          ? "the gradients that microbatches reduce are added up before the optimizer uses them; "
            "expected one microbatch, or no sync before the last one"
      : fp16 ? "fp16 scales the loss, so all gradients are checked for infinities before any of "
               "them is used; expected bf16 or fp32"
             : nullptr;
  if (why == nullptr) {
    return;
  }
  for (const Unit& unit : plan.units) {
    const bool own =
        unit.entry >= 0 && plan.plan.units[static_cast<size_t>(unit.entry)].optimizer_in_backward;
    if (unit.optimizer_in_backward) {
      const std::string at = own ? fmt::format("/units/{}", unit.entry) : "";
      throw InputError(fmt::format("{}#{}/optimizer_in_backward", plan.plan.source, at), why);
    }
  }
}

}  // namespace shardlens::plan
