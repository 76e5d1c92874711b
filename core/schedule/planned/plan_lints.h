#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/plan/resolved_plan.h"
#include "core/schedule/planned/planned.h"

namespace shardlens::schedule {

// Something that can be slow in every step of a plan.
enum class PlanLintKind : uint8_t {
  kRootGatheredAgain,  // the root's parameters are freed after forward, and needed at once
  kUnalignedMessages,  // a rank's part of a message is no multiple of kMessageAlignment
};
[[nodiscard]] std::string_view name_of(PlanLintKind kind);    // "root_gathered_again", in JSON
[[nodiscard]] std::string_view remedy_of(PlanLintKind kind);  // for display

struct PlanLint {  // what is slow in every step of a plan, whatever it runs on
  PlanLintKind kind = PlanLintKind::kRootGatheredAgain;
  std::string unit;      // the first that has it
  int64_t units = 1;     // how many have it
  std::string evidence;  // a sentence with the numbers
};

// NCCL copies parts that are no multiple of 16 bytes in smaller pieces. Short messages use a
// protocol that does not depend on it.
//
// Source  pytorch/pytorch#195450, NVIDIA/nccl#413.
inline constexpr int64_t kMessageAlignment = 16, kShortMessage = 64 * 1024;

// Found before anything runs. `step`: of the plan.
[[nodiscard]] std::vector<PlanLint> plan_lints(const plan::ResolvedPlan& plan,
                                               const PlannedStep& step);

}  // namespace shardlens::schedule
