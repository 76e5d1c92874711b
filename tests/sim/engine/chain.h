#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "core/plan/plan.h"
#include "core/plan/resolve.h"
#include "core/schedule/collective_of.h"
#include "core/schedule/planned/planned.h"
#include "core/workload/workload_builder.h"
#include "sim/engine/priced_step.h"
#include "sim/engine/simulator.h"

// A chain of layers, each a unit, under a root without parameters, with given durations: a step for
// which closed forms exist.
namespace shardlens::sim::test {

inline constexpr int64_t kWidth = 8, kWideWidth = 16;

struct Durations {
  Nanoseconds forward = 0, backward = 0;  // of a layer; backward an even number
  Nanoseconds wide_forward = 0;           // of a layer whose input is kWideWidth
  Nanoseconds all_gather = 0, reduce_scatter = 0, all_reduce = 0;
  Nanoseconds per_peer = 0;  // that each further rank of its group adds to a collective
  Nanoseconds copy = 0;
  Nanoseconds optimizer = 0;  // each of its operators on the device
  Nanoseconds link = 0;       // a copy between host and device; 0: as `copy`
  Nanoseconds on_host = 0;    // an optimizer on the host; 0: there is no device
  Nanoseconds peer_wait = 0, waking = 0;
  Nanoseconds issue_operator = 0, issue_action = 0, issue_collective = 0;
  double compute_slowdown = 1, collective_slowdown = 1, host_slowdown = 1;
  // Collectives of several communicators share the links; `latency` is the part of each that does
  // not need them.
  bool shares_links = false;
  Nanoseconds latency = 0;
  bool copy_engines = false;  // all-gathers do not slow compute
  bool blocking = false;      // the host waits for collectives where it issues them
};

class DecreedCosts final : public CostModel {
 public:
  explicit DecreedCosts(const Durations& durations) : d_(durations) {}
  [[nodiscard]] Nanoseconds duration(CollectiveKind kind, int ranks, Bytes bytes) const override {
    return bytes <= 1 ? d_.latency
                      : d_.per_peer * (ranks - 1) +
                            (kind == CollectiveKind::kAllGather       ? d_.all_gather
                             : kind == CollectiveKind::kReduceScatter ? d_.reduce_scatter
                                                                      : d_.all_reduce);
  }
  [[nodiscard]] WorkTime compute(const plan::Operator& op) const override {
    if (op.kind == plan::OperatorKind::kOptimizer) {
      return {d_.optimizer, d_.optimizer};
    }
    if (op.kind != plan::OperatorKind::kGemm) {
      return {};
    }
    const Nanoseconds alone = op.phase == plan::Phase::kBackward ? d_.backward / 2
                              : op.k == kWideWidth               ? d_.wide_forward
                                                                 : d_.forward;
    return {alone, static_cast<Nanoseconds>(static_cast<double>(alone) * d_.compute_slowdown)};
  }
  [[nodiscard]] Nanoseconds peer_wait(CollectiveKind, int /*ranks*/) const override {
    return d_.peer_wait;
  }
  [[nodiscard]] double collective_slowdown() const override { return d_.collective_slowdown; }
  [[nodiscard]] bool shares_links(CollectiveKind /*kind*/) const override {
    return d_.shares_links;
  }
  [[nodiscard]] bool takes_cores(CollectiveKind kind) const override {
    return !d_.copy_engines || kind != CollectiveKind::kAllGather;
  }
  [[nodiscard]] bool blocks(CollectiveKind /*kind*/) const override { return d_.blocking; }
  [[nodiscard]] Nanoseconds waking() const override { return d_.waking; }
  [[nodiscard]] double host_slowdown() const override { return d_.host_slowdown; }
  [[nodiscard]] Nanoseconds copy(Bytes, Bytes) const override { return d_.copy; }
  [[nodiscard]] Nanoseconds host_copy(Bytes) const override {
    return d_.link > 0 ? d_.link : d_.copy;
  }
  [[nodiscard]] bool has_device() const override { return d_.on_host > 0; }
  [[nodiscard]] Nanoseconds on_host(const plan::Operator& op) const override {
    return op.kind == plan::OperatorKind::kOptimizer ? d_.on_host : 0;
  }
  [[nodiscard]] Nanoseconds issue(const plan::Operator& op) const override {
    return op.kind == plan::OperatorKind::kGemm ? d_.issue_operator : 0;
  }
  [[nodiscard]] Nanoseconds issue(schedule::Op op) const override {
    return schedule::collective_of(op) ? d_.issue_collective : d_.issue_action;
  }

 private:
  Durations d_;
};

struct Chain {
  plan::ResolvedPlan plan;
  plan::Workload workload;
  schedule::PlannedStep step;
  int microbatches = 1;

  [[nodiscard]] PricedStep priced(const Durations& durations = {}) const {
    return priced_step(workload, plan, step, DecreedCosts(durations));
  }
  [[nodiscard]] SimulatedStep run(const Durations& durations,
                                  const SimulationOptions& options = {}) const {
    return simulate(priced(durations), options);
  }
  // When the last forward operator with a kernel ended.
  [[nodiscard]] Nanoseconds forward_end(const SimulatedRank& rank) const {
    Nanoseconds end = 0;
    for (size_t i = 0; i < step.order.size(); ++i) {
      if (step.order[i].kind == schedule::PlannedItem::Kind::kOperator &&
          workload.operators[step.order[i].index].phase == plan::Phase::kForward) {
        end = std::max(end, rank.items[i].stream.end);
      }
    }
    return end;
  }
};

struct ChainOptions {
  int layers = 3;
  std::string strategy = "full_shard";
  int64_t ranks = 2;
  bool first_is_wide = false;
  int accumulate = 1;
  bool sync_every_microbatch = true;
  std::function<void(plan::Plan&)> change = {};
  int step = 3;
};

inline Chain make_chain(const ChainOptions& options) {
  plan::ModuleTree tree;
  const auto module = [&tree](const std::string& fqn, const char* type) -> plan::Module& {
    plan::Module& made = tree.modules.emplace_back();
    made.fqn = fqn;
    made.type = type;
    return made;
  };
  module("", "Chain");
  for (int i = 0; i < options.layers; ++i) {
    const auto index = static_cast<uint32_t>(tree.modules.size());
    const std::string fqn = "layers." + std::to_string(i);
    module(fqn, "Linear").parameters = {static_cast<uint32_t>(tree.parameters.size())};
    tree.modules[0].children.push_back(index);
    tree.blocks.push_back(index);
    plan::Parameter& weight = tree.parameters.emplace_back();
    weight.fqn = fqn + ".weight";
    weight.shape = {kWidth, kWidth};
    weight.numel = kWidth * kWidth;
    weight.module = index;
  }
  Chain chain;
  plan::Plan plan = plan::strategy_plan(options.strategy, tree);
  if (options.change) {
    options.change(plan);
  }
  chain.plan = plan::resolve(plan, tree, options.ranks);
  plan::WorkloadBuilder build(chain.plan, 1, 4);
  build.enter("");
  for (int i = 0; i < options.layers; ++i) {
    build.enter("layers." + std::to_string(i));
    build.linear({.in = i == 0 && options.first_is_wide ? kWideWidth : kWidth, .out = kWidth});
    build.leave();
  }
  build.leave();
  build.loss(kWidth);
  build.finish_backward();
  build.optimizer({});
  chain.workload = build.take();
  chain.microbatches = options.accumulate;
  chain.step = schedule::planned_step(chain.workload, chain.plan, options.step, options.accumulate,
                                      options.sync_every_microbatch);
  return chain;
}

}  // namespace shardlens::sim::test
