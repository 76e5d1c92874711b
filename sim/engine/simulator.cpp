#include "sim/engine/simulator.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <utility>

#include "core/base/error.h"
#include "core/schedule/collective_of.h"
#include "core/schedule/reads_gradient.h"
#include "core/workload/optimizer_operators.h"
#include "sim/engine/alike.h"
#include "sim/engine/communicators.h"

namespace shardlens::sim {
namespace {

using schedule::Action;
using schedule::BufferKind;
using schedule::Op;
using schedule::PlannedItem;
using schedule::Stream;

struct Inputs {
  const plan::ResolvedPlan& plan;
  const plan::Workload& workload;
  const schedule::PlannedStep& step;
  const StepCosts& costs;
  const SimulationOptions& options;
  bool separate = false;  // reduce-scatters have a communicator of their own
  bool laps = false;      // microbatches are timed
  // Items that are not simulated, none if both are equal; 0: there is no lap before the latter.
  size_t skip_from = 0, skip_to = 0;
  // By mesh::GroupId: lane of the communications of that group, kNoLane if there are none.
  std::vector<uint32_t> group_lanes = {};
  uint32_t lanes = schedule::kStreamCount;  // of each rank
};
constexpr uint32_t kNoLane = 0xffffffffU;

// The host of one rank: goes through the step and issues work until it has to wait.
class Host {
 public:
  Host(const Inputs& inputs,
       Machine& machine,
       uint32_t rank,
       std::vector<uint32_t> communicators,
       std::vector<ItemTimes>& times)
      : in_(inputs),
        order_(inputs.step.order),
        machine_(machine),
        rank_(rank),
        communicators_(std::move(communicators)),
        tickets_(communicators_.size(), 0),
        times_(times),
        operators_(inputs.costs.operators),
        sums_(inputs.costs.sums),
        communications_(inputs.costs.communications),
        computes_(inputs.options.host == HostMode::kCompute),
        stored_(2 * inputs.costs.units.size(),
                plan::zeroes_gradients(inputs.workload.program, inputs.workload.software)),
        communicated_(inputs.workload.communications.size(), kNoMark) {
    if (!inputs.costs.of_ranks.empty()) {
      const RankCosts& own = inputs.costs.of_ranks[rank];
      operators_ = own.operators;
      sums_ = own.sums;
      communications_ = own.communications;
    }
    if (!inputs.options.rank_slowdown.empty() && inputs.options.rank_slowdown[rank] != 1) {
      slow_down(inputs.options.rank_slowdown[rank]);
    }
    machine.set_operators(lane(Stream::kCompute), operators_, sums_);
  }

  [[nodiscard]] bool done() const { return next_ == order_.size(); }
  [[nodiscard]] Mark blocked_by() const { return blocked_; }

  // Until done() or blocked.
  void run() {
    if (blocked_ != kNoMark) {
      clock_ = std::max(clock_, machine_.completed(std::exchange(blocked_, kNoMark)));
      if (waiting_item_ != nullptr) {
        std::exchange(waiting_item_, nullptr)->end = clock_;
      }
    }
    while (!done() && blocked_ == kNoMark) {
      if (next_ == in_.skip_from && in_.skip_to > 0 && !std::exchange(skipped_, true)) {
        machine_.lap(lane(Stream::kCompute), clock_);
        next_ = in_.skip_to;
        continue;
      }
      const PlannedItem& item = order_[next_];
      times_of_item_ = times_.empty() ? nullptr : &times_[next_];
      ++next_;
      switch (item.kind) {
        case PlannedItem::Kind::kOperator:
          computes_ ? compute(item) : issue(item);
          break;
        case PlannedItem::Kind::kAction:
          act(in_.step.actions[item.index].action);
          break;
        case PlannedItem::Kind::kHook:
          raise(in_.step.hooks[item.index]);
          break;
        case PlannedItem::Kind::kCommunication:
          communicate(item.index);
          break;
        case PlannedItem::Kind::kWait:
          wait_for(item.index);
          break;
      }
    }
  }

  [[nodiscard]] Nanoseconds clock() const { return clock_; }
  // For peers, as the costs have it for every rank.
  [[nodiscard]] Nanoseconds waited() const { return waited_; }

