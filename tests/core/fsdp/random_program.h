#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/core/fsdp/maze.h"

namespace shardlens::test {

// A training program made from a number: a model, a plan and what is done in each step.
struct RandomProgram {
  struct Event {
    enum class Kind : uint8_t {
      kMicrobatch,    // forward and backward
      kTwoForwards,   // then a backward of their sum or, if `apart`, two backwards
      kEvaluate,      // forward without gradients
      kForwardOnly,   // forward with gradients, without a backward
      kFailForward,   // an exception leaves the forward
      kFailBackward,  // an exception leaves the backward; then all gradients are reset
      kResetAll,
      kResetSome,
    };
    Kind kind = Kind::kMicrobatch;
    uint64_t data = 0;
    std::vector<size_t> calls;  // stations, in the order in which the forward calls them
    bool sync = true, last = true;
    bool evaluate_between = false;  // between forward and backward
    bool again = false;             // the backward runs twice
    bool apart = false;
    bool in_place = false;  // resets write zeros
    int fails = -1;         // this station throws; in a kMicrobatch the model catches it
    uint64_t mask = 0;      // parameters that are reset
  };
  struct Step {
    std::vector<Event> events;
    double clip = 0;                   // 0: no clipping
    bool first = true, second = true;  // which optimizer steps and resets its gradients
  };

  uint64_t seed = 0;
  int ranks = 2, replicate = 1;
  bool fsdp1 = false;  // has one backward per forward
  bool fp64 = false;
  bool announces_steps = true;  // calls optimizer_done()
  bool mixed = false;           // computes or reduces in another dtype than the model's
  MazeShape shape;
  uint64_t frozen = 0;     // parameters, by index
  OtherDtype other;        // of frozen parameters
  uint64_t optimizer = 0;  // parameters of the second optimizer
  std::string plan;        // JSON
  std::vector<Step> steps;

  // The program with this number; the same on every machine.
  static RandomProgram make(uint64_t seed);
  [[nodiscard]] std::string described() const;
};

}  // namespace shardlens::test
