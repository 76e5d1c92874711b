#include "profiler/trace/kineto_reader.h"

#include <array>
#include <cctype>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <simdjson.h>

#include "core/base/error.h"
#include "profiler/trace/decimal.h"
#include "profiler/trace/event_fields.h"

namespace shardlens::trace {
namespace {

namespace od = simdjson::ondemand;

constexpr int64_t kEpochMicroseconds =
    1'000'000'000'000'000;  // September 2001: no recording lasts that long

// JSON text of any value, trimmed; "" if it is not valid JSON within.
std::string json_of(od::value value) {
  std::string_view text;
  switch (value.type()) {
    case od::json_type::object:
      text = value.get_object().value().raw_json();
      break;
    case od::json_type::array:
      text = value.get_array().value().raw_json();
      break;
    default:
      text = value.raw_json_token();
      break;
  }
  const size_t end = text.find_last_not_of(" \t\r\n");
  text = text.substr(0, end == std::string_view::npos ? 0 : end + 1);
  return nlohmann::json::accept(text) ? std::string(text) : std::string();
}

std::optional<int64_t> integer_of(od::value value) {
  return value.type() == od::json_type::number ? scaled_decimal(number_token(value), 0)
                                               : std::nullopt;
}

std::optional<std::string> string_of(od::value value) {
  if (value.type() != od::json_type::string) {
    return std::nullopt;
  }
  return std::string(std::string_view(value.get_string()));
}

class Reader {
 public:
  Reader(std::string_view text,
         size_t capacity,
         const std::string& source,
         const ReadOptions& options)
      : text_(text), capacity_(capacity), builder_(trace_, options.keep_args) {
    trace_.metadata.source = source;
  }

  Trace run() {
    try {
      parse();
    } catch (const simdjson::simdjson_error& error) {
      fail(error.error());
    }
    if (!has_events_) {
      throw InputError(trace_.metadata.source, "no trace: it has no list \"traceEvents\"");
    }
    finish();
    return std::move(trace_);
  }

 private:
  [[noreturn]] void fail(simdjson::error_code code) {
    const char* at = nullptr;
    const auto error = document_ ? document_->current_location().get(at) : simdjson::UNINITIALIZED;
    const std::string where =
        error == simdjson::SUCCESS && at >= text_.data() && at <= text_.data() + text_.size()
            ? fmt::format("{} at byte {}", trace_.metadata.source, at - text_.data())
            : fmt::format("{} within its {} bytes", trace_.metadata.source, text_.size());
    if (code == simdjson::UTF8_ERROR) {
      throw InputError(fmt::format("{} at byte {}", trace_.metadata.source, first_invalid_utf8()),
                       "not UTF-8, which JSON has to be");
    }
    if (code == simdjson::INCOMPLETE_ARRAY_OR_OBJECT || code == simdjson::UNCLOSED_STRING) {
      throw InputError(
          fmt::format("{} at byte {}", trace_.metadata.source, text_.size()),
          "the JSON ends before its last bracket or quote is closed: the file is cut off");
    }
    throw InputError(where,
                     fmt::format("not the JSON of a trace: {}", simdjson::error_message(code)));
  }

  [[nodiscard]] size_t first_invalid_utf8() const {
    size_t valid = 0, end = text_.size();  // text_[0, valid) is valid, text_[0, end) is not
    while (valid + 1 < end) {
      const size_t middle = valid + (end - valid) / 2;
      // A character cut in two is not the fault: step back to its first byte.
      size_t cut = middle;
      while (cut > valid && (static_cast<unsigned char>(text_[cut]) & 0xC0U) == 0x80U) {
        --cut;
      }
      if (cut > valid && simdjson::validate_utf8(text_.data() + valid, cut - valid)) {
        valid = cut;
      } else if (cut == valid) {
        break;
      } else {
        end = cut;
      }
    }
    return valid;
  }

  // Fails while the document is alive, because only then its position can be told.
  void parse() {
    auto result = parser_.iterate(text_.data(), text_.size(), capacity_);
    od::document document = std::move(result).value();
    document_ = &document;
    try {
      const od::json_type type = document.type();
      if (type == od::json_type::array) {
        events(document.get_array());
      } else if (type == od::json_type::object) {
        for (od::field field : document.get_object()) {
          top_level(field);
        }
      } else {
        throw InputError(trace_.metadata.source + " at byte 0",
                         "no trace: expected an object or a list of events");
      }
      const char* more = nullptr;
      if (document.current_location().get(more) == simdjson::SUCCESS) {
        throw InputError(fmt::format("{} at byte {}", trace_.metadata.source, more - text_.data()),
                         "there is more text after the end of the JSON value");
      }
    } catch (const simdjson::simdjson_error& error) {
      fail(error.error());
    }
    document_ = nullptr;
  }

  void top_level(od::field& field) {
    const std::string key(std::string_view(field.unescaped_key()));
    od::value value = field.value();
    Metadata& m = trace_.metadata;
    if (key == "traceEvents") {
      if (value.type() != od::json_type::array) {
        throw InputError(trace_.metadata.source, "\"traceEvents\" is not a list");
      }
      events(value.get_array());
    } else if (key == "distributedInfo" && value.type() == od::json_type::object) {
      for (od::field info : value.get_object()) {
        distributed(info);
      }
    } else if (key == "baseTimeNanoseconds") {
      if (const auto base = integer_of(value)) {
        m.base_time = *base;
      } else {
        add_diagnostic(trace_.diagnostics, Severity::kWarning,
                       "baseTimeNanoseconds is no integer; times are taken as they are");
      }
    } else if (key == "deviceProperties") {
      m.device_properties = json_of(value);
      has_devices_ = m.device_properties.find('{') != std::string::npos;
      if (!has_devices_) {
        m.device_properties.clear();
      }
    } else if (key == "traceName") {
      m.trace_name = string_of(value).value_or("");
    } else if (key == "shardlens" && value.type() == od::json_type::object) {
      ours(value.get_object());
    } else if (key != "schemaVersion" && key != "displayTimeUnit") {
      std::string json = json_of(value);
      if (!json.empty()) {
        m.other[key] = std::move(json);
      }
    }
  }