 private:
  void slow_down(double factor) {
    slowed_.assign(operators_.begin(), operators_.end());
    for (OperatorCost& cost : slowed_) {
      for (Nanoseconds* time : {&cost.run.alone, &cost.run.beside}) {
        *time = std::llround(static_cast<double>(*time) * factor);
      }
    }
    operators_ = slowed_;
    sums_ = slowed_sums_ = operator_sums(slowed_);
  }

  [[nodiscard]] uint32_t lane(Stream stream) const {
    if (computes_) {
      // The engine's executor on a CPU: copies on the host, one thread per communicator.
      stream = stream == Stream::kReduceScatter && !in_.separate          ? Stream::kAllGather
               : stream == Stream::kCopyIn || stream == Stream::kHostCopy ? Stream::kCompute
                                                                          : stream;
    }
    return machine_.lane(rank_, static_cast<uint32_t>(stream));
  }
  [[nodiscard]] Span* stream_span() const {
    return times_of_item_ == nullptr ? nullptr : &times_of_item_->stream;
  }

  [[nodiscard]] WorkTime on_host(Nanoseconds duration) const {
    return {duration, computes_ && in_.costs.host_slowdown != 1
                          ? std::llround(static_cast<double>(duration) * in_.costs.host_slowdown)
                          : duration};
  }

  // The host is busy with the item for `duration`; on the CPU this is time of the compute lane.
  void spend(Nanoseconds duration) {
    if (computes_) {
      return spend_on_lane(duration);
    }
    if (times_of_item_ != nullptr) {
      times_of_item_->host = {clock_, clock_ + duration};
    }
    clock_ += duration;
  }
  void spend_on_lane(Nanoseconds duration) {
    Span* span = times_of_item_ == nullptr ? nullptr : &times_of_item_->host;
    if (duration > 0) {
      machine_.work(lane(Stream::kCompute), 0, on_host(duration), WorkClass::kOther, span);
    } else if (span != nullptr) {
      machine_.mark(lane(Stream::kCompute), 0, span);
    }
  }

  // Called before work is issued to another lane on the CPU: the host reaches this point only after
  // its own earlier work.
  void reach(uint32_t lane_of_stream) {
    if (computes_ && lane_of_stream != lane(Stream::kCompute)) {
      machine_.wait(lane_of_stream, 0, machine_.mark(lane(Stream::kCompute), 0));
    }
  }

  // Issues the operators of an item, or the operator and those that follow it, ahead of the device.
  void issue(const PlannedItem& first) {
    const Nanoseconds issued = clock_;
    uint32_t end = first.index;
    for (--next_; next_ < order_.size(); ++next_) {
      const PlannedItem& item = order_[next_];
      if (item.kind != PlannedItem::Kind::kOperator || item.index != end) {
        break;
      }
      end += item.count;
      const Nanoseconds spent = sums_[end].issue - sums_[item.index].issue;
      if (!times_.empty()) {
        times_[next_].host = {clock_, clock_ + spent};
      }
      clock_ += spent;
    }
    machine_.operators(lane(Stream::kCompute), issued, first.index, end - first.index,
                       first.count == 1 ? times_of_item_ : nullptr, stream_span());
  }

  void compute(const PlannedItem& item) {
    for (uint32_t i = item.index; i < item.index + item.count; ++i) {
      const OperatorCost& cost = operators_[i];
      spend(cost.issue);
      if (cost.run.alone > 0) {
        machine_.work(lane(Stream::kCompute), clock_, cost.run, WorkClass::kCompute, stream_span());
      }
    }
  }

  void raise(const HookEvent& hook) {
    if (const Nanoseconds own = in_.costs.hooks[static_cast<size_t>(hook.hook)]; own > 0) {
      spend(own);
    }
    if (hook.hook == Hook::kRootPreForward && in_.laps) {
      machine_.lap(lane(Stream::kCompute), clock_);
    }
    if (hook.hook == Hook::kPreBackward && in_.options.waits_for_loss && !loss_read_ &&
        !computes_) {
      loss_read_ = true;
      block(machine_.mark(lane(Stream::kCompute), clock_));
    }
    if (hook.hook == Hook::kBackwardEnd) {
      loss_read_ = false;  // the next microbatch has its own loss
    }
  }

