#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/edits/plan_key.h"
#include "core/plan/plan.h"
#include "core/workload/step_settings.h"

namespace shardlens::plan {

// One value of a key, for a plan or for the settings of its step.
struct PlanEdit {
  PlanKey key = PlanKey::kSharding;
  std::string label;  // the value, in a list under the key's title: "the next unit"
  std::string title;  // the same as a change: "prefetch the next unit in forward"
  // Changes the plan; null if the edit is one of the step. May throw what resolve() does if it is
  // of single modules.
  std::function<void(Plan&)> apply;
  std::function<bool(const Plan&)> holds;  // whether the plan has the value; null with `apply`
  std::function<void(StepSettings&)> apply_to_step;  // null if the edit is one of the plan
  // The lines of a PyTorch program that make it, where `model` is the model. A line that begins
  // with '#' says what to do where no call does it. Empty: not known.
  std::vector<std::string> pytorch = {};
  // "prefetch_forward=1": the key's id and the value, the same for every model and in all versions.
  // "": an edit that only lists have.
  std::string id = {};
  // kMesh: replicas and shards. kMicrobatches: samples in each, and how many. Otherwise {0, 0}.
  std::pair<int64_t, int64_t> numbers = {};
};

}  // namespace shardlens::plan
