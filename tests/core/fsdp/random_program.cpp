#include "tests/core/fsdp/random_program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace shardlens::test {
namespace {

class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed * 0x9E3779B97F4A7C15ULL + 1) {}
  uint64_t below(uint64_t limit) { return engine_() % limit; }
  bool chance(double p) { return static_cast<double>(engine_() >> 11) * 0x1p-53 < p; }
  uint64_t mask(double p) {
    uint64_t bits = 0;
    for (int i = 0; i < 64; ++i) {
      bits |= static_cast<uint64_t>(chance(p)) << i;
    }
    return bits;
  }
  template <typename T>
  const T& of(const std::vector<T>& values) {
    return values[below(values.size())];
  }

 private:
  std::mt19937_64 engine_;
};

using Event = RandomProgram::Event;

std::vector<size_t> calls_of(Dice& dice, size_t stations) {
  std::vector<size_t> calls;
  for (size_t i = 0; i < stations; ++i) {
    if (dice.chance(0.8)) {
      calls.push_back(i);
    }
  }
  for (uint64_t more = dice.below(3); more > 0 && dice.chance(0.5); --more) {
    calls.insert(calls.begin() + static_cast<int64_t>(dice.below(calls.size() + 1)),
                 dice.below(stations));
  }
  return calls;
}

std::string plan_of(Dice& dice, const RandomProgram& program) {
  const bool fsdp1 = program.fsdp1;
  std::vector<std::string> units{R"({"modules": ""})"};
  // A module with two names belongs to the unit around both: the root.
  for (size_t i = program.shape.shared ? 1 : 0; i < program.shape.stations.size(); ++i) {
    if (dice.chance(0.75)) {
      units.push_back(fmt::format(R"({{"modules": "stations.{}"}})", i));
    }
    if (program.shape.stations[i] == StationKind::kNested && dice.chance(0.5)) {
      units.push_back(fmt::format(R"({{"modules": "stations.{}.inner"}})", i));
    }
  }
  std::vector<std::string> keys{
      R"("version": 1)",
      fmt::format(R"("units": [{}])", fmt::join(units, ", ")),
      fmt::format(R"("dialect": "{}")", fsdp1 ? "fsdp1" : "fsdp2"),
      fmt::format(R"("layout": "{}")", dice.chance(0.5) ? "flat" : "per_parameter"),
      fmt::format(R"("views": "{}")", dice.chance(0.75) ? "fresh" : "frozen"),
      fmt::format(R"("limit_all_gathers": {})", dice.chance(0.8)),
      fmt::format(R"("forward_prefetch": {})", dice.chance(0.7) ? 0 : 1),
  };
  std::string reshard = dice.of<std::string>({"null", "true", "true", "false"});
  if (!fsdp1 && program.ranks == 4 && program.replicate == 1 && dice.chance(0.4)) {
    reshard = "2";
  }
  keys.push_back(R"("reshard_after_forward": )" + reshard);
  if (program.replicate > 1) {
    keys.push_back(fmt::format(R"("mesh": {{"replicate": {}, "shard": {}}})", program.replicate,
                               program.ranks / program.replicate));
  }
  keys.push_back(fmt::format(R"("backward_prefetch": "{}")",
                             fsdp1 ? dice.of<std::string>({"pre", "post", "none"}) : "pre"));
  if (!fsdp1 && dice.chance(0.15)) {
    keys.push_back(R"("reshard_after_backward": false)");
  }
  if (program.mixed) {
    keys.push_back(dice.chance(0.5) ? R"("mixed_precision": {"param_dtype": "fp32"})"
                                    : R"("mixed_precision": {"reduce_dtype": "fp32"})");
  }
  keys.push_back(fmt::format(R"("separate_reduce_scatter_group": {})", dice.chance(0.3)));
  return "{" + fmt::format("{}", fmt::join(keys, ", ")) + "}";
}

