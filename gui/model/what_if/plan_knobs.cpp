#include "core/plan/grouped_blocks.h"
#include "core/plan/strategy_change.h"
#include "gui/model/what_if/edit_history.h"

namespace shardlens::gui {
namespace {

using plan::Plan;
using Choice = PlanKnob::Choice;

// As `simulate --workload RUN --strategy NAME` changes the run's plan.
Choice strategy(const QString& label, const char* name, const plan::ModuleTree& tree) {
  const auto changed = [name, tree](const Plan& p) {
    Plan out = plan::with_strategy(p, name, tree);
    out.source = p.source;
    return out;
  };
  return {label, [changed](Plan& p) { p = changed(p); },
          [changed](const Plan& p) { return changed(p) == p; }};
}

PlanKnob units_knob(const plan::ModuleTree& tree) {
  PlanKnob knob{QObject::tr("Units"), QObject::tr("Which modules are sharded together"), {}};
  const auto add = [&knob](const QString& label, const std::vector<plan::UnitEntry>& units) {
    knob.choices.push_back({label, [units](Plan& p) { p.units = units; },
                            [units](const Plan& p) { return p.units == units; }});
  };
  add(QObject::tr("each block"), plan::strategy_plan("full_shard", tree).units);
  for (const size_t together : {size_t{2}, size_t{4}, size_t{8}}) {
    if (together < tree.blocks.size()) {
      add(QObject::tr("%1 blocks together").arg(together), plan::grouped_blocks(tree, together));
    }
  }
  add(QObject::tr("the whole model"), plan::grouped_blocks(tree, 0));
  return knob;
}

template <typename Member, typename Value>
Choice value(const QString& label, Member member, const Value& value) {
  return {label, [member, value](Plan& p) { p.*member = value; },
          [member, value](const Plan& p) { return p.*member == value; }};
}

Choice forward_prefetch(int64_t depth) {
  return {depth == 0   ? QObject::tr("none")
          : depth == 1 ? QObject::tr("1 unit ahead")
                       : QObject::tr("%1 units ahead").arg(depth),
          [depth](Plan& p) {
            p.forward_prefetch = depth;
            p.forward_prefetch_lists.clear();
          },
          [depth](const Plan& p) {
            return p.forward_prefetch == depth && p.forward_prefetch_lists.empty();
          }};
}

Choice precision(const QString& label, const plan::MixedPrecision& mixed) {
  return value(label, &Plan::mixed_precision, mixed);
}

PlanKnob sharding_knob(const plan::ModuleTree& tree, int64_t world_size) {
  PlanKnob sharding{QObject::tr("Sharding"),
                    QObject::tr("How parameters are distributed over the ranks (full shard frees "
                                "them after forward, shard grad op keeps them in full until "
                                "backward, kept over half keeps them sharded over half of the "
                                "ranks, no shard gives each rank a replica)"),
                    {strategy(QObject::tr("full shard"), "full_shard", tree),
                     strategy(QObject::tr("shard grad op"), "shard_grad_op", tree),
                     strategy(QObject::tr("no shard"), "no_shard", tree)}};
  if (world_size >= 4 && world_size % 2 == 0) {
    sharding.choices.push_back(strategy(QObject::tr("hybrid: 2 replicas"), "hybrid_shard", tree));
    const plan::Reshard half{plan::Reshard::Kind::kSubMesh, world_size / 2};
    sharding.choices.push_back({QObject::tr("kept over half"),
                                [half](Plan& p) {
                                  p.mesh.replicate.reset();
                                  p.mesh.shard.reset();
                                  p.reshard_after_forward = half;
                                  for (plan::UnitEntry& entry : p.units) {
                                    entry.reshard_after_forward.reset();
                                  }
                                },
                                [half](const Plan& p) { return p.reshard_after_forward == half; }});
  }
  return sharding;
}

PlanKnob forward_knob() {
  PlanKnob forward{QObject::tr("Prefetch in forward"),
                   QObject::tr("How many units ahead parameters are gathered in forward"),
                   {}};
  for (const int64_t depth : {0, 1, 2, 3, 4}) {
    forward.choices.push_back(forward_prefetch(depth));
  }
  return forward;
}

PlanKnob backward_knob() {
  return {
      QObject::tr("Prefetch in backward"),
      QObject::tr(
          "When the next unit is gathered in backward: before or after the compute of this one"),
      {value(QObject::tr("before compute"), &Plan::backward_prefetch, plan::BackwardPrefetch::kPre),
       {QObject::tr("after compute (FSDP1)"),
        [](Plan& p) {
          p.backward_prefetch = plan::BackwardPrefetch::kPost;
          p.dialect = plan::Dialect::kFsdp1;  // FSDP2 does not support it
        },
        [](const Plan& p) { return p.backward_prefetch == plan::BackwardPrefetch::kPost; }},
       value(QObject::tr("none"), &Plan::backward_prefetch, plan::BackwardPrefetch::kNone)}};
}

PlanKnob precision_knob() {
  return {
      QObject::tr("Precision"),
      QObject::tr("Dtype of gathered parameters and of reduced gradients"),
      {precision(QObject::tr("fp32"), {}),
       precision(QObject::tr("bf16, reduced in fp32"), {DType::kBF16, DType::kF32, {}, {}, {}}),
       precision(QObject::tr("bf16, gradients too"), {DType::kBF16, DType::kBF16, {}, {}, {}})}};
}

PlanKnob order_knob() {
  return {QObject::tr("Order of events"),
          QObject::tr("Whether work is issued in the order of FSDP2 or of FSDP1"),
          {{QObject::tr("FSDP2"),
            [](Plan& p) {
              p.dialect = plan::Dialect::kFsdp2;
              if (p.backward_prefetch == plan::BackwardPrefetch::kPost) {
                p.backward_prefetch = plan::BackwardPrefetch::kPre;
              }
            },
            [](const Plan& p) { return p.dialect == plan::Dialect::kFsdp2; }},
           value(QObject::tr("FSDP1"), &Plan::dialect, plan::Dialect::kFsdp1)}};
}

PlanKnob layout_knob() {
  return {QObject::tr("Layout"),
          QObject::tr("How a unit is sharded: as one flat parameter, or each parameter separately"),
          {value(QObject::tr("one flat parameter"), &Plan::layout, plan::Layout::kFlat),
           value(QObject::tr("each parameter"), &Plan::layout, plan::Layout::kPerParameter)}};
}

}  // namespace

std::vector<PlanKnob> plan_knobs(const plan::ModuleTree& tree, int64_t world_size) {
  return {sharding_knob(tree, world_size),
          units_knob(tree),
          forward_knob(),
          backward_knob(),
          precision_knob(),
          order_knob(),
          layout_knob()};
}

}  // namespace shardlens::gui
