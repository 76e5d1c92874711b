// Random unit trees, options and hook streams: whatever the schedule accepts keeps the Ledger's
// invariants, whatever it refuses changes nothing, and abort brings everything back.
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/schedule/ledger.h"
#include "core/schedule/schedule.h"

namespace shardlens::schedule {
namespace {

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  uint32_t below(uint32_t n) { return std::uniform_int_distribution<uint32_t>(0, n - 1)(engine_); }
  bool chance(double p) { return std::bernoulli_distribution(p)(engine_); }

 private:
  std::mt19937 engine_;
};

ScheduleOptions random_options(Random& random) {
  ScheduleOptions options;
  options.dialect = random.chance(0.6) ? plan::Dialect::kFsdp2 : plan::Dialect::kFsdp1;
  const bool fsdp2 = options.dialect == plan::Dialect::kFsdp2;
  options.layout = random.chance(0.5) ? plan::Layout::kPerParameter : plan::Layout::kFlat;
  const int64_t sizes[] = {1, 2, 4, 6, 8};
  options.shard = sizes[random.below(5)];
  options.replicate = random.chance(0.3) ? 2 : 1;
  options.force_collectives = random.chance(0.2);
  options.limit_all_gathers = random.chance(0.7);
  options.forward_prefetch = random.below(fsdp2 ? 4 : 2);
  const uint32_t prefetch = random.below(fsdp2 ? 2 : 3);
  options.backward_prefetch = prefetch == 0   ? plan::BackwardPrefetch::kPre
                              : prefetch == 1 ? plan::BackwardPrefetch::kNone
                                              : plan::BackwardPrefetch::kPost;
  options.use_orig_params = random.chance(0.8);
  if (fsdp2 && random.chance(0.5)) {
    options.finalization = static_cast<plan::Finalization>(random.below(3));
    options.reduces_unused = random.chance(0.3);
    options.reduce_inputs = 1 + random.below(3);
  }
  return options;
}

std::vector<UnitId> random_list(Random& random, uint32_t units) {
  std::vector<UnitId> list;
  for (uint32_t i = random.below(4); i > 0; --i) {
    list.push_back(random.below(units));
  }
  return list;
}

std::vector<UnitSpec> random_units(Random& random, const ScheduleOptions& options, uint32_t most) {
  const uint32_t count = 1 + random.below(most);
  const bool cast = random.chance(0.4);
  const bool offload = random.chance(0.2);
  const bool packs = options.layout == plan::Layout::kPerParameter && options.shard > 1;
  std::vector<UnitSpec> units;
  for (UnitId id = 0; id < count; ++id) {
    UnitSpec unit;
    unit.name = "unit" + std::to_string(id);
    unit.parent = id == 0 ? kNoUnit : random.below(id);
    unit.has_parameters = random.chance(0.9);
    unit.trainable = random.chance(0.9);
    unit.copy_in = cast || packs;
    unit.copy_out = packs;
    unit.cpu_offload = offload && random.chance(0.8);
    unit.optimizer_in_backward = !offload && random.chance(0.3);
    unit.reduce_cast = cast;
    unit.reduce_copy_in = cast || packs;
    switch (random.below(4)) {
      case 0:
        unit.reshard_after_forward.kind = plan::Reshard::Kind::kYes;
        break;
      case 1:
        unit.reshard_after_forward.kind = plan::Reshard::Kind::kNo;
        break;
      case 2:
        if (options.dialect == plan::Dialect::kFsdp2 && options.shard > 2) {
          unit.reshard_after_forward = {plan::Reshard::Kind::kSubMesh, 2};
          unit.kept = 2;
        }
        break;
      default:
        break;
    }
    if (random.chance(0.2)) {
      unit.forward_prefetch = random_list(random, count);
    }
    if (random.chance(0.2)) {
      unit.backward_prefetch = random_list(random, count);
    }
    units.push_back(unit);
  }
  return units;
}

Setting random_setting(Random& random, uint32_t units) {
  Setting setting;
  setting.kind = static_cast<Setting::Kind>(random.below(8));
  setting.flag = random.chance(0.5);
  if (setting.kind == Setting::Kind::kForwardPrefetch ||
      setting.kind == Setting::Kind::kBackwardPrefetch) {
    setting.units = random_list(random, units);
  }
  return setting;
}

// A schedule, its twin that gets only the accepted hooks, and the ledger of their actions.
class Rig {
 public:
  Rig(const std::vector<UnitSpec>& units, const ScheduleOptions& options)
      : units_(units),
        schedule_(std::move(Schedule::make(units, options).value())),
        twin_(std::move(Schedule::make(units, options).value())),
        ledger_(units, options) {}

