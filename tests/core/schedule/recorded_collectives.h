#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/model/model_config.h"
#include "core/plan/resolved_plan.h"
#include "core/workload/step_settings.h"
#include "core/workload/workload.h"

namespace shardlens::schedule::test {

// A program of tests/data/tensor or tests/data/expert (tests/data/RECORDED.md), whose collectives
// PyTorch issued over Gloo, and the step that is planned for the same model, plan and settings.
struct RecordedProgram {
  nlohmann::json values;
  plan::ModelConfig config;
  plan::ResolvedPlan plan;
  plan::StepSettings settings;
  plan::Workload workload;
};

[[nodiscard]] nlohmann::json read_json(const std::string& path);
// `folder` and `name`: "tensor", "llama-t2".
[[nodiscard]] RecordedProgram recorded_program(const std::string& folder, const std::string& name);

// Kind, axis and bytes before and after of each collective of forward and backward on `rank`, in
// the order in which it was issued.
[[nodiscard]] std::vector<std::string> recorded_collectives(const RecordedProgram& program,
                                                            int64_t rank);
// The same of the planned step. `partial`: with the sums of partial gradients.
[[nodiscard]] std::vector<std::string> planned_collectives(const RecordedProgram& program,
                                                           int64_t rank,
                                                           bool partial = true);

}  // namespace shardlens::schedule::test