  void distributed(od::field& field) {
    const std::string key(std::string_view(field.unescaped_key()));
    od::value value = field.value();
    Metadata& m = trace_.metadata;
    if (key == "backend") {
      m.backend = string_of(value).value_or("");
    } else if (key == "rank") {
      m.rank = integer_of(value);
    } else if (key == "world_size") {
      m.world_size = integer_of(value);
    } else if (key == "pg_config" && value.type() == od::json_type::array) {
      for (od::value group : value.get_array()) {
        if (group.type() == od::json_type::object) {
          process_group(group.get_object());
        }
      }
    } else if (key != "pg_count") {
      std::string json = json_of(value);
      if (!json.empty()) {
        m.other_distributed[key] = std::move(json);
      }
    }
  }

  void process_group(od::object object) {
    ProcessGroup group;
    for (od::field field : object) {
      const std::string key(std::string_view(field.unescaped_key()));
      od::value value = field.value();
      if (key == "pg_name") {
        group.name = string_of(value).value_or("");
      } else if (key == "pg_desc") {
        group.description = string_of(value).value_or("");
      } else if (key == "backend_config") {
        group.backend_config = string_of(value).value_or("");
      } else if (key == "pg_size") {
        group.size = integer_of(value).value_or(0);
      } else if (key == "ranks" && value.type() == od::json_type::array) {
        for (od::value rank : value.get_array()) {
          if (const auto number = integer_of(rank)) {
            group.ranks.push_back(*number);
          }
        }
      }
    }
    trace_.metadata.groups.push_back(std::move(group));
  }

  void ours(od::object object) {
    std::vector<std::string> units;
    for (od::field field : object) {
      const std::string key(std::string_view(field.unescaped_key()));
      od::value value = field.value();
      if (key == "units" && value.type() == od::json_type::array) {
        for (od::value unit : value.get_array()) {
          units.push_back(string_of(unit).value_or(""));
        }
      }
    }
    builder_.set_units(units);
  }

  void events(od::array array) {
    has_events_ = true;
    for (od::value value : array) {
      const char* at = nullptr;
      const auto error = document_->current_location().get(at);
      builder_.at(error == simdjson::SUCCESS ? static_cast<size_t>(at - text_.data()) : 0);
      if (value.type() == od::json_type::object) {
        builder_.event(value.get_object());
      } else {
        builder_.fault(Fault::kNoObject);
      }
    }
  }

  // What needs the whole file: the base time may stand behind the events.
  void finish() {
    Metadata& m = trace_.metadata;
    builder_.finish();
    if (m.base_time != 0 && builder_.first_time().value_or(0) / 1000 >= kEpochMicroseconds) {
      add_diagnostic(
          trace_.diagnostics, Severity::kNote,
          "times are of the epoch although baseTimeNanoseconds is given; the base is not added");
    } else if (m.base_time != 0) {
      add_base();
    }
    if (!m.rank) {
      m.rank = rank_of_file_name(std::filesystem::path(m.source).filename().string());
      m.rank_is_from_name = m.rank.has_value();
      add_diagnostic(trace_.diagnostics, Severity::kNote,
                     m.rank
                         ? fmt::format("the file names no rank; {} is taken from its name", *m.rank)
                         : std::string("neither the file nor its name names a rank"));
    }
  }

  void add_base() {
    const Nanoseconds base = trace_.metadata.base_time;
    int64_t left_out = 0;
    erase_if(trace_.events, [&](Event& event) {
      Nanoseconds end = 0;
      const bool fits = !__builtin_add_overflow(event.start, base, &event.start) &&
                        !__builtin_add_overflow(event.start, event.duration, &end);
      left_out += fits ? 0 : 1;
      return !fits;
    });
    if (left_out > 0) {
      add_diagnostic(trace_.diagnostics, Severity::kWarning,
                     "events left out: with the base time added their time does not fit in 64 bits",
                     left_out);
    }
  }

  std::string_view text_;
  size_t capacity_;
  Trace trace_;
  od::parser parser_;
  od::document* document_ = nullptr;
  bool has_events_ = false;
  bool has_devices_ = false;
  EventBuilder builder_;
};

}  // namespace

Trace read_kineto(const std::filesystem::path& path, const ReadOptions& options) {
  const LoadedText text = load_text(path);
  return Reader(text.view(), text.capacity(), path.string(), options).run();
}

Trace parse_kineto(std::string_view json, const std::string& source, const ReadOptions& options) {
  if (json.empty()) {
    throw InputError(source, "the file is empty");
  }
  const simdjson::padded_string padded(json);
  return Reader({padded.data(), padded.size()}, padded.size() + simdjson::SIMDJSON_PADDING, source,
                options)
      .run();
}

std::optional<int64_t> rank_of_file_name(std::string_view name) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  for (size_t at = name.find("rank"); at != std::string_view::npos;
       at = name.find("rank", at + 1)) {
    size_t i = at + 4;
    if (i < name.size() && (name[i] == '-' || name[i] == '_')) {
      ++i;
    }
    const size_t begin = i;
    while (i < name.size() && digit(name[i])) {
      ++i;
    }
    if (i > begin) {
      return scaled_decimal(name.substr(begin, i - begin), 0);
    }
  }
  return std::nullopt;
}

}  // namespace shardlens::trace
