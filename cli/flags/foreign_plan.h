#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "core/plan/accelerate_plan.h"

namespace shardlens::cli {

// The plan that a file of accelerate or transformers says (`plan --from`): YAML, or JSON. Errors:
// InputError as plan::plan_of_accelerate(), parse_yaml() and parse_json().
[[nodiscard]] plan::ForeignPlan load_foreign_plan(const std::filesystem::path& path,
                                                  const plan::ModuleTree& tree);
// The same of the file's text. `source`: its name.
[[nodiscard]] plan::ForeignPlan parse_foreign_plan(std::string_view text,
                                                   const std::string& source,
                                                   const plan::ModuleTree& tree);

// The file of `plan --to`: an fsdp_config if its name ends in .json, otherwise YAML.
[[nodiscard]] plan::AccelerateFile foreign_file_of(const std::filesystem::path& path);

}  // namespace shardlens::cli
