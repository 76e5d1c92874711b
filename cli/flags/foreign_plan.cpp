#include "cli/flags/foreign_plan.h"

#include "core/json/json_reader.h"

#include "cli/flags/yaml_file.h"

namespace shardlens::cli {

plan::ForeignPlan load_foreign_plan(const std::filesystem::path& path,
                                    const plan::ModuleTree& tree) {
  return parse_foreign_plan(plan::read_text_file(path), path.string(), tree);
}

plan::ForeignPlan parse_foreign_plan(std::string_view text,
                                     const std::string& source,
                                     const plan::ModuleTree& tree) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  const bool is_json = begin != std::string_view::npos && text[begin] == '{';
  const nlohmann::json document =
      is_json ? plan::parse_json(text, source) : parse_yaml(text, source);
  return plan::plan_of_accelerate(plan::JsonNode(document, source), tree);
}

plan::AccelerateFile foreign_file_of(const std::filesystem::path& path) {
  return path.extension() == ".json" ? plan::AccelerateFile::kFsdpConfigJson
                                     : plan::AccelerateFile::kLaunchYaml;
}

}  // namespace shardlens::cli