  void block(Mark mark) {
    blocked_ = mark;
    if (times_of_item_ != nullptr) {
      waiting_item_ = &times_of_item_->host;
      waiting_item_->start = waiting_item_->start < 0 ? clock_ : waiting_item_->start;
    }
  }

  void copy(Stream stream, Nanoseconds duration) {
    const uint32_t on = lane(stream);
    reach(on);
    if (duration > 0) {
      machine_.work(on, clock_, on_host(duration), WorkClass::kCopy, stream_span());
    }
  }

  // The optimizer in backward.
  void update(Stream stream, const WorkTime& time) {
    const uint32_t on = lane(stream);
    reach(on);
    if (time.alone > 0) {
      machine_.work(on, clock_, time, WorkClass::kCompute, stream_span());
    }
  }

  void communicate(const Action& action, const CollectiveCost& cost) {
    const uint32_t on = lane(action.stream);
    reach(on);
    collective(on, cost, action.group);
    const auto kind = schedule::collective_of(action.op);
    if (computes_ && kind && in_.costs.blocking[static_cast<size_t>(*kind)]) {
      machine_.wait(lane(Stream::kCompute), clock_, machine_.mark(on, clock_), nullptr,
                    in_.costs.waking);
    }
  }

  // The workload's own communication. Its lane waits for what compute has done so far.
  void communicate(uint32_t index) {
    const plan::Communication& each = in_.workload.communications[index];
    const CommunicationCost& cost = communications_[index];
    const uint32_t compute = lane(Stream::kCompute);
    const uint32_t on = machine_.lane(rank_, in_.group_lanes[each.group]);
    spend(cost.issue);
    machine_.wait(on, clock_, machine_.mark(compute, clock_));
    collective(on, cost.run, each.group);
    communicated_[index] = machine_.mark(on, clock_);
  }

  void wait_for(uint32_t index) {
    spend(communications_[index].before_wait);
    if (const Mark mark = std::exchange(communicated_[index], kNoMark); mark != kNoMark) {
      machine_.wait(lane(Stream::kCompute), clock_, mark, stream_span(), waking());
    }
    if (in_.workload.communications[index].read_by_host && !computes_) {
      block(machine_.mark(lane(Stream::kCompute), clock_));
    }
  }

  // While it waits for peers, NCCL's kernel spins and occupies its SMs; a CPU thread sleeps.
  void collective(uint32_t on, const CollectiveCost& cost, mesh::GroupId group) {
    waited_ += cost.wait.alone;
    if (cost.wait.alone > 0) {
      machine_.work(on, clock_, cost.wait,
                    computes_ ? WorkClass::kPeerWait : WorkClass::kCommunication, stream_span());
    }
    machine_.collective(on, clock_, cost.run, cost.link, communicators_[group], tickets_[group]++,
                        stream_span());
  }

  [[nodiscard]] Nanoseconds waking() const { return computes_ ? in_.costs.waking : 0; }
  [[nodiscard]] bool is_kept(const Action& action) const {
    return action.group == in_.plan.units[action.unit].kept;
  }

  // On a CPU the communication thread starts at once, concurrently with the rest of the call.
  void act(const Action& action) {
    const Nanoseconds own = in_.costs.issue[static_cast<size_t>(action.op)];
    const bool begins = computes_ && schedule::collective_of(action.op);
    spend(begins ? 0 : own);
    perform(action);
    if (begins) {
      spend(own);
    }
  }

