#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/edits/plan_edit.h"
#include "core/edits/pytorch_calls.h"
#include "core/plan/plan.h"
#include "core/tree/module_tree.h"

namespace shardlens::plan {

// The catalogue of edits of plans of one model: for each key (plan_key.h) the edits that give it a
// value. The app lists values(), advise predicts the edits that it chooses, and search sets the
// same values (plan_values.h). Edits of single modules are in module_values.h.
//
// Ownership  has a copy of the tree, which the edits share.
class PlanEdits {
 public:
  // `ranks`: all of them. `dialect`: of the PyTorch lines.
  PlanEdits(const ModuleTree& tree, int64_t ranks, Dialect dialect);

  // The values from which a user chooses: of the keys that decide about all units, those of
  // setting_values() (plan_settings.h) included; none of other keys.
  [[nodiscard]] std::vector<PlanEdit> values(PlanKey key) const;

  // As `simulate --workload RUN --strategy NAME` changes the run's plan.
  [[nodiscard]] PlanEdit strategy(const std::string& label, std::string_view name) const;
  // Units stay sharded over `ranks` ranks after forward.
  [[nodiscard]] PlanEdit kept_over(int64_t ranks) const;
  // Units of `together` blocks each (0: the model is one unit), written as `units`.
  [[nodiscard]] PlanEdit units(size_t together, const std::vector<UnitEntry>& units) const;
  // Units of their own for modules that have none.
  [[nodiscard]] PlanEdit own_units(const std::vector<std::string>& modules) const;
  // `tensor`, `context`: ranks of tensor and context parallelism, which stay as they are.
  [[nodiscard]] PlanEdit mesh(int64_t replicate,
                              int64_t shard,
                              int64_t tensor,
                              int64_t context = 1) const;
  // The setting of all units; kAuto or kNo.
  [[nodiscard]] PlanEdit reshard(Reshard::Kind kind) const;
  // Only `modules`, each of which is a unit, keep their parameters after forward. `units`: the
  // plan's, an entry for each. Without effect on a plan with other units than `before`.
  [[nodiscard]] PlanEdit keep(const std::vector<std::string>& modules,
                              std::vector<UnitEntry> units,
                              const std::vector<UnitEntry>& before) const;
  // `modules`, each of which is a unit of embeddings only, are not gathered in backward, which does
  // not read them. `units`, `before`: as keep().
  [[nodiscard]] PlanEdit no_backward_gather(const std::vector<std::string>& modules,
                                            std::vector<UnitEntry> units,
                                            const std::vector<UnitEntry>& before) const;
  [[nodiscard]] PlanEdit forward_prefetch(int64_t depth) const;
  [[nodiscard]] PlanEdit backward_prefetch(BackwardPrefetch prefetch) const;
  [[nodiscard]] PlanEdit separate_reduce_scatter_group() const;
  // So many reductions may be in flight before compute waits for the oldest. fsdp2 only.
  [[nodiscard]] PlanEdit reduction_inputs(int64_t count) const;
  // One of every `every` blocks is checkpointed; 0: none.
  [[nodiscard]] PlanEdit checkpoints(size_t every) const;
  [[nodiscard]] PlanEdit buckets(double megabytes) const;
  [[nodiscard]] PlanEdit microbatches(int64_t batch, int64_t accumulate) const;
  [[nodiscard]] PlanEdit sync_last_microbatch() const;

 private:
  [[nodiscard]] std::vector<PlanEdit> shardings() const;
  [[nodiscard]] std::vector<PlanEdit> groupings() const;
  [[nodiscard]] std::vector<PlanEdit> precisions() const;
  [[nodiscard]] static PlanEdit precision(const std::string& label,
                                          const MixedPrecision& mixed,
                                          std::optional<DType> dtype);
  [[nodiscard]] static std::vector<PlanEdit> dialects();
  [[nodiscard]] static std::vector<PlanEdit> layouts();

  std::shared_ptr<const ModuleTree> tree_;
  int64_t ranks_;
  PytorchCalls pytorch_;
};

// The mixed precision that plans usually have, and what it is called: "fp32", "bf16, reduced in
// fp32", "bf16, gradients too", "fp16, reduced in fp32".
struct NamedPrecision {
  std::string_view label;
  MixedPrecision mixed;
};
[[nodiscard]] std::vector<NamedPrecision> usual_precisions();

}  // namespace shardlens::plan
