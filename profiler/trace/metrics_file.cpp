#include "profiler/trace/metrics_file.h"

#include <fstream>
#include <string>

#include <nlohmann/json.hpp>

namespace shardlens::trace {
namespace {

std::optional<double> number(const nlohmann::json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number() ? std::optional(found->get<double>())
                                                   : std::nullopt;
}

}  // namespace

std::vector<StepMetrics> read_metrics(const std::filesystem::path& path,
                                      std::vector<Diagnostic>& diagnostics) {
  std::vector<StepMetrics> metrics;
  std::ifstream in(path);
  std::string line;
  while (std::getline(in, line)) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) {
      add_diagnostic(diagnostics, Severity::kWarning,
                     path.string() + ": lines that are not metrics of a step");
      continue;
    }
    metrics.push_back({json["step"].get<int64_t>(), number(json, "loss"), number(json, "grad_norm"),
                       number(json, "step_ms"), number(json, "tokens_per_s")});
  }
  return metrics;
}

}  // namespace shardlens::trace