  void perform(const Action& action) {
    if (action.op == Op::kAlloc || action.op == Op::kFree || action.op == Op::kUseFull ||
        action.op == Op::kUseShard) {
      return;  // nothing runs
    }
    const UnitCosts& unit = in_.costs.units[action.unit == kNoUnit ? 0 : action.unit];
    if (action.unit != kNoUnit && action.unit >= in_.plan.units.size()) {
      return bucket(action, unit);
    }
    if (schedule::reads_gradient(action)) {
      copy_gradients(unit.flatten, WorkClass::kCopy);
    }
    switch (action.op) {
      case Op::kCopyIn:
      case Op::kCopyOut:
      case Op::kReduceCopyIn:
      case Op::kToDevice:
        return copy(action.stream, copy_time(action, unit, false));
      case Op::kStoreGrad:
      case Op::kToHost: {
        const size_t part = 2 * size_t{action.unit} + (action.grads == Grads::kOthers ? 1 : 0);
        const bool adds = std::exchange(stored_[part], char{1}) != 0;
        return copy(action.stream, copy_time(action, unit, adds));
      }
      case Op::kAllGather:
        return communicate(action, is_kept(action) ? unit.sub_all_gather : unit.all_gather);
      case Op::kReduceScatter:
        return communicate(action, unit.reduction(action.grads).reduce_scatter);
      case Op::kAllReduce:
        return communicate(action, action.buffer.kind == BufferKind::kReduceOutput
                                       ? unit.reduction(action.grads).all_reduce_shard
                                       : unit.reduction(action.grads).all_reduce_full);
      case Op::kStep:
        return update(action.stream, unit.step);
      case Op::kRecord:
        return record(action);
      case Op::kStreamWait:
      case Op::kHostWait:
        return wait(action);
      case Op::kAlloc:
      case Op::kFree:
      case Op::kUseFull:
      case Op::kUseShard:
        return;
    }
  }

  // Copies gradients into the tensor that is reduced, or back from it.
  void copy_gradients(Nanoseconds duration, WorkClass what) {
    if (duration > 0) {
      machine_.work(lane(Stream::kCompute), clock_, on_host(duration), what,
                    times_of_item_ == nullptr ? nullptr : &times_of_item_->copy);
    }
  }

  // An action of the Reducer: it copies gradients into the bucket, and the all-reduce waits for the
  // copy; at the end of backward, compute waits for the all-reduce and copies the gradients back.
  // On CUDA the compute stream waits, not the host. In a trace the copies are ordinary operators.
  void bucket(const Action& action, const UnitCosts& cost) {
    const uint32_t compute = lane(Stream::kCompute), on = lane(Stream::kAllReduce);
    bucket_marks_.resize(in_.step.unit_names.size(), kNoMark);
    Mark& done = bucket_marks_[action.unit];
    switch (action.op) {
      case Op::kAllReduce:
        copy_gradients(cost.reduce_copy_in, WorkClass::kCompute);
        machine_.wait(on, clock_, machine_.mark(compute, clock_));
        collective(on, cost.all_reduce_full, action.group);
        return;
      case Op::kRecord:
        done = machine_.mark(on, clock_, stream_span());
        return;
      case Op::kHostWait:
        if (done != kNoMark) {
          machine_.wait(compute, clock_, std::exchange(done, kNoMark), stream_span(), waking());
          copy_gradients(cost.copy_out, WorkClass::kCompute);
        }
        return;
      default:
        throw RuntimeFault("internal error: unexpected action for a bucket");
    }
  }

  void record(const Action& action) {
    if (action.event >= events_.size()) {
      events_.resize(size_t{action.event} + 1, kNoMark);
    }
    events_[action.event] = machine_.mark(lane(action.stream), clock_, stream_span());
  }

  void wait(const Action& action) {
    // An event of an earlier step is complete: steps do not overlap.
    const Mark mark = action.event < events_.size() ? events_[action.event] : kNoMark;
    if (mark == kNoMark) {
      return;
    }
    if (action.op == Op::kHostWait && !computes_) {
      return block(mark);
    }
    const uint32_t on = action.op == Op::kHostWait ? lane(Stream::kCompute) : lane(action.stream);
    reach(on);
    machine_.wait(on, clock_, mark, stream_span(), on == lane(Stream::kCompute) ? waking() : 0);
  }

