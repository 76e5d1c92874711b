#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "core/base/shown.h"

namespace shardlens {

template <class... T>
class ShownFormat;

// How show() formats a value: strings and paths escaped, Shown as it is, numbers as numbers. Other
// types do not compile: for each it would have to be said which part is untrusted.
class ShownParts {
 public:
  static constexpr size_t kLongest = 4000;  // code points of one string

  template <class T>
  static auto of(const T& value) {
    if constexpr (std::is_same_v<T, Shown>) {
      return std::string_view(value.text());
    } else if constexpr (std::is_same_v<T, std::filesystem::path>) {
      return of(value.native());
    } else if constexpr (std::is_same_v<T, char>) {
      return escaped(std::string_view(&value, 1));
    } else if constexpr (std::is_arithmetic_v<T>) {
      return value;
    } else {
      static_assert(std::is_convertible_v<const T&, std::string_view>,
                    "show() takes strings, paths, Shown and numbers");
      return elided(escaped(value), kLongest);
    }
  }

 private:
  template <class... T>
  friend Shown show(ShownFormat<std::type_identity_t<T>...> format, const T&... values);

  template <class... T>
  static Shown formatted(std::string_view format, const T&... parts) {
    return {Shown::Escaped(), fmt::vformat(format, fmt::make_format_args(parts...))};
  }
};

template <class T>
using ShownPart = decltype(ShownParts::of(std::declval<const T&>()));

// A format for values of these types: a literal, checked when it is compiled.
template <class... T>
class ShownFormat {
 public:
  template <class S>
  requires std::is_convertible_v<const S&, std::string_view>
  // NOLINTNEXTLINE(google-explicit-constructor): a format is written as a literal.
  consteval ShownFormat(const S& text) : text_(text) {
    (void)fmt::format_string<ShownPart<T>...>(text);
  }
  [[nodiscard]] constexpr std::string_view text() const { return text_; }

 private:
  std::string_view text_;
};

// `format`, as of fmt::format, with the values escaped.
template <class... T>
[[nodiscard]] Shown show(ShownFormat<std::type_identity_t<T>...> format, const T&... values) {
  return ShownParts::formatted(format.text(), ShownParts::of(values)...);
}

// The values with `separator` between, each escaped.
template <class Range>
[[nodiscard]] Shown show_joined(const Range& values, Literal separator) {
  Shown out;
  bool first = true;
  for (const auto& each : values) {
    out += first ? Shown() : Shown(separator);
    out += show("{}", each);
    first = false;
  }
  return out;
}

}  // namespace shardlens