// Events of a step; the last one is a microbatch with sync, or an evaluation after it.
RandomProgram::Step step_of(Dice& dice, size_t stations, bool fsdp1, uint64_t& data) {
  RandomProgram::Step step;
  const uint64_t count = 1 + dice.below(4);
  bool pending = false;  // gradients without sync, which a reset of parameters cannot reach
  for (uint64_t i = 0; i < count; ++i) {
    const bool last = i + 1 == count;
    Event event;
    event.data = data++;
    event.calls = calls_of(dice, stations);
    event.sync = last || dice.chance(0.4);
    event.last = last;
    const uint64_t kind = dice.below(20);
    const int victim = event.calls.empty() ? -1 : static_cast<int>(dice.of(event.calls));
    if (last || kind < 8 || victim < 0) {
      event.kind = last && dice.chance(0.2) ? Event::Kind::kTwoForwards : Event::Kind::kMicrobatch;
      event.apart = !fsdp1 && dice.chance(0.5);
      event.evaluate_between = dice.chance(0.15);
      event.again = !fsdp1 && event.kind == Event::Kind::kMicrobatch && dice.chance(0.1);
      event.fails = event.kind == Event::Kind::kMicrobatch && dice.chance(0.08) ? victim : -1;
      pending = !event.sync;
    } else if (kind < 10) {
      event.kind = Event::Kind::kTwoForwards;
      event.apart = !fsdp1 && dice.chance(0.5);
      event.evaluate_between = dice.chance(0.15);
      pending = !event.sync;
    } else if (kind < 13) {
      event.kind = Event::Kind::kEvaluate;
    } else if (kind < 15) {
      event.kind = Event::Kind::kForwardOnly;
    } else if (kind < 17) {
      event.kind = Event::Kind::kFailForward;
      event.fails = victim;
    } else if (kind < 18 || pending) {
      event.kind = Event::Kind::kFailBackward;
      event.fails = victim;
      event.sync = true;  // if the backward does not reach the station, its gradients can be reset
      pending = false;
    } else {
      event.kind = dice.chance(0.5) ? Event::Kind::kResetAll : Event::Kind::kResetSome;
      event.mask = dice.mask(0.5);
      event.in_place = dice.chance(0.3);
    }
    step.events.push_back(std::move(event));
    // After an exception in a forward: the step begins again, or the program goes on.
    if (step.events.back().kind == Event::Kind::kFailForward && dice.chance(0.5)) {
      Event reset;
      reset.kind = Event::Kind::kResetAll;
      step.events.push_back(reset);
      pending = false;
    }
  }
  if (dice.chance(0.15)) {
    Event evaluation;
    evaluation.kind = Event::Kind::kEvaluate;
    evaluation.data = data++;
    evaluation.calls = calls_of(dice, stations);
    step.events.push_back(std::move(evaluation));
  }
  step.clip = dice.chance(0.2) ? 0.05 : 0;
  step.first = dice.chance(0.9);
  step.second = dice.chance(0.7);
  return step;
}

const char* name_of(Event::Kind kind) {
  constexpr const char* kNames[] = {"microbatch",   "two_forwards",  "evaluate",  "forward_only",
                                    "fail_forward", "fail_backward", "reset_all", "reset_some"};
  return kNames[static_cast<size_t>(kind)];
}

}  // namespace

RandomProgram RandomProgram::make(uint64_t seed) {
  Dice dice(seed);
  RandomProgram program;
  program.seed = seed;
  program.ranks = 2 + static_cast<int>(dice.below(3));
  if (program.ranks == 4 && dice.chance(0.4)) {
    program.replicate = 2;
  } else if (dice.chance(0.08)) {
    program.replicate = program.ranks;
  }
  program.fp64 = dice.chance(0.3);
  program.mixed = program.fp64 && dice.chance(0.5);
  program.shape.width = 3 + static_cast<int64_t>(dice.below(4));
  for (uint64_t i = 2 + dice.below(3); i > 0; --i) {
    program.shape.stations.push_back(static_cast<StationKind>(dice.below(4)));
  }
  program.shape.shared = dice.chance(0.2);
  const size_t stations = program.shape.stations.size() + (program.shape.shared ? 1 : 0);
  if (dice.chance(0.4)) {
    program.frozen = dice.mask(dice.chance(0.5) ? 0.3 : 0.7);
  }
  program.optimizer = dice.mask(0.5);
  program.fsdp1 = dice.chance(0.4);
  program.plan = plan_of(dice, program);
  program.announces_steps = dice.chance(0.7);
  uint64_t data = 1;
  for (uint64_t i = 2 + dice.below(3); i > 0; --i) {
    program.steps.push_back(step_of(dice, stations, program.fsdp1, data));
  }
  if (program.plan.find("per_parameter") != std::string::npos && dice.chance(0.6)) {
    program.other.parameters = program.frozen & dice.mask(0.6);
    program.other.dtype =
        dice.of<at::ScalarType>({at::kBFloat16, at::kHalf, at::kFloat, at::kDouble});
  }
  return program;
}

std::string RandomProgram::described() const {
  std::string text = fmt::format("program {}: {} ranks, {}, width {}, stations", seed, ranks,
                                 fp64 ? "fp64" : "fp32", shape.width);
  for (const StationKind kind : shape.stations) {
    text += fmt::format(" {}", static_cast<int>(kind));
  }
  text += fmt::format("{}, frozen {:x}, {} {:x}{}, plan {}", shape.shared ? " shared" : "", frozen,
                      toString(other.dtype), other.parameters,
                      announces_steps ? "" : ", steps not announced", plan);
  for (const Step& step : steps) {
    text += fmt::format("\n  step (clip {}, optimizers {}{}):", step.clip,
                        static_cast<int>(step.first), static_cast<int>(step.second));
    for (const Event& event : step.events) {
      text += fmt::format("\n    {} calls [{}]{}{}{}{}", name_of(event.kind),
                          fmt::join(event.calls, " "), event.sync ? "" : " no_sync",
                          event.evaluate_between ? " evaluate_between" : "",
                          event.again ? " again" : "", event.apart ? " apart" : "");
      if (event.fails >= 0) {
        text += fmt::format(" fails {}", event.fails);
      }
    }
  }
  return text;
}

}  // namespace shardlens::test