  const Inputs& in_;
  std::span<const PlannedItem> order_;
  Machine& machine_;
  uint32_t rank_;
  std::vector<uint32_t> communicators_, tickets_;  // by mesh::GroupId
  std::vector<ItemTimes>& times_;
  std::span<const OperatorCost> operators_;
  std::span<const OperatorSums> sums_;  // of operators_
  std::span<const CommunicationCost> communications_;
  std::vector<OperatorCost> slowed_;  // costs of a slowed rank
  std::vector<OperatorSums> slowed_sums_;
  bool computes_;
  std::vector<char> stored_;  // two for each unit: a part of its shard has a gradient
  std::vector<Mark> communicated_, events_, bucket_marks_;  // the first by communication: its end
  size_t next_ = 0;
  Nanoseconds clock_ = 0, waited_ = 0;
  Mark blocked_ = kNoMark;
  Span* waiting_item_ = nullptr;
  ItemTimes* times_of_item_ = nullptr;
  bool loss_read_ = false, skipped_ = false;
};

void add_laps(const Machine::Lap& from, const Machine::Lap& to, int64_t times, SimulatedStep& out) {
  StepFigures& figures = out.ranks.front().figures;
  out.duration += times * (to.at - from.at);
  for (Nanoseconds StepFigures::*part :
       {&StepFigures::compute, &StepFigures::comm, &StepFigures::overlap,
        &StepFigures::exposed_comm, &StepFigures::exposed_copy, &StepFigures::idle}) {
    figures.*part += times * (to.figures.*part - from.figures.*part);
  }
}

// See [Note: Alike microbatches].
void add_microbatches(const schedule::PlannedStep& step,
                      const Machine& machine,
                      int64_t more,
                      SimulatedStep& out) {
  const std::optional<Nanoseconds> period = period_of(step, out.ranks.front().items);
  const auto& laps = machine.laps();
  out.alike = period && laps.size() == kPlannedMicrobatches && laps[3].at - laps[2].at == *period;
  if (out.alike) {
    add_laps(laps[2], laps[3], more, out);
  }
}

// Gives each group that the workload communicates over a lane. On the CPU a communicator is one
// thread, so those that units use too have their lanes.
void add_lanes(Inputs& inputs) {
  inputs.group_lanes.assign(inputs.plan.groups.size(), kNoLane);
  const bool threads = inputs.options.host == HostMode::kCompute;
  for (const plan::Communication& each : inputs.workload.communications) {
    uint32_t& lane = inputs.group_lanes[each.group];
    if (lane != kNoLane) {
      continue;
    }
    const bool of_units =
        threads && (each.group == plan::kShardGroup || each.group == plan::kReplicateGroup);
    const Stream stream = each.group == plan::kShardGroup ? Stream::kAllGather : Stream::kAllReduce;
    lane = of_units ? static_cast<uint32_t>(stream) : inputs.lanes++;
  }
}

Inputs inputs_of(const PricedStep& step, const SimulationOptions& options) {
  Inputs out{.plan = *step.plan,
             .workload = *step.workload,
             .step = *step.planned,
             .costs = *step.costs,
             .options = options,
             .separate = std::ranges::any_of(step.plan->groups, &mesh::Group::separate),
             .laps = options.more_microbatches > 0,
             .skip_from = options.left_out.from,
             .skip_to = options.left_out.to};
  add_lanes(out);
  return out;
}

// Simulates the first two microbatches and what follows the last one, and adds the others. nullopt:
// these are not known to take as long as the second one. See [Note: Separate microbatches].
std::optional<SimulatedStep> simulate_two(Inputs inputs, const RepeatedMicrobatches& repeated) {
  inputs.laps = true;
  inputs.skip_from = repeated.end;
  inputs.skip_to = repeated.tail;
  Machine machine(1, inputs.lanes, /*shares_cores=*/false);
  const auto groups = add_communicators(machine, inputs.plan, 1);
  SimulatedStep out;
  out.ranks.resize(1);
  for (uint32_t lane = 0; lane < inputs.lanes; ++lane) {
    machine.reserve(lane, repeated.end);
  }
  Host host(inputs, machine, 0, groups[0], out.ranks[0].items);
  host.run();
  if (!host.done()) {
    return std::nullopt;
  }
  machine.run();
  const auto& laps = machine.laps();
  if (laps.size() != 3) {
    return std::nullopt;
  }
  const Machine::Lap &second = laps[1], &tail = laps[2];
  // The next microbatch's lap would be issued after its hook.
  const Nanoseconds issued =
      tail.issue - second.issue + inputs.costs.hooks[static_cast<size_t>(Hook::kRootPreForward)];
  if (!second.separates || !tail.separates || second.issue >= second.at ||
      machine.starved_at() >= second.at || issued > tail.at - second.at ||
      host.clock() > machine.now()) {
    return std::nullopt;
  }
  out.duration = machine.now();
  out.ranks[0].figures = machine.figures(0);
  add_laps(second, tail, repeated.count + inputs.options.more_microbatches, out);
  return out;
}

}  // namespace

SimulatedStep simulate(const PricedStep& step, const SimulationOptions& options) {
  const StepCosts& costs = *step.costs;
  const size_t items = step.planned->order.size();
  const bool alike = options.rank_slowdown.empty() && costs.of_ranks.empty();
  const auto ranks = alike ? 1U : static_cast<uint32_t>(step.plan->world_size);
  SHARDLENS_CHECK(options.rank_slowdown.empty() || options.rank_slowdown.size() == ranks,
                  "one slowdown per rank is expected");
  SHARDLENS_CHECK(costs.of_ranks.empty() || costs.of_ranks.size() == ranks,
                  "one rank's costs per rank are expected");
  SHARDLENS_CHECK(options.more_microbatches == 0 || (alike && options.keep_times),
                  "more_microbatches needs keep_times and identical ranks");
  SHARDLENS_CHECK(costs.operators.size() == step.workload->operators.size() &&
                      costs.sums.size() == costs.operators.size() + 1 &&
                      costs.units.size() == step.planned->unit_names.size() &&
                      costs.communications.size() == step.workload->communications.size(),
                  "the costs are not those of this workload and plan");
  const Inputs inputs = inputs_of(step, options);
  const bool waits = options.host != HostMode::kAhead || options.waits_for_loss;
  const int64_t repeats = options.repeated ? options.repeated->count : 0;
  if (repeats + options.more_microbatches > 0 && options.repeated && alike && !waits) {
    if (std::optional<SimulatedStep> out = simulate_two(inputs, *options.repeated)) {
      return std::move(*out);
    }
  }
  if (options.more_microbatches > 0 && options.repeated && repeats + 2 < kPlannedMicrobatches) {
    return {.ranks = std::vector<SimulatedRank>(1), .alike = false};
  }
  Machine machine(ranks, inputs.lanes, options.host == HostMode::kCompute);
  const auto groups = add_communicators(machine, *step.plan, ranks);
  SimulatedStep out;
  out.ranks.resize(ranks);
  std::vector<Host> hosts;
  hosts.reserve(ranks);
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    out.ranks[rank].items.resize(options.keep_times ? items : 0);
    for (uint32_t lane = 0; lane < inputs.lanes; ++lane) {
      machine.reserve(machine.lane(rank, lane), items);
    }
    hosts.emplace_back(inputs, machine, rank, groups[rank], out.ranks[rank].items);
    hosts.back().run();
  }
  std::vector<Mark> awaited;
  while (!std::all_of(hosts.begin(), hosts.end(), [](const Host& h) { return h.done(); })) {
    awaited.clear();
    for (const Host& host : hosts) {
      if (host.blocked_by() != kNoMark) {
        awaited.push_back(host.blocked_by());
      }
    }
    machine.run_until_any(awaited);
    for (Host& host : hosts) {
      if (host.blocked_by() != kNoMark && machine.completed(host.blocked_by()) >= 0) {
        host.run();
      }
    }
  }
  machine.run();
  out.duration = machine.now();
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    out.duration = std::max(out.duration, hosts[rank].clock());
    out.ranks[rank].figures = machine.figures(rank);
    out.ranks[rank].waited = machine.waited(rank) + hosts[rank].waited();
  }
  for (SimulatedRank& rank : out.ranks) {
    rank.figures.idle += out.duration - machine.now();  // only the host is busy at the end
  }
  if (options.more_microbatches > 0) {
    add_microbatches(*step.planned, machine, options.more_microbatches, out);
  }
  return out;
}

}  // namespace shardlens::sim
