#include "profiler/trace/actions_file.h"

#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/files/input_file.h"
#include "core/json/json_values.h"

namespace shardlens::trace {
namespace {

constexpr uint64_t kLargestActions = uint64_t{1} << 30;

std::optional<int64_t> integer_field(const nlohmann::json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() ? plan::integer_of(*found) : std::nullopt;
}

std::string text_field(const nlohmann::json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::optional<RecordedAction> action_of(const nlohmann::json& line) {
  const auto op = schedule::parse_op(text_field(line, "op"));
  const auto seq = integer_field(line, "seq");
  const auto start = integer_field(line, "t_ns");
  const auto end = integer_field(line, "end_ns");
  const auto unit = line.find("unit");
  if (!op || !seq || *seq < 1 || *seq > UINT32_MAX || !start || !end || *end < *start ||
      unit == line.end() || !unit->is_string()) {
    return std::nullopt;
  }
  RecordedAction action;
  action.seq = static_cast<uint32_t>(*seq);
  action.op = *op;
  action.cause = schedule::parse_cause(text_field(line, "cause")).value_or(schedule::Cause::kOwn);
  action.unit = unit->get<std::string>();
  action.step = integer_field(line, "step").value_or(0);
  action.start = *start;
  action.end = *end;
  return action;
}

}  // namespace

std::vector<RecordedAction> read_actions(const std::filesystem::path& path,
                                         std::vector<Diagnostic>& diagnostics) {
  std::vector<RecordedAction> actions;
  int64_t number = 0, first_bad = 0, bad = 0;
  try {
    InputLines lines(path, {.most_bytes = kLargestActions});
    for (std::string line; lines.next(line);) {
      ++number;
      const auto json = nlohmann::json::parse(line, nullptr, false);
      if (json.is_object() && json.contains("hook")) {
        continue;
      }
      auto action = json.is_object() ? action_of(json) : std::nullopt;
      if (action) {
        actions.push_back(std::move(*action));
      } else if (++bad == 1) {
        first_bad = number;
      }
    }
  } catch (const InputError& error) {
    add_diagnostic(diagnostics, Severity::kWarning, error.what());
  }
  if (bad > 0) {
    add_diagnostic(diagnostics, Severity::kWarning,
                   fmt::format("{}: lines that are not actions, the first is line {}",
                               path.string(), first_bad),
                   bad);
  }
  return actions;
}

}  // namespace shardlens::trace
