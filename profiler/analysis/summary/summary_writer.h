#pragma once

#include <concepts>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "profiler/analysis/summary/summary_codec.h"

namespace shardlens::analysis {

// Writes the fields of one object.
class SummaryWriter {
 public:
  static constexpr bool kReads = false;
  using Json = nlohmann::ordered_json;

  SummaryWriter(Json& out, SummaryLimits& limits) : out_(out), limits_(limits) {
    out_ = Json::object();
  }

  template <typename T>
  void field(const std::string& key, T& value) {
    out_[key] = encoded(value);
  }
  void time(const std::string& key, Nanoseconds& value) {
    out_[key] = limits_.step(limits_.base, value);
  }
  template <typename Each>
  void object(const std::string& key, const Each& each) {
    SummaryWriter inside(out_[key], limits_);
    each(inside);
  }
  template <typename T, typename Each>
  void optional(const std::string& key, std::optional<T>& value, const Each& each) {
    if (!value) {
      out_[key] = nullptr;
      return;
    }
    SummaryWriter inside(out_[key], limits_);
    each(inside, *value);
  }
  template <typename T, typename Each>
  void list(const std::string& key, std::vector<T>& rows, const Each& each) {
    Json& all = out_[key] = Json::array();
    for (T& row : rows) {
      SummaryWriter inside(all.emplace_back(), limits_);
      each(inside, row);
    }
  }
  // Rows as columns: `each` calls numbers(), indices(), times() and words().
  template <typename T, typename Each>
  void table(const std::string& key, std::vector<T>& rows, const Each& each) {
    if (rows.size() > SummaryLimits::kMostRows) {
      limits_.fail(fmt::format("more than {} rows of '{}'", SummaryLimits::kMostRows, key));
    }
    out_[key] = Json::object();
    each(*this, out_[key], rows);
  }
  template <typename T, typename Get>
  void numbers(Json& table, const std::string& key, std::vector<T>& rows, const Get& get) {
    Json& column = table[key] = Json::array();
    for (T& row : rows) {
      column.push_back(encoded(get(row)));
    }
  }
  // kNone is null.
  template <typename T, typename Get>
  void indices(Json& table, const std::string& key, std::vector<T>& rows, const Get& get) {
    Json& column = table[key] = Json::array();
    for (T& row : rows) {
      column.push_back(get(row) == kNone ? Json(nullptr) : encoded(get(row)));
    }
  }
  // Each as the difference from the one before.
  template <typename T, typename Get>
  void times(Json& table, const std::string& key, std::vector<T>& rows, const Get& get) {
    Json& column = table[key] = Json::array();
    Nanoseconds before = limits_.base;
    for (T& row : rows) {
      const std::optional<Nanoseconds> time = get(row);
      column.push_back(time ? Json(limits_.step(before, *time)) : Json(nullptr));
      before = time.value_or(before);
    }
  }
  template <typename T, typename Get>
  void words(Json& table, const std::string& key, std::vector<T>& rows, const Get& get) {
    std::map<std::string, int64_t> known;
    Json names = Json::array(), numbers = Json::array();
    for (T& row : rows) {
      const auto word = optional_word(get(row));
      if (!word) {
        numbers.push_back(-1);
        continue;
      }
      const auto [it, fresh] = known.try_emplace(*word, known.size());
      if (fresh) {
        names.push_back(*word);
      }
      numbers.push_back(it->second);
    }
    table[key] = Json{{"words", std::move(names)}, {"rows", std::move(numbers)}};
  }

 private:
  template <typename T>
  static std::optional<std::string> optional_word(const T& value) {
    if constexpr (Word<T>) {
      return word_of(value);
    } else {
      return value ? std::optional(word_of(*value)) : std::nullopt;
    }
  }
  template <typename T>
  Json encoded(const T& value) {
    if constexpr (std::same_as<T, bool>) {
      return value;
    } else if constexpr (std::integral<T>) {
      limits_.count(static_cast<int64_t>(value));
      return value;
    } else if constexpr (std::floating_point<T>) {
      return value;
    } else if constexpr (Word<T>) {
      return word_of(value);
    } else if constexpr (requires { value.has_value(); }) {
      return value ? encoded(*value) : Json(nullptr);
    } else {
      Json out = Json::array();
      for (const auto& each : value) {
        out.push_back(encoded(each));
      }
      return out;
    }
  }

  Json& out_;
  SummaryLimits& limits_;
};

}  // namespace shardlens::analysis
