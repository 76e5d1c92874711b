#include "sim/search/step_bound.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <unordered_map>

#include "core/workload/optimizer_operators.h"
#include "sim/search/kept_bytes.h"

namespace shardlens::sim {
namespace {

// Least additional time of blocks or units that free `deficit` bytes; nullopt: all of them free
// less.
std::optional<Nanoseconds> cheapest(const std::vector<Nanoseconds>& again,
                                    const std::vector<Bytes>& freed,
                                    Bytes deficit) {
  if (deficit <= 0) {
    return 0;
  }
  if (again.empty()) {
    return std::nullopt;
  }
  std::vector<size_t> order(again.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto price = [&](size_t i) {
    return freed[i] <= 0 ? HUGE_VAL : static_cast<double>(again[i]) / static_cast<double>(freed[i]);
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return price(a) < price(b); });
  // The last block may free nothing, as it is needed first.
  const bool equal =
      std::adjacent_find(again.begin(), again.end(), std::not_equal_to<>()) == again.end() &&
      std::adjacent_find(freed.begin(), freed.end() - 1, std::not_equal_to<>()) ==
          freed.end() - 1 &&
      freed.back() <= freed.front();
  Nanoseconds out = 0;
  for (const size_t i : order) {
    if (freed[i] <= 0) {
      break;
    }
    if (freed[i] >= deficit) {
      const double part = static_cast<double>(deficit) / static_cast<double>(freed[i]);
      return out +
             (equal ? again[i] : static_cast<Nanoseconds>(static_cast<double>(again[i]) * part));
    }
    out += again[i];
    deficit -= freed[i];
  }
  return std::nullopt;
}

int number_of(const plan::CheckpointSaves& saves) {
  return 2 * static_cast<int>(saves.products) + (saves.attention ? 1 : 0);
}

}  // namespace

std::vector<int> StepBounds::blocks_of_operators(const plan::Workload& workload) const {
  const plan::ModuleTree& tree = evaluator_.scenario().model->tree();
  std::unordered_map<std::string, int> blocks;
  for (size_t i = 0; i < tree.blocks.size(); ++i) {
    const std::string& fqn = tree.modules[tree.blocks[i]].fqn;
    for (size_t m = tree.blocks[i];
         m < tree.modules.size() &&
         (m == tree.blocks[i] || tree.modules[m].fqn.starts_with(fqn + "."));
         ++m) {
      blocks.emplace(tree.modules[m].fqn, static_cast<int>(i));
    }
  }
  std::vector<int> out;
  out.reserve(workload.operators.size());
  for (const plan::Operator& op : workload.operators) {
    const auto found = blocks.find(op.module);
    out.push_back(found == blocks.end() ? -1 : found->second);
  }
  return out;
}

const StepBounds::Model& StepBounds::model(const Candidate& frame) {
  const auto [it, fresh] = models_.try_emplace({frame.precision, frame.batch});
  if (fresh) {
    const size_t blocks = evaluator_.scenario().model->tree().blocks.size();
    const Evaluator::Operators of =
        evaluator_.operators(with_blocks(frame, uniform_choices(frame, blocks, false)));
    for (size_t i = 0; i < of.workload.operators.size(); ++i) {
      const plan::Operator& op = of.workload.operators[i];
      if (op.phase != plan::Phase::kOptimizer) {
        it->second.compute += of.costs.operators[i].run.alone;
      }
      if (of.memory[i].kind == OperatorMemory::Kind::kForward && of.memory[i].users > 0) {
        it->second.saved += of.memory[i].saved;
      }
    }
  }
  return it->second;
}

const StepBounds::Recomputed& StepBounds::recomputed(const Candidate& frame) {
  const auto [it, fresh] =
      recomputed_.try_emplace({frame.precision, frame.batch, number_of(frame.saves)});
  Recomputed& out = it->second;
  if (!fresh) {
    return out;
  }
  const size_t blocks = evaluator_.scenario().model->tree().blocks.size();
  out.again.assign(blocks, 0);
  out.freed.assign(blocks, 0);
  Bytes remade = 0;  // of the last block
  BlockChoices choices = uniform_choices(frame, blocks, false);
  for (const bool checkpointed : {false, true}) {
    for (BlockChoice& each : choices) {
      each.checkpointed = checkpointed;
    }
    const Evaluator::Operators of = evaluator_.operators(with_blocks(frame, choices));
    const std::vector<int> block_of = blocks_of_operators(of.workload);
    for (size_t i = 0; i < block_of.size(); ++i) {
      if (block_of[i] < 0) {
        continue;
      }
      const auto block = static_cast<size_t>(block_of[i]);
      const OperatorMemory& memory = of.memory[i];
      if (memory.kind == OperatorMemory::Kind::kRecompute) {
        out.again[block] += of.costs.operators[i].run.alone;
        remade += block + 1 == blocks ? memory.saved : 0;
      } else if (memory.kind == OperatorMemory::Kind::kForward && memory.users > 0) {
        out.freed[block] += checkpointed ? -memory.saved : memory.saved;
      }
    }
  }
  out.freed.back() = std::max<Bytes>(0, out.freed.back() - remade);
  return out;
}

const StepBounds::Sharded& StepBounds::sharded(const Candidate& frame) {
  const auto [it, fresh] = sharded_.try_emplace(
      {frame.precision, frame.shard, frame.blocks_per_unit, frame.outer_units});
  Sharded& out = it->second;
  if (!fresh) {
    return out;
  }
  const Scenario& scenario = evaluator_.scenario();
  const size_t blocks = scenario.model->tree().blocks.size();
  const Evaluator::Operators of =
      evaluator_.operators(with_blocks(frame, uniform_choices(frame, blocks, false)));
  const KeptBytes kept = kept_bytes(of.plan, of.sizes, scenario.step.optimizer_states());
  out.state = kept.states;
  out.gradients = kept.gradients;
  for (const UnitCosts& costs : of.costs.units) {
    out.gathers += of.plan.shards() > 1 ? costs.all_gather.run.alone : 0;
    out.reductions += of.plan.shards() > 1 ? costs.reduce_scatter.run.alone : 0;
    out.all_reductions += of.plan.replicas() > 1
                              ? (of.plan.shards() > 1 ? costs.all_reduce_shard.run.alone
                                                      : costs.all_reduce_full.run.alone)
                              : 0;
  }
  const uint32_t last = scenario.model->tree().blocks.back();
  for (UnitId id = 0; of.plan.shards() > 1 && id < of.sizes.size(); ++id) {
    const std::vector<uint32_t>& modules = of.plan.units[id].modules;
    const bool gathered = id == 0
                              ? !of.plan.units[id].parameters.empty()
                              : std::find(modules.begin(), modules.end(), last) != modules.end();
    out.gathered += gathered ? of.sizes[id].unsharded : 0;
    if (!gathered && of.sizes[id].unsharded > 0) {
      out.gather.push_back(of.costs.units[id].all_gather.run.alone);
      out.unsharded.push_back(of.sizes[id].unsharded);
    }
  }
  for (const plan::Operator& op : plan::optimizer_operators(of.plan, of.sizes, scenario.step)) {
    out.optimizer +=
        operator_cost(op, share_on_host(of.plan, of.sizes), *evaluator_.target().costs).run.alone;
  }
  return out;
}

std::optional<Nanoseconds> StepBounds::of_work(const Candidate& frame) {
  const Target& target = evaluator_.target();
  const Sharded& units = sharded(frame);
  const Model& step = model(frame);
  const Recomputed& blocks = recomputed(frame);
  Nanoseconds again = 0, gathered_again = 0;
  if (target.memory > 0) {
    const Bytes held =
        units.state + units.gathered + (frame.accumulate > 1 ? units.gradients : 0) + step.saved;
    const auto least = cheapest(blocks.again, blocks.freed, held - target.memory);
    const Bytes kept = std::accumulate(units.unsharded.begin(), units.unsharded.end(), Bytes{0});
    const Bytes freed = std::accumulate(blocks.freed.begin(), blocks.freed.end(), Bytes{0});
    const auto regathers =
        cheapest(units.gather, units.unsharded, held - freed + kept - target.memory);
    if (!least || !regathers) {
      return std::nullopt;
    }
    again = *least;
    gathered_again = *regathers;
  }
  const int64_t reductions =
      evaluator_.scenario().step.sync_every_microbatch ? frame.accumulate : 1;
  const Nanoseconds compute = frame.accumulate * (step.compute + again);
  const Nanoseconds gathers = frame.accumulate * (units.gathers + gathered_again);
  const Nanoseconds reduced = reductions * units.reductions;
  const Nanoseconds sharding = evaluator_.scenario().plan.separate_reduce_scatter_group
                                   ? std::max(gathers, reduced)
                                   : gathers + reduced;
  const Nanoseconds norm = frame.shard > 1 ? target.norm_communication : 0;
  return target.outside + norm + target.outside_communication + units.optimizer +
         std::max({compute, sharding, reductions * units.all_reductions});
}

Nanoseconds StepBounds::of_lists(const Candidate& frame) {
  Candidate first = frame;
  first.forward_prefetch = 0;
  first.root_prefetch.forward = std::numeric_limits<int16_t>::max();
  return gathers(frame) ? step(first).duration : of_step(frame);
}

const StepBounds::Step& StepBounds::step(const Candidate& frame) {
  const auto [it, fresh] =
      steps_.try_emplace({frame.precision, frame.batch, frame.shard, frame.forward_prefetch,
                          frame.root_prefetch.forward, frame.blocks_per_unit, frame.outer_units});
  if (fresh) {
    const size_t blocks = evaluator_.scenario().model->tree().blocks.size();
    const Outcome now =
        evaluator_.evaluate_unlimited(with_blocks(frame, uniform_choices(frame, blocks, true)));
    it->second = {now.figures.duration(), now.peak_reserved};
  }
  return it->second;
}

Nanoseconds StepBounds::of_compute(const Candidate& frame, size_t checkpointed) {
  std::vector<Nanoseconds> again = recomputed(frame).again;
  std::sort(again.begin(), again.end());
  again.resize(std::min(checkpointed, again.size()));
  const Nanoseconds least = std::accumulate(again.begin(), again.end(), Nanoseconds{0});
  return evaluator_.target().outside + sharded(frame).optimizer +
         frame.accumulate * (model(frame).compute + least);
}

Nanoseconds StepBounds::spared(const Candidate& frame, Bytes left) {
  const Recomputed& blocks = recomputed(frame);
  const Nanoseconds all = std::accumulate(blocks.again.begin(), blocks.again.end(), Nanoseconds{0});
  const Bytes freed = std::accumulate(blocks.freed.begin(), blocks.freed.end(), Bytes{0});
  return frame.accumulate *
         (all - cheapest(blocks.again, blocks.freed, freed - left).value_or(all));
}

}  // namespace shardlens::sim
