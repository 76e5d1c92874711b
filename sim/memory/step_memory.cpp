#include "sim/memory/step_memory.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "core/plan/unit_sizes.h"
#include "core/schedule/microbatches.h"
#include "sim/memory/caching_allocator.h"

namespace shardlens::sim {
namespace {

using schedule::Action;
using schedule::BufferKind;
using schedule::Op;
using schedule::PlannedItem;
using schedule::Stream;
using Block = CachingAllocator::Block;

constexpr uint32_t kNoHolder = 0xffffffffU;

class Replay {
 public:
  Replay(const plan::Workload& workload,
         const plan::ResolvedPlan& plan,
         const schedule::PlannedStep& step,
         const MemoryOptions& options)
      : workload_(workload),
        plan_(plan),
        step_(step),
        options_(options),
        allocator_(options.capacity),
        units_(plan.units.size()),
        saved_(workload.operators.size(), kNoHolder),
        remade_(workload.operators.size(), kNoHolder),
        users_left_(workload.operators.size(), 0) {
    const std::vector<plan::UnitSize> sizes = plan::unit_sizes(plan);
    for (UnitId id = 0; id < units_.size(); ++id) {
      units_[id].full = sizes[id].full;
      units_[id].shard = sizes[id].shard;
      units_[id].reduced = sizes[id].reduced;
      units_[id].reduced_shard = sizes[id].reduced_shard;
      units_[id].stepped = sizes[id].stepped;
    }
  }

  // `stop_at`: the allocation after which to stop and list what is alive; -1: none.
  StepMemory run(int64_t stop_at = -1) {
    stop_at_ = stop_at;
    hold_state();
    const std::vector<size_t> begins = schedule::microbatches(step_);
    for (size_t at = 0, microbatch = 0; at < step_.order.size(); ++at) {
      if (failed_ || stopped_) {
        break;
      }
      if (begins.size() > 2 && microbatch < begins.size() && at == begins[microbatch]) {
        at = pass_over(begins, microbatch);
        if (at == step_.order.size()) {
          break;
        }
      }
      const PlannedItem& item = step_.order[at];
      if (item.kind == PlannedItem::Kind::kAction) {
        act(step_.actions[item.index].action);
      } else if (item.kind == PlannedItem::Kind::kOperator) {
        operate(item.index);
      } else if (step_.hooks[item.index].hook == Hook::kBackwardEnd) {
        drop(output_);
        drop(input_);
      }
    }
    if (stopped_) {
      list_alive();
    }
    out_.fits = !failed_;
    return std::move(out_);
  }

  [[nodiscard]] int64_t peak_at() const { return peak_at_; }

 private:
  // Addresses and sizes of all that is used and of all that is free.
  struct Snapshot {
    std::vector<std::array<Bytes, 2>> used, free;
    Bytes reserved = 0;
    friend bool operator==(const Snapshot&, const Snapshot&) = default;
  };

  [[nodiscard]] Snapshot snapshot() const {
    Snapshot now;
    for (const Holder& holder : holders_) {
      if (holder.alive) {
        now.used.push_back({allocator_.address(holder.block), allocator_.size(holder.block)});
      }
    }
    std::sort(now.used.begin(), now.used.end());
    now.free = allocator_.free_blocks();
    now.reserved = allocator_.reserved();
    return now;
  }

  // Of what follows the last microbatch's backward.
  [[nodiscard]] bool allocates(size_t at) const {
    const PlannedItem& item = step_.order[at];
    if (item.kind != PlannedItem::Kind::kAction) {
      return false;
    }
    const Op op = step_.actions[item.index].action.op;
    return op == Op::kAlloc || op == Op::kFree || op == Op::kStoreGrad;
  }

  // See [Note: Microbatches]. `microbatch` begins here; where replay goes on, and in `microbatch`
  // the one that begins next.
  size_t pass_over(const std::vector<size_t>& begins, size_t& microbatch) {
    const auto end_of = [&](size_t each) {
      return each + 1 < begins.size() ? begins[each + 1] : step_.order.size();
    };
    Snapshot now = snapshot();
    const bool unchanged = microbatch > 1 && now == before_;
    if (options_.more_microbatches && microbatch > 1) {
      out_.alike = unchanged || (microbatch > 2 && out_.alike);
    }
    before_ = std::move(now);
    while (unchanged && microbatch < begins.size()) {
      const size_t begin = begins[microbatch], length = begin - begins[microbatch - 1];
      bool same = true;
      for (size_t i = begin; i < end_of(microbatch) && same; ++i) {
        same = i - begin < length ? schedule::same_item(step_, i, i - length) : !allocates(i);
      }
      if (!same) {
        break;
      }
      ++microbatch;
    }
    return microbatch < begins.size() ? begins[microbatch++] : step_.order.size();
  }

