#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/memory/operator_memory.h"
#include "sim/memory/unit_memory.h"

namespace shardlens::sim {

// The tensors of operators through a replay: what they save, hand on, and need while they run.
class OperatorTensors : protected UnitMemory {
 protected:
  void begin(const MemoryInputs& inputs, const MemoryOptions& options, Part part);
  void operate(uint32_t index);  // of the workload's operators and communications
  void end_backward();

 private:
  void work(uint32_t index);
  void hand_on(uint32_t index, MemoryCategory category);
  void free_after(const OperatorMemory& op);
  void differentiate(uint32_t index);
  void recompute(uint32_t index);

  std::span<const OperatorMemory> operators_;
  std::vector<Block> saved_, remade_;               // by forward operator
  std::vector<std::array<Block, kHanded>> handed_;  // by backward operator
  std::vector<int32_t> users_left_;
  // Tensors between operators: the current input and output, and the output of a recomputed one.
  Block input_ = kNone, output_ = kNone, handed_on_again_ = kNone;
};

}  // namespace shardlens::sim
