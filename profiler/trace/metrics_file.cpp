#include "profiler/trace/metrics_file.h"

#include <string>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/files/input_file.h"
#include "core/json/json_values.h"

namespace shardlens::trace {
namespace {

constexpr uint64_t kLargestMetrics = uint64_t{1} << 30;  // of ten million steps

std::optional<double> number(const nlohmann::json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number() ? std::optional(found->get<double>())
                                                   : std::nullopt;
}

std::optional<Bytes> bytes(const nlohmann::json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() ? plan::integer_of(*found) : std::nullopt;
}

}  // namespace

std::vector<StepMetrics> read_metrics(const std::filesystem::path& path,
                                      std::vector<Diagnostic>& diagnostics) {
  std::vector<StepMetrics> metrics;
  try {
    InputLines lines(path, {.most_bytes = kLargestMetrics});
    for (std::string line; lines.next(line);) {
      const auto json = nlohmann::json::parse(line, nullptr, false);
      const auto step =
          json.is_object() && json.contains("step") ? plan::integer_of(json["step"]) : std::nullopt;
      if (!step) {
        add_diagnostic(diagnostics, Severity::kWarning,
                       path.string() + ": lines that are not metrics of a step");
        continue;
      }
      metrics.push_back({*step, number(json, "loss"), number(json, "grad_norm"),
                         number(json, "step_ms"), number(json, "tokens_per_s"),
                         bytes(json, "peak_allocated_bytes"), bytes(json, "allocated_bytes")});
    }
  } catch (const InputError& error) {
    add_diagnostic(diagnostics, Severity::kWarning, error.what());
  }
  return metrics;
}

}  // namespace shardlens::trace
