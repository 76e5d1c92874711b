#include "tests/core/schedule/planned_events.h"

#include <map>

#include <gtest/gtest.h>

namespace shardlens::schedule::test {

std::string events_of(const PlannedStep& step,
                      bool fsdp1,
                      const std::function<std::string(UnitId)>& name_of) {
  std::string out;
  const auto write = [&](char code, UnitId unit) {
    out += (out.empty() ? "" : " ") + std::string(1, code) + name_of(unit);
  };
  const std::map<Hook, std::string> codes{{Hook::kPreForward, "F"},
                                          {Hook::kPostForward, " f"},
                                          {Hook::kPreBackward, "Bb"},
                                          {Hook::kGradsReady, "Pp"},
                                          {Hook::kBackwardEnd, "Cc"}};
  std::map<UnitId, bool> full;
  size_t next = 0;
  for (const HookEvent& hook : step.hooks) {
    const auto code = codes.find(hook.hook);
    const std::string around = code == codes.end()                                ? std::string()
                               : hook.recompute && hook.hook == Hook::kPreForward ? "Q"
                               : hook.recompute                                   ? ""
                                                                                  : code->second;
    if (!around.empty() && around[0] != ' ') {
      write(around[0], hook.unit);
    }
    for (; next < step.actions.size() && step.actions[next].hook == hook; ++next) {
      const Action& action = step.actions[next].action;
      const bool unsharded = action.buffer.kind == BufferKind::kUnsharded;
      if (action.op == Op::kAllGather) {
        write('A', action.unit);
      } else if (action.op == Op::kReduceScatter) {
        write('R', action.unit);
      } else if (action.op == Op::kAllReduce) {
        write('X', action.unit);
      } else if (action.op == Op::kHostWait) {
        write('L', action.unit);
      } else if (action.op == Op::kFree && unsharded) {
        write('S', action.unit);
      } else if (fsdp1 ? action.op == Op::kStreamWait && action.stream == Stream::kCompute &&
                             hook.hook != Hook::kBackwardEnd
                       : action.op == Op::kUseFull && !full[action.unit]) {
        write('W', action.unit);
      }
      full[action.unit] =
          action.op == Op::kUseFull || (full[action.unit] && action.op != Op::kUseShard);
    }
    if (around.size() == 2) {
      write(around[1], hook.unit);
    }
  }
  EXPECT_EQ(next, step.actions.size());
  return out;
}

}  // namespace shardlens::schedule::test
