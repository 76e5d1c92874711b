#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace shardlens {

// `text` on one line that changes neither what a terminal shows after it nor what a CI runner does.
// Escaped are control and format characters, others without a picture, line and paragraph
// separators ("\n", "\x1b", "\u{202e}"), bytes that are not UTF-8 ("\xff"), and what begins a
// command of a runner: a colon in front, and the "#" of "##[" or "##vso[". A backslash stays, so
// that escaping twice changes nothing.
// Source  actions/runner ActionCommand.cs ("::" at the start of a line, "##[" anywhere),
//         microsoft/azure-pipelines-agent Command.cs ("##vso[" anywhere).
[[nodiscard]] std::string escaped(std::string_view text);

// `text` with "\xNN" for each byte that is not UTF-8, for JSON.
[[nodiscard]] std::string escaped_bytes(std::string_view text);

// UTF-8 `text`, or its begin and end with "…" between if it has more than `most` code points, at
// least 3.
[[nodiscard]] std::string elided(std::string_view text, size_t most);

// Number of code points of UTF-8 `text`.
[[nodiscard]] size_t code_points(std::string_view text);

// Text of the program itself: only a string literal becomes one.
class Literal {
 public:
  template <size_t N>
  // NOLINTNEXTLINE(google-explicit-constructor): a literal is written as one.
  consteval Literal(const char (&text)[N]) : text_(text, N - 1) {}
  [[nodiscard]] constexpr std::string_view view() const { return text_; }

 private:
  std::string_view text_;
};

// Text for people, which stdout and stderr take (core/base/standard_output.h). It is made by show()
// (core/base/show.h), which escapes every string that it is given, or from literals; so nothing
// untrusted is in it raw. It becomes a std::string, but no string becomes it.
class Shown {
 public:
  Shown() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): a literal is written as one.
  Shown(Literal text) : text_(text.view()) {}

  [[nodiscard]] const std::string& text() const { return text_; }
  // NOLINTNEXTLINE(google-explicit-constructor): text that is safe to show is safe to copy.
  operator const std::string&() const { return text_; }
  [[nodiscard]] bool empty() const { return text_.empty(); }

  Shown& operator+=(const Shown& more) {
    text_ += more.text_;
    return *this;
  }
  Shown& operator+=(Literal more) {
    text_ += more.view();
    return *this;
  }
  friend bool operator==(const Shown& a, const Shown& b) = default;
  friend Shown operator+(Shown first, const Shown& second) { return first += second; }
  friend Shown operator+(Shown first, Literal second) { return first += second; }
  friend Shown operator+(Literal first, const Shown& second) { return Shown(first) += second; }

  // At most `most` code points of it, as elided().
  [[nodiscard]] Shown shortened(size_t most) const { return {Escaped(), elided(text_, most)}; }

 private:
  friend Shown as_shown(std::string_view text);
  friend class ShownParts;
  friend class Error;
  struct Escaped {};
  Shown(Escaped /*unused*/, std::string text) : text_(std::move(text)) {}
  std::string text_;
};

// One string, escaped.
[[nodiscard]] inline Shown as_shown(std::string_view text) {
  return {Shown::Escaped(), escaped(text)};
}

}  // namespace shardlens