  // One allocation that lives.
  struct Holder {
    Block block = 0;
    MemoryCategory category = MemoryCategory::kParameters;
    UnitId unit = kNoUnit;
    const char* what = "";
    const plan::Operator* op = nullptr;  // that saved it
    bool alive = false;
  };
  struct Unit {
    int64_t full = 0, shard = 0;
    int64_t reduced = 0, reduced_shard = 0, stepped = 0;  // as plan::UnitSize
    uint32_t gradient = kNoHolder;                        // of the shard
    uint32_t unsharded_gradient = kNoHolder;              // made by autograd
    std::array<uint32_t, schedule::kBufferKindCount> buffers = filled();
    static std::array<uint32_t, schedule::kBufferKindCount> filled() {
      std::array<uint32_t, schedule::kBufferKindCount> none{};
      none.fill(kNoHolder);
      return none;
    }
  };

  uint32_t hold(Bytes bytes,
                Stream stream,
                MemoryCategory category,
                UnitId unit,
                const char* what,
                const plan::Operator* op = nullptr) {
    if (bytes == 0 || failed_ || stopped_) {
      return kNoHolder;
    }
    const auto block = allocator_.allocate(bytes, static_cast<uint32_t>(stream));
    if (!block) {
      failed_ = true;
      return kNoHolder;
    }
    uint32_t id = static_cast<uint32_t>(holders_.size());
    if (free_holders_.empty()) {
      holders_.emplace_back();
    } else {
      id = free_holders_.back();
      free_holders_.pop_back();
    }
    ++allocations_;
    holders_[id] = {*block, category, unit, what, op, true};
    by_category_[static_cast<size_t>(category)] += allocator_.size(*block);
    out_.peak_reserved = std::max(out_.peak_reserved, allocator_.reserved());
    if (allocator_.allocated() > out_.peak_allocated) {
      out_.peak_allocated = allocator_.allocated();
      out_.at_peak = by_category_;
      peak_at_ = allocations_;
    }
    stopped_ = allocations_ == stop_at_;
    return id;
  }

  void drop(uint32_t& id) {
    if (id == kNoHolder || stopped_) {
      return;
    }
    Holder& holder = holders_[id];
    by_category_[static_cast<size_t>(holder.category)] -= allocator_.size(holder.block);
    allocator_.free(holder.block);
    holder.alive = false;
    free_holders_.push_back(id);
    id = kNoHolder;
  }

  void list_alive() {
    std::map<std::tuple<MemoryCategory, UnitId, std::string>, AliveAtPeak> rows;
    for (const Holder& holder : holders_) {
      if (!holder.alive) {
        continue;
      }
      const std::string what =
          holder.op == nullptr ? holder.what : std::string(holder.what) + " by " + holder.op->name;
      AliveAtPeak& row = rows[{holder.category, holder.unit, what}];
      row.category = holder.category;
      row.unit = holder.unit;
      row.what = what;
      row.bytes += allocator_.size(holder.block);
      ++row.count;
    }
    for (auto& [key, row] : rows) {
      out_.alive.push_back(std::move(row));
    }
    std::stable_sort(out_.alive.begin(), out_.alive.end(),
                     [](const AliveAtPeak& x, const AliveAtPeak& y) { return x.bytes > y.bytes; });
  }

  void hold_state() {
    const Bytes master = size_of(DType::kF32);
    for (UnitId id = 0; id < units_.size(); ++id) {
      hold(units_[id].shard * master, Stream::kCompute, MemoryCategory::kParameters, id, "shard");
      for (int64_t i = 0; i < options_.optimizer_states; ++i) {
        hold(units_[id].stepped * master, Stream::kCompute, MemoryCategory::kOptimizer, id,
             "optimizer state");
      }
    }
    for (const schedule::PlannedBucket& bucket : step_.buckets) {
      hold(bucket.bytes, Stream::kCompute, MemoryCategory::kCommunication, kNoUnit, "bucket");
    }
    for (const uint32_t parameter : plan_.ignored_parameters) {
      hold(plan_.tree.parameters[parameter].numel * master, Stream::kCompute,
           MemoryCategory::kParameters, kNoUnit, "ignored parameter");
    }
  }

