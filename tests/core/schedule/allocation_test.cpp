// Once constructed, the schedule allocates nothing, except in the caller's action list.
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/schedule/schedule.h"

namespace {
size_t allocations = 0;
}

void* operator new(size_t size) {
  ++allocations;
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t /*size*/) noexcept {
  std::free(memory);
}

namespace shardlens::schedule {
namespace {

void forward(Schedule& schedule, ActionList& out, bool grad_mode) {
  bool ok = schedule.on({.hook = Hook::kRootPreForward, .unit = 0}, out).ok();
  ok &= schedule.on({.hook = Hook::kPreForward, .unit = 0, .grad_mode = grad_mode}, out).ok();
  for (UnitId id = 1; id < schedule.size(); ++id) {
    ok &= schedule.on({.hook = Hook::kPreForward, .unit = id, .grad_mode = grad_mode}, out).ok();
    ok &= schedule.on({.hook = Hook::kPostForward, .unit = id, .grad_mode = grad_mode}, out).ok();
  }
  ok &= schedule.on({.hook = Hook::kPostForward, .unit = 0, .grad_mode = grad_mode}, out).ok();
  ASSERT_TRUE(ok);
}

void backward(Schedule& schedule, ActionList& out) {
  bool ok = schedule.on({.hook = Hook::kPreBackward, .unit = 0}, out).ok();
  for (UnitId id = static_cast<UnitId>(schedule.size()) - 1; id > 0; --id) {
    ok &= schedule.on({.hook = Hook::kPreBackward, .unit = id}, out).ok();
    ok &= schedule.on({.hook = Hook::kGradsReady, .unit = id}, out).ok();
  }
  ok &= schedule.on({.hook = Hook::kGradsReady, .unit = 0}, out).ok();
  ok &= schedule.on({.hook = Hook::kBackwardEnd, .unit = 0}, out).ok();
  ok &= schedule.on({.hook = Hook::kOptimizerDone, .unit = 0}, out).ok();
  ASSERT_TRUE(ok);
}

TEST(AllocationTest, NoneAfterConstruction) {
  for (const plan::Dialect dialect : {plan::Dialect::kFsdp1, plan::Dialect::kFsdp2}) {
    ScheduleOptions options;
    options.dialect = dialect;
    options.shard = 4;
    std::vector<UnitSpec> units(20);
    for (UnitId id = 0; id < units.size(); ++id) {
      units[id].name = "unit" + std::to_string(id);
      units[id].parent = id == 0 ? kNoUnit : 0;
    }
    Result<Schedule> made = Schedule::make(units, options);
    ActionList out;
    out.reserve(100000);
    const size_t before = allocations;
    for (int step = 0; step < 300; ++step) {
      out.clear();
      forward(made.value(), out, true);
      if (step % 3 == 0) {
        forward(made.value(), out, true);
      }
      backward(made.value(), out);
    }
    for (int evaluation = 0; evaluation < 1000; ++evaluation) {  // nothing grows either
      out.clear();
      forward(made.value(), out, false);
    }
    EXPECT_EQ(allocations, before);
  }
}

}  // namespace
}  // namespace shardlens::schedule