  // Returns whether the hook was accepted.
  bool raise(const HookEvent& event) {
    std::vector<UnitState> before;
    for (UnitId id = 0; id < units_.size(); ++id) {
      before.push_back(schedule_.state(id));
    }
    ActionList actions{Action{}};
    const Result<void> done = schedule_.on(event, actions);
    if (!done.ok()) {
      EXPECT_EQ(actions.size(), 1U) << done.message();
      for (UnitId id = 0; id < units_.size(); ++id) {
        EXPECT_EQ(schedule_.state(id), before[id]) << done.message();
      }
      if (event.unit < units_.size()) {
        EXPECT_NE(done.message().find("'" + units_[event.unit].name + "'"), std::string::npos)
            << done.message();
      }
      EXPECT_NE(done.message().find(name_of(event.hook)), std::string::npos) << done.message();
      return false;
    }
    ActionList again{Action{}};
    EXPECT_TRUE(twin_.on(event, again).ok()) << "refused hooks changed the schedule";
    EXPECT_EQ(actions, again) << "refused hooks changed the schedule";
    for (size_t i = 1; i < actions.size(); ++i) {
      const Result<void> kept = ledger_.consume(actions[i]);
      EXPECT_TRUE(kept.ok()) << kept.message() << " at " << name_of(event.hook) << " of unit "
                             << event.unit;
    }
    return true;
  }

  void set(UnitId unit, const Setting& setting, Recurse recurse) {
    EXPECT_EQ(schedule_.set(unit, setting, recurse).ok(), twin_.set(unit, setting, recurse).ok());
  }

  void finish() {
    EXPECT_TRUE(raise({.hook = Hook::kAbort, .unit = 0}));
    const Result<void> end = ledger_.finish();
    EXPECT_TRUE(end.ok()) << end.message();
    for (UnitId id = 0; id < units_.size(); ++id) {
      EXPECT_EQ(schedule_.state(id), UnitState::kSharded);
    }
  }

  [[nodiscard]] const Schedule& schedule() const { return schedule_; }

 private:
  const std::vector<UnitSpec>& units_;
  Schedule schedule_, twin_;
  Ledger ledger_;
};

HookEvent random_hook(Random& random, uint32_t units) {
  HookEvent event;
  // Forward and backward hooks are more frequent than others, so that many of them are accepted.
  const Hook often[] = {Hook::kPreForward, Hook::kPostForward, Hook::kPreBackward,
                        Hook::kGradsReady};
  event.hook =
      random.chance(0.8) ? often[random.below(4)] : static_cast<Hook>(random.below(kHookCount));
  if (event.hook == Hook::kAbort && random.chance(0.8)) {
    event.hook = Hook::kBackwardEnd;
  }
  event.unit = random.chance(0.02) ? units + random.below(3) : random.below(units);
  if (event.hook == Hook::kBackwardEnd || event.hook == Hook::kOptimizerDone ||
      event.hook == Hook::kRootPreForward) {
    event.unit = 0;
  }
  event.grad_mode = random.chance(0.9);
  event.recompute = random.chance(0.1);
  event.grads = static_cast<Grads>(random.below(3));
  return event;
}

TEST(ScheduleProperties, AnyAcceptedStreamKeepsTheInvariants) {
  size_t accepted = 0, refused = 0;
  for (uint32_t seed = 0; seed < 400 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const ScheduleOptions options = random_options(random);
    const std::vector<UnitSpec> units = random_units(random, options, seed % 10 == 0 ? 100 : 5);
    Rig rig(units, options);
    const auto count = static_cast<uint32_t>(units.size());
    for (int i = 0; i < 400; ++i) {
      if (random.chance(0.02)) {
        rig.set(random.below(count), random_setting(random, count),
                random.chance(0.5) ? Recurse::kYes : Recurse::kNo);
      }
      ++(rig.raise(random_hook(random, count)) ? accepted : refused);
    }
    rig.finish();
  }
  EXPECT_GT(accepted, 30000U);  // the streams have enough valid and enough invalid hooks
  EXPECT_GT(refused, 10000U);
}

// One step as a model runs it: nested forwards, some units several times or not at all, backward in
// reverse.
class Program {
 public:
  Program(Rig& rig, const std::vector<UnitSpec>& units, Random& random, double mishap)
      : rig_(rig), units_(units), random_(random), mishap_(mishap) {}

