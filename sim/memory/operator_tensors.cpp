#include "sim/memory/operator_tensors.h"

#include <utility>

namespace shardlens::sim {

using schedule::Stream;

void OperatorTensors::begin(const MemoryInputs& inputs, const MemoryOptions& options, Part part) {
  UnitMemory::begin(inputs, options, part);
  operators_ = inputs.operators;
  if (part != Part::kOthers) {  // operators have no part in others
    add_operators(inputs);
    saved_.assign(operators_.size(), kNone);
    remade_.assign(operators_.size(), kNone);
    users_left_.assign(operators_.size(), 0);
    std::array<Block, kHanded> none{};
    none.fill(kNone);
    handed_.assign(operators_.size(), none);
  }
  input_ = output_ = handed_on_again_ = kNone;
}

void OperatorTensors::end_backward() {
  drop(output_);
  drop(input_);
}

void OperatorTensors::operate(uint32_t index) {
  using Kind = OperatorMemory::Kind;
  const OperatorMemory& op = operators_[index];
  if (op.kind == Kind::kOptimizer) {
    hand_on(index, MemoryCategory::kOptimizer);  // what foreach keeps; updates are in place
    return free_after(op);
  }
  if (op.kind == Kind::kRecompute) {
    return recompute(index);
  }
  drop(handed_on_again_);
  if (op.kind == Kind::kForward && op.makes_gradient) {
    add_gradient(op);
  }
  if (op.kind == Kind::kForward) {
    users_left_[index] = op.forward < 0 ? op.users : 0;
    if (users_left_[index] > 0) {
      saved_[index] = hold(op.saved, Stream::kCompute, MemoryCategory::kActivations, op.unit,
                           What::kSaved, index);
    }
  } else {
    return differentiate(index);
  }
  work(index);
  if (op.in_place) {
    return free_after(op);
  }
  if (op.hands_on) {
    Block before = output_;
    output_ = hold(op.written, Stream::kCompute, MemoryCategory::kActivations, op.unit,
                   What::kHandedOn, index);
    drop(before);
  }
  drop(input_);
  std::swap(input_, output_);
  hand_on(index, MemoryCategory::kActivations);
  free_after(op);
}

// What an operator needs only while it runs.
void OperatorTensors::work(uint32_t index) {
  const OperatorMemory& op = operators_[index];
  Block scratch = hold(op.scratch, Stream::kCompute, MemoryCategory::kActivations, op.unit,
                       What::kHandedOn, index);
  drop(scratch);
}

void OperatorTensors::hand_on(uint32_t index, MemoryCategory category) {
  const OperatorMemory& op = operators_[index];
  for (size_t part = 0; part < kHanded; ++part) {
    if (op.handed[part] > 0) {
      handed_[index][part] =
          hold(op.handed[part], Stream::kCompute, category, op.unit, What::kHandedOn, index);
    }
  }
}

void OperatorTensors::free_after(const OperatorMemory& op) {
  for (uint32_t i = 0; i < op.end_count; ++i) {
    drop(handed_[op.ends[i].op][op.ends[i].part]);
  }
}

void OperatorTensors::differentiate(uint32_t index) {
  const OperatorMemory& op = operators_[index];
  if (op.makes_gradient) {
    add_gradient(op);
  }
  work(index);
  hand_on(index, MemoryCategory::kActivations);
  if (op.forward >= 0) {
    const auto forward = static_cast<size_t>(op.forward);
    if (--users_left_[forward] == 0) {
      drop(saved_[forward]);
      drop(remade_[forward]);
    }
  }
  drop(input_);  // forward's last output
  free_after(op);
}

// When an operator runs again, at most its checkpoint's input has been kept; the rest of what it
// saves is allocated again. The incoming gradient stays allocated in the meantime.
void OperatorTensors::recompute(uint32_t index) {
  const OperatorMemory& op = operators_[index];
  const auto forward = static_cast<size_t>(op.forward);
  remade_[forward] = hold(op.saved, Stream::kCompute, MemoryCategory::kActivations, op.unit,
                          What::kSavedAgain, index);
  free_after(op);
  work(index);
  hand_on(index, MemoryCategory::kActivations);
  if (op.in_place) {
    return;
  }
  Block before = handed_on_again_;
  handed_on_again_ = op.hands_on ? hold(op.written, Stream::kCompute, MemoryCategory::kActivations,
                                        op.unit, What::kHandedOn, index)
                                 : kNone;
  drop(before);
}

}  // namespace shardlens::sim
