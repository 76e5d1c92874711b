#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <torch/optim/sgd.h>

#include "core/dist/world.h"
#include "core/fsdp/apply/fully_shard.h"
#include "tests/core/fsdp/maze.h"
#include "tests/core/fsdp/place.h"
#include "tests/core/fsdp/random_program.h"

namespace shardlens::test {

// As in the module tree: a parameter with two names once.
Tensors parameters_of(const Maze& model);
// The program's frozen parameters that the model has, without those of the last Linear.
uint64_t frozen_of(const RandomProgram& program);
// The program's model, in one process or before it is sharded.
Maze maze_of(const RandomProgram& program, at::ScalarType dtype);
// Runs an event on a model. `before`: called before each forward that a backward follows.
void run_event(const RandomProgram::Event& event,
               Maze& model,
               Tensors& parameters,
               int rank,
               double weight,
               const std::function<void()>& before);

struct Optimizers {
  Optimizers(const Tensors& parameters, uint64_t second_mask)
      : first(pick(parameters, second_mask, false), torch::optim::SGDOptions(0.1)),
        second(pick(parameters, second_mask, true), torch::optim::SGDOptions(0.05)) {}
  static Tensors pick(const Tensors& parameters, uint64_t mask, bool of_second) {
    Tensors picked;
    for (size_t i = 0; i < parameters.size(); ++i) {
      if ((mask >> i & 1) == static_cast<uint64_t>(of_second)) {
        picked.push_back(parameters[i]);
      }
    }
    return picked;
  }
  void step(const RandomProgram::Step& of) {
    if (of.first) {
      first.step();
      first.zero_grad();
    }
    if (of.second) {
      second.step();
      second.zero_grad();
    }
  }
  torch::optim::SGD first, second;
};

// Trains the sharded model in the world's place. `end_of_step` is called before the optimizers, and
// clips.
using EndOfStep =
    std::function<void(size_t step, fsdp::ShardedModel& sharded, const Tensors& parameters)>;
void train_sharded(const RandomProgram& program,
                   dist::World& world,
                   const Place& place,
                   const EndOfStep& end_of_step);

// Runs the program as one rank of an emulated world in `place` and on the CPU, and compares
// gradients, norms and parameters of each step. `share`: of the norm of those of the CPU, which
// they may differ by. Errors: Mismatch.
void compare_with_cpu(const RandomProgram& program, const Place& place, double share);

// FIRST:COUNT.
struct ProgramRange {
  uint64_t first = 0, count = 0;
  static std::optional<ProgramRange> parse(const char* text);
};

}  // namespace shardlens::test