  void step() {
    aborted_ = false;
    used_.clear();
    raise({.hook = Hook::kRootPreForward, .unit = 0});
    forward(0);
    for (auto unit = used_.rbegin(); unit != used_.rend(); ++unit) {
      raise({.hook = Hook::kPreBackward, .unit = *unit});
      if (random_.chance(0.2)) {
        raise({.hook = Hook::kPreForward, .unit = *unit, .recompute = true});
        raise({.hook = Hook::kPostForward, .unit = *unit, .recompute = true});
      }
      if (random_.chance(0.9)) {
        raise({.hook = Hook::kGradsReady,
               .unit = *unit,
               .grads = random_.chance(0.8) ? Grads::kAll : Grads::kNone});
      }
    }
    raise({.hook = Hook::kBackwardEnd, .unit = 0});
    raise({.hook = Hook::kOptimizerDone, .unit = 0});
  }

 private:
  void forward(UnitId unit) {
    raise({.hook = Hook::kPreForward, .unit = unit});
    for (UnitId child = unit + 1; child < units_.size(); ++child) {
      if (units_[child].parent == unit && random_.chance(0.95)) {
        forward(child);
        if (random_.chance(0.05)) {
          forward(child);
        }
      }
    }
    raise({.hook = Hook::kPostForward, .unit = unit});
    used_.push_back(unit);
  }

  void raise(const HookEvent& event) {
    if (aborted_) {
      return;
    }
    if (random_.chance(mishap_)) {
      ASSERT_TRUE(rig_.raise({.hook = Hook::kAbort, .unit = 0}));
      aborted_ = true;
      return;
    }
    EXPECT_TRUE(rig_.raise(event)) << name_of(event.hook) << " of unit " << event.unit;
  }

  Rig& rig_;
  const std::vector<UnitSpec>& units_;
  Random& random_;
  double mishap_;
  bool aborted_ = false;
  std::vector<UnitId> used_;
};

TEST(ScheduleProperties, AnyModelRunsAndMayFailAnywhere) {
  for (uint32_t seed = 0; seed < 600 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed + 100000);
    const ScheduleOptions options = random_options(random);
    const std::vector<UnitSpec> units = random_units(random, options, seed % 5 == 0 ? 100 : 12);
    Rig rig(units, options);
    Program program(rig, units, random, seed % 3 == 0 ? 0.0 : 0.01);
    for (int step = 0; step < 6; ++step) {
      Setting sync;
      sync.flag = step % 3 == 2;
      rig.set(0, sync, Recurse::kYes);
      program.step();
    }
    rig.finish();
  }
}

// The limiter keeps at most two all-gathers in flight, however far the host runs ahead.
TEST(ScheduleProperties, InFlightStaysWithinTheLimit) {
  for (const plan::Dialect dialect : {plan::Dialect::kFsdp1, plan::Dialect::kFsdp2}) {
    ScheduleOptions options;
    options.dialect = dialect;
    options.shard = 4;
    std::vector<UnitSpec> units(50);
    for (UnitId id = 0; id < units.size(); ++id) {
      units[id].name = "unit" + std::to_string(id);
      units[id].parent = id == 0 ? kNoUnit : 0;
    }
    Schedule schedule = std::move(Schedule::make(units, options).value());
    Ledger ledger(units, options);
    ActionList actions;
    const auto raise = [&](Hook hook, UnitId unit) {
      ASSERT_TRUE(schedule.on({.hook = hook, .unit = unit}, actions).ok());
    };
    for (int step = 0; step < 4; ++step) {
      raise(Hook::kRootPreForward, 0);
      raise(Hook::kPreForward, 0);
      for (UnitId unit = 1; unit < units.size(); ++unit) {
        raise(Hook::kPreForward, unit);
        raise(Hook::kPostForward, unit);
      }
      raise(Hook::kPostForward, 0);
      raise(Hook::kPreBackward, 0);
      for (UnitId unit = 49; unit > 0; --unit) {
        raise(Hook::kPreBackward, unit);
        raise(Hook::kGradsReady, unit);
      }
      raise(Hook::kGradsReady, 0);
      raise(Hook::kBackwardEnd, 0);
      raise(Hook::kOptimizerDone, 0);
    }
    for (const Action& action : actions) {
      const Result<void> kept = ledger.consume(action);
      ASSERT_TRUE(kept.ok()) << kept.message();
    }
    EXPECT_LE(ledger.peak_in_flight(), 2U);
    EXPECT_LE(ledger.peak_pending_frees(), 2U);
    EXPECT_TRUE(ledger.finish().ok()) << ledger.finish().message();
  }
}

}  // namespace
}  // namespace shardlens::schedule