  void operate(uint32_t index) {
    const plan::Operator& op = workload_.operators[index];
    if (op.phase == plan::Phase::kOptimizer) {
      return;  // updates in place
    }
    if (op.phase == plan::Phase::kRecompute) {
      return recompute(op);
    }
    drop(handed_on_again_);
    if (op.phase != plan::Phase::kBackward) {
      users_left_[index] = op.forward < 0 ? users_of(index) : 0;
      if (users_left_[index] > 0) {
        saved_[index] =
            hold(op.saved, Stream::kCompute, MemoryCategory::kActivations, op.unit, "saved", &op);
      }
    } else if (op.kind != plan::OperatorKind::kLoss && has_gradients(plan_.units[op.unit])) {
      uint32_t& gradient = units_[op.unit].unsharded_gradient;
      if (gradient == kNoHolder) {
        gradient =
            hold(units_[op.unit].reduced * size_of(plan_.param_dtype(op.unit)), Stream::kCompute,
                 MemoryCategory::kGradients, op.unit, "unsharded gradient");
      }
    }
    if (!keeps_its_output(op) && !writes_parameter_gradient(op)) {
      uint32_t before = output_;
      output_ = hold(op.written, Stream::kCompute, MemoryCategory::kActivations, op.unit,
                     "handed on", &op);
      drop(before);
    }
    if (op.forward < 0) {
      drop(input_);
      std::swap(input_, output_);
      return;
    }
    const auto forward = static_cast<size_t>(op.forward);
    if (--users_left_[forward] <= 0) {
      drop(saved_[forward]);
      drop(remade_[forward]);
      drop(input_);
      std::swap(input_, output_);
    }
  }

  // Of its own: not views of a bucket.
  [[nodiscard]] static bool has_gradients(const plan::Unit& unit) {
    return !unit.parameters.empty() &&
           !(unit.api == plan::Api::kReplicate && unit.gradient_as_bucket_view);
  }

  // Its checkpoint kept its input, if anything; the rest of what it saves is made again. The
  // gradient that has arrived waits meanwhile.
  void recompute(const plan::Operator& op) {
    const auto forward = static_cast<size_t>(op.forward);
    const Bytes kept = saved_[forward] == kNoHolder ? 0 : workload_.operators[forward].saved;
    remade_[forward] = hold(std::max<Bytes>(0, op.saved - kept), Stream::kCompute,
                            MemoryCategory::kActivations, op.unit, "saved again", &op);
    uint32_t before = handed_on_again_;
    handed_on_again_ = keeps_its_output(op)
                           ? kNoHolder
                           : hold(op.written, Stream::kCompute, MemoryCategory::kActivations,
                                  op.unit, "handed on", &op);
    drop(before);
  }

  // What it writes is among what it saves.
  [[nodiscard]] static bool keeps_its_output(const plan::Operator& op) {
    return op.phase != plan::Phase::kBackward &&
           (op.kind == plan::OperatorKind::kAttention || op.kind == plan::OperatorKind::kLoss);
  }

  // Of a product x·W: the gradient of W has its shape and sums over the rows of x. It lies in the
  // unit's gradient.
  [[nodiscard]] bool writes_parameter_gradient(const plan::Operator& op) const {
    if (op.phase != plan::Phase::kBackward || op.kind != plan::OperatorKind::kGemm ||
        op.forward < 0) {
      return false;
    }
    const plan::Operator& product = workload_.operators[static_cast<size_t>(op.forward)];
    return op.k == product.m && op.m * op.n == product.n * product.k;
  }

  // Operators that differentiate operator `index`.
  int32_t users_of(uint32_t index) {
    if (users_.empty()) {
      users_.assign(workload_.operators.size(), 0);
      for (const plan::Operator& op : workload_.operators) {
        if (op.phase == plan::Phase::kBackward && op.forward >= 0) {
          ++users_[static_cast<size_t>(op.forward)];
        }
      }
    }
    return users_[index];
  }

  void act(const Action& action) {
    switch (action.op) {
      case Op::kAlloc:
        return allocate(action);
      case Op::kFree:
        return release(action);
      case Op::kStoreGrad:
        return store(action);
      default:
        return;
    }
  }

