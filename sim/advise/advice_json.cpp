#include "sim/advise/advice_json.h"

#include <optional>
#include <vector>

#include "core/plan/plan_mesh_json.h"
#include "sim/scenario/prediction_json.h"

namespace shardlens::sim {
namespace {

using nlohmann::ordered_json;

template <class T>
ordered_json optional(const std::optional<T>& value) {
  return value ? ordered_json(*value) : ordered_json();
}

ordered_json changes_json(const std::vector<AdvisedChange>& changes) {
  auto out = ordered_json::array();
  for (const AdvisedChange& change : changes) {
    auto hides = ordered_json::array();
    for (const HiddenTime& each : change.hides) {
      hides.push_back({{"unit", each.unit}, {"collective", each.collective}, {"ns", each.time}});
    }
    out.push_back({{"id", change.id},
                   {"title", change.title},
                   {"plan", ordered_json::parse(plan::to_json(change.plan))},
                   {"run",
                    {{"batch", change.step.batch},
                     {"accumulate", change.step.accumulate},
                     {"sync_every_microbatch", change.step.sync_every_microbatch}}},
                   {"pytorch", change.pytorch},
                   {"lines", change.lines},
                   {"step_ns", change.duration},
                   {"change_ns", change.change},
                   {"interval_ns", {change.interval.low, change.interval.high}},
                   {"bound_ns", change.bound},
                   {"verdict", name_of(change.odds.verdict)},
                   {"odds", optional(change.odds.in_100())},
                   {"probability", change.odds.probability},
                   {"extrapolated", extrapolations_json(change.extrapolated)},
                   {"peak_allocated_bytes", change.peak_allocated},
                   {"fits", change.fits},
                   {"hides", hides},
                   {"measured_change_ns", optional(change.measured_change)},
                   {"measured_error_ns", optional(change.measured_error)}});
  }
  return out;
}

ordered_json priced_json(const std::optional<PricedMesh>& of) {
  if (!of) {
    return nullptr;
  }
  return {{"mesh", plan::every_axis_json(of->mesh)},
          {"title", of->title},
          {"plan", ordered_json::parse(plan::to_json(of->plan))},
          {"run",
           {{"batch", of->step.batch},
            {"accumulate", of->step.accumulate},
            {"sync_every_microbatch", of->step.sync_every_microbatch}}},
          {"step_ns", of->duration},
          {"interval_ns",
           of->interval ? ordered_json{of->interval->low, of->interval->high} : ordered_json()},
          {"peak_reserved_bytes", of->peak_reserved}};
}

}  // namespace

ordered_json mesh_proposal_json(const MeshProposal& proposal) {
  const bool made = proposal.refusal.empty();
  return {{"refusal", made ? ordered_json() : ordered_json(proposal.refusal)},
          {"machine", proposal.machine},
          {"own", priced_json(proposal.own)},
          {"best", priced_json(proposal.best)},
          {"change_ns", made ? ordered_json(proposal.change()) : ordered_json()},
          {"searched", proposal.searched},
          {"refused", proposal.refused},
          {"why_refused", proposal.why_refused},
          {"not_tried", proposal.not_tried}};
}

ordered_json advice_json(const Advice& advice) {
  ordered_json out{{"schema", 1}};
  out["baseline"] = baseline_json(advice.baseline);
  out["baseline"]["peak_allocated_bytes"] = advice.peak_allocated;
  out["baseline"]["fits"] = advice.fits;
  out["framework"] = name_of(advice.framework);
  out["all_gathers_block"] = advice.all_gathers_block;
  out["changes"] = changes_json(advice.changes);
  out["others"] = changes_json(advice.others);
  out["unknown"] = ordered_json::array();
  for (const UnknownChange& each : advice.unknown) {
    out["unknown"].push_back({{"id", each.id}, {"title", each.title}, {"reason", each.reason}});
  }
  out["waste"] = ordered_json::array();
  for (const FoundWaste& each : advice.waste) {
    out["waste"].push_back({{"kind", name_of(each.kind)},
                            {"unit", each.unit},
                            {"ns", each.lost},
                            {"evidence", each.evidence}});
  }
  return out;
}

}  // namespace shardlens::sim
