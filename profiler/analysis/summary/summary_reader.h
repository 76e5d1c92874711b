#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "profiler/analysis/summary/summary_codec.h"

namespace shardlens::analysis {

// Reads what SummaryWriter wrote. Errors: InputError for anything else.
class SummaryReader {
 public:
  static constexpr bool kReads = true;
  using Json = const nlohmann::ordered_json;

  SummaryReader(Json& in, SummaryLimits& limits) : in_(in), limits_(limits) {
    if (!in.is_object()) {
      limits.fail("expected an object");
    }
  }

  template <typename T>
  void field(const std::string& key, T& value) {
    decode(at(in_, key), key, value);
  }
  void time(const std::string& key, Nanoseconds& value) {
    int64_t step = 0;
    integer(at(in_, key), key, step);
    value = limits_.after(limits_.base, step);
  }
  template <typename Each>
  void object(const std::string& key, const Each& each) {
    SummaryReader inside(at(in_, key), limits_);
    each(inside);
  }
  template <typename T, typename Each>
  void optional(const std::string& key, std::optional<T>& value, const Each& each) {
    value.reset();
    if (Json& found = at(in_, key); !found.is_null()) {
      SummaryReader inside(found, limits_);
      each(inside, value.emplace());
    }
  }
  template <typename T, typename Each>
  void list(const std::string& key, std::vector<T>& rows, const Each& each) {
    rows.clear();
    for (Json& one : array(at(in_, key), key)) {
      SummaryReader inside(one, limits_);
      each(inside, rows.emplace_back());
    }
  }
  template <typename T, typename Each>
  void table(const std::string& key, std::vector<T>& rows, const Each& each) {
    Json& found = at(in_, key);
    if (!found.is_object() || found.empty()) {
      fail(key, "is no table");
    }
    Json& first = found.front();
    const size_t size = array(first.is_object() ? at(first, "rows") : first, key).size();
    rows.clear();
    rows.resize(size);
    each(*this, found, rows);
  }
  template <typename T, typename Get>
  void numbers(Json& table, const std::string& key, std::vector<T>& rows, const Get& get) {
    Json& column = column_of(at(table, key), key, rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      decode(column[i], key, get(rows[i]));
    }
  }
  template <typename T, typename Get>
  void indices(Json& table, const std::string& key, std::vector<T>& rows, const Get& get) {
    Json& column = column_of(at(table, key), key, rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      std::optional<uint32_t> index;
      decode(column[i], key, index);
      get(rows[i]) = index.value_or(kNone);
    }
  }
  template <typename T, typename Get>
  void times(Json& table, const std::string& key, std::vector<T>& rows, const Get& get) {
    Json& column = column_of(at(table, key), key, rows.size());
    Nanoseconds before = limits_.base;
    for (size_t i = 0; i < rows.size(); ++i) {
      auto& value = get(rows[i]);
      if constexpr (requires { value.has_value(); }) {
        value.reset();
        if (column[i].is_null()) {
          continue;
        }
      }
      int64_t step = 0;
      integer(column[i], key, step);
      value = before = limits_.after(before, step);
    }
  }
  template <typename T, typename Get>
  void words(Json& table, const std::string& key, std::vector<T>& rows, const Get& get) {
    using Value = std::remove_reference_t<decltype(get(rows.front()))>;
    Json& found = at(table, key);
    if (!found.is_object()) {
      fail(key, "is no column of words");
    }
    std::vector<std::string> names;
    decode(at(found, "words"), key, names);
    Json& column = column_of(at(found, "rows"), key, rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      int64_t number = 0;
      integer(column[i], key, number);
      Value& value = get(rows[i]);
      if constexpr (!Word<Value>) {
        if (number == -1) {
          value.reset();
          continue;
        }
      }
      if (number < 0 || number >= static_cast<int64_t>(names.size())) {
        fail(key, "has a number that names no word");
      }
      const std::string& word = names[static_cast<size_t>(number)];
      if constexpr (Word<Value>) {
        value = from_word<Value>(word, limits_);
      } else {
        value = from_word<typename Value::value_type>(word, limits_);
      }
    }
  }
  [[noreturn]] void fail(std::string_view key, std::string_view what) const {
    limits_.fail(fmt::format("the summary is damaged: '{}' {}", key, what));
  }

 private:
  Json& at(Json& object, const std::string& key) const {
    const auto found = object.find(key);
    if (found == object.end()) {
      fail(key, "is missing");
    }
    return *found;
  }
  Json& array(Json& json, const std::string& key) const {
    if (!json.is_array() || json.size() > SummaryLimits::kMostRows) {
      fail(key, json.is_array() ? "has too many rows" : "is no list");
    }
    return json;
  }
  Json& column_of(Json& json, const std::string& key, size_t size) const {
    if (array(json, key).size() != size) {
      fail(key, "has another length than the columns before it");
    }
    return json;
  }
  void integer(Json& json, const std::string& key, int64_t& value) const {
    if (!json.is_number_integer() ||
        (json.is_number_unsigned() && json.get<uint64_t>() > uint64_t{1} << 62)) {
      fail(key, "is no integer");
    }
    value = json.get<int64_t>();
  }
  template <typename T>
  void decode(Json& json, const std::string& key, T& value) {
    if constexpr (std::same_as<T, bool>) {
      if (!json.is_boolean()) {
        fail(key, "is neither true nor false");
      }
      value = json.get<bool>();
    } else if constexpr (std::integral<T>) {
      int64_t wide = 0;
      integer(json, key, wide);
      limits_.count(wide);
      if (!std::in_range<T>(wide)) {
        fail(key, "is out of its range");
      }
      value = static_cast<T>(wide);
    } else if constexpr (std::floating_point<T>) {
      if (!json.is_number() || !std::isfinite(json.get<double>())) {
        fail(key, "is no finite number");
      }
      value = json.get<double>();
    } else if constexpr (Word<T>) {
      if (!json.is_string()) {
        fail(key, "is no text");
      }
      value = from_word<T>(json.get_ref<const std::string&>(), limits_);
    } else if constexpr (requires { value.has_value(); }) {
      value.reset();
      if (!json.is_null()) {
        decode(json, key, value.emplace());
      }
    } else {
      value.clear();
      for (Json& each : array(json, key)) {
        typename T::value_type one{};
        decode(each, key, one);
        value.push_back(std::move(one));
      }
    }
  }

  Json& in_;
  SummaryLimits& limits_;
};

}  // namespace shardlens::analysis