  void allocate(const Action& action) {
    const UnitId id = action.buffer.unit;
    Unit& unit = units_[id];
    const Bytes param = size_of(plan_.param_dtype(id)), reduce = size_of(plan_.reduce_dtype(id));
    uint32_t& slot = unit.buffers[static_cast<size_t>(action.buffer.kind)];
    drop(slot);
    const auto take = [&](Bytes bytes, MemoryCategory category, const char* what) {
      slot = hold(bytes, action.stream, category, id, what);
    };
    switch (action.buffer.kind) {
      case BufferKind::kUnsharded:
        return take(unit.full * param, MemoryCategory::kUnsharded, "unsharded parameters");
      case BufferKind::kGathered:
        return take(unit.full * param, MemoryCategory::kCommunication, "all-gather output");
      case BufferKind::kSubShard:
        return take(unit.full / plan_.units[id].reshard_after_forward.ranks * param,
                    MemoryCategory::kUnsharded, "shard of the smaller mesh");
      case BufferKind::kReduceInput:
        return take(unit.reduced * reduce, MemoryCategory::kCommunication, "reduction's input");
      case BufferKind::kReduceOutput:
        return take(unit.reduced_shard * reduce, MemoryCategory::kCommunication,
                    "reduction's output");
      case BufferKind::kUnshardedGrad:
      case BufferKind::kNone:
        return;
    }
  }

  void release(const Action& action) {
    Unit& unit = units_[action.buffer.unit];
    drop(action.buffer.kind == BufferKind::kUnshardedGrad
             ? unit.unsharded_gradient
             : unit.buffers[static_cast<size_t>(action.buffer.kind)]);
  }

  void store(const Action& action) {
    Unit& unit = units_[action.unit];
    if (unit.gradient != kNoHolder) {
      return;  // added to
    }
    uint32_t& source = action.buffer.kind == BufferKind::kUnshardedGrad
                           ? unit.unsharded_gradient
                           : unit.buffers[static_cast<size_t>(action.buffer.kind)];
    const bool cast = plan_.reduce_dtype(action.unit) != DType::kF32;
    if (cast || source == kNoHolder) {
      unit.gradient = hold(unit.reduced_shard * size_of(DType::kF32), action.stream,
                           MemoryCategory::kGradients, action.unit, "gradient of the shard");
      return;
    }
    // Becomes the gradient: only its name changes.
    Holder& holder = holders_[source];
    const Bytes size = allocator_.size(holder.block);
    by_category_[static_cast<size_t>(holder.category)] -= size;
    holder.category = MemoryCategory::kGradients;
    holder.what = "gradient of the shard";
    by_category_[static_cast<size_t>(holder.category)] += size;
    unit.gradient = source;
    source = kNoHolder;
  }

  const plan::Workload& workload_;
  const plan::ResolvedPlan& plan_;
  const schedule::PlannedStep& step_;
  const MemoryOptions& options_;
  CachingAllocator allocator_;
  std::vector<Unit> units_;
  std::vector<uint32_t> saved_, remade_;  // of forward operators
  std::vector<int32_t> users_left_, users_;
  // What operators hand on: to those that run now, and from them.
  uint32_t input_ = kNoHolder, output_ = kNoHolder, handed_on_again_ = kNoHolder;
  std::vector<Holder> holders_;
  std::vector<uint32_t> free_holders_;
  std::array<Bytes, kMemoryCategoryCount> by_category_{};
  int64_t allocations_ = 0, peak_at_ = 0, stop_at_ = -1;
  bool failed_ = false, stopped_ = false;
  Snapshot before_;  // at the begin of the microbatch before
  StepMemory out_;
};

}  // namespace

std::string_view name_of(MemoryCategory category) {
  constexpr std::string_view kNames[] = {"parameters",  "gradients", "optimizer",
                                         "activations", "unsharded", "communication"};
  return kNames[static_cast<size_t>(category)];
}

StepMemory step_memory(const plan::Workload& workload,
                       const plan::ResolvedPlan& plan,
                       const schedule::PlannedStep& step,
                       const MemoryOptions& options) {
  Replay replay(workload, plan, step, options);
  StepMemory memory = replay.run();
  if (options.list_alive) {
    // Once more until the peak: what lives is not written down all along.
    memory.alive = Replay(workload, plan, step, options).run(replay.peak_at()).alive;
  }
  return memory;
}

}  // namespace shardlens::sim
