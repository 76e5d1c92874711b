#include <utility>
#include <vector>

#include "core/edits/plan_edits.h"
#include "gui/model/what_if/edit_history.h"

namespace shardlens::gui {

PlanKnob knob_of(plan::PlanKey key, std::vector<plan::PlanEdit> edits) {
  const plan::PlanKeyRow& row = plan::plan_key(key);
  PlanKnob out{QString::fromUtf8(row.title), QString::fromUtf8(row.help), {}, {}};
  for (plan::PlanEdit& edit : edits) {
    out.choices.push_back(
        {QString::fromStdString(edit.label),
         [apply = std::move(edit.apply)](PlanState& state) { apply(state.plan); },
         [holds = std::move(edit.holds)](const PlanState& state) { return holds(state.plan); }});
  }
  return out;
}

std::vector<PlanKnob> plan_knobs(const plan::ModuleTree& tree, int64_t world_size) {
  using enum plan::PlanKey;
  using Section = PlanKnob::Section;
  const std::pair<Section, std::vector<plan::PlanKey>> sections[] = {
      {Section::kPlan,
       {kSharding, kUnits, kForwardPrefetch, kBackwardPrefetch, kPrecision, kDialect, kLayout}},
      {Section::kMesh,
       {kReplicas, kContext, kTensor, kExpert, kSequenceParallel, kLossParallel, kContextMethod,
        kExpertDispatch}},
      {Section::kMemory,
       {kCheckpoints, kSaves, kOffload, kOptimizerInBackward, kReshardInBackward}},
      {Section::kCommunication,
       {kGatherDtype, kCommunicators, kAllReduces, kDivideFactor, kLimit, kViews}},
      {Section::kPrecision, {kOutputDtype, kBufferDtype, kCastInputs}},
      {Section::kReplicated, {kBuckets, kUnusedParameters, kStaticGraph, kBucketViews}}};
  const plan::PlanEdits edits(tree, world_size, plan::Dialect::kFsdp2);
  std::vector<PlanKnob> out;
  for (const auto& [section, keys] : sections) {
    for (const plan::PlanKey key : keys) {
      out.push_back(knob_of(key, edits.values(key)));
      out.back().section = section;
    }
  }
  return out;
}

}  // namespace shardlens::gui
