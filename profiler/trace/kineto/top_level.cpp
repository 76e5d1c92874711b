#include "profiler/trace/kineto/top_level.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/json/json_values.h"
#include "profiler/trace/json/decimal.h"

namespace shardlens::trace {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMostCounted = int64_t{1} << 40;
constexpr size_t kMostKept = size_t{1} << 20;  // size of a value that is only passed on

// The result is_discarded() if the value is not valid JSON: NaN, or an invalid escape sequence.
Json parsed(const JsonValue& value) {
  return Json::parse(value.text, nullptr, false);
}

// A rank or a number of ranks; nullopt, with a warning, if it is none.
std::optional<int64_t> count_of(const std::string& key, const Json& json, Trace& trace) {
  const std::optional<int64_t> value = plan::integer_of(json);
  if (value && *value >= 0 && *value <= INT32_MAX) {
    return value;
  }
  if (json.is_number()) {
    add_diagnostic(trace.diagnostics, Severity::kWarning,
                   fmt::format("distributedInfo: {} is {}, expected a whole number from 0 to {}; "
                               "left out",
                               key, json.dump(), INT32_MAX));
  }
  return std::nullopt;
}

std::string string_of(const Json& json) {
  return json.is_string() ? json.get<std::string>() : std::string();
}

ProcessGroup process_group(const Json& json) {
  ProcessGroup group;
  for (const auto& [key, value] : json.items()) {
    if (key == "pg_name") {
      group.name = string_of(value);
    } else if (key == "pg_desc") {
      group.description = string_of(value);
    } else if (key == "backend_config") {
      group.backend_config = string_of(value);
    } else if (key == "pg_size") {
      group.size = plan::integer_of(value).value_or(0);
    } else if (key == "ranks" && value.is_array()) {
      for (const Json& rank : value) {
        if (const auto number = plan::integer_of(rank)) {
          group.ranks.push_back(*number);
        }
      }
    }
  }
  return group;
}

void distributed_info(const Json& json, Trace& trace) {
  Metadata& metadata = trace.metadata;
  for (const auto& [key, value] : json.items()) {
    if (key == "backend") {
      metadata.backend = string_of(value);
    } else if (key == "rank") {
      metadata.rank = count_of(key, value, trace);
    } else if (key == "world_size") {
      metadata.world_size = count_of(key, value, trace);
    } else if (key == "pg_config" && value.is_array()) {
      metadata.groups.clear();
      for (const Json& group : value) {
        if (group.is_object()) {
          metadata.groups.push_back(process_group(group));
        }
      }
    } else if (key != "pg_count") {
      metadata.other_distributed[key] = value.dump();
    }
  }
}

std::optional<Diagnostic> note_of(const Json& json) {
  if (!json.is_object() || !json.contains("message") || !json.at("message").is_string()) {
    return std::nullopt;
  }
  Diagnostic note;
  note.message = json.at("message").get<std::string>();
  const std::string severity = json.contains("severity") ? string_of(json.at("severity")) : "";
  for (const Severity each : {Severity::kNote, Severity::kError}) {
    note.severity = severity == name_of(each) ? each : note.severity;
  }
  if (json.contains("count")) {
    // Limited so that adding the counts of equal notes does not overflow.
    note.count =
        std::clamp<int64_t>(plan::integer_of(json.at("count")).value_or(1), 1, kMostCounted);
  }
  return note;
}

void keep(const std::string& key, const JsonValue& value, Trace& trace) {
  const std::string text =
      value.is_string() ? fmt::format("\"{}\"", value.text) : std::string(value.text);
  if (text.size() > kMostKept) {
    add_diagnostic(trace.diagnostics, Severity::kNote,
                   fmt::format("\"{}\" has {} bytes and is not kept", key, text.size()));
  } else if (Json::accept(text)) {
    trace.metadata.other[key] = text;
  }
}

}  // namespace

void read_top_level(const std::string& key,
                    const JsonValue& value,
                    const JsonCursor& cursor,
                    Trace& trace) {
  Metadata& m = trace.metadata;
  if (key == "distributedInfo" && value.kind == '{') {
    const Json json = parsed(value);
    if (json.is_discarded()) {
      add_diagnostic(trace.diagnostics, Severity::kWarning,
                     "distributedInfo is not JSON, left out");
    } else {
      distributed_info(json, trace);
    }
  } else if (key == "baseTimeNanoseconds") {
    const auto base = value.is_number() ? trace::integer_of(value.text) : std::nullopt;
    if (base) {
      m.base_time = *base;
    } else {
      add_diagnostic(trace.diagnostics, Severity::kWarning,
                     "baseTimeNanoseconds is not an integer; no base time is added");
    }
  } else if (key == "deviceProperties") {
    if (value.text.find('{') != std::string_view::npos && value.text.size() <= kMostKept &&
        Json::accept(value.text)) {
      m.device_properties = value.text;
    }
  } else if (key == "traceName") {
    std::string storage;
    m.trace_name = value.is_string() ? cursor.unescaped(value.text, storage) : std::string_view();
  } else if (key != "schemaVersion" && key != "displayTimeUnit") {
    keep(key, value, trace);
  }
}

OwnMember own_member(const JsonValue& value) {
  OwnMember out;
  const Json json = value.kind == '{' ? parsed(value) : Json();
  if (json.is_object() && json.contains("units") && json.at("units").is_array()) {
    for (const Json& unit : json.at("units")) {
      out.units.push_back(string_of(unit));
    }
  }
  if (json.is_object() && json.contains("notes") && json.at("notes").is_array()) {
    for (const Json& entry : json.at("notes")) {
      if (auto note = note_of(entry)) {
        add_diagnostic(out.notes, note->severity, std::move(note->message), note->count);
      }
    }
  }
  return out;
}

}  // namespace shardlens::trace
