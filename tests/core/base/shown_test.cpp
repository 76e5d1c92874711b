#include "core/base/shown.h"

#include <filesystem>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/base/show.h"

namespace shardlens {
namespace {

TEST(Escaped, KeepsTextOfAnyLanguage) {
  for (const std::string text :
       {"model.layers.0", "größe 名前 🙂 ⚠️", "a: b::c", "C# #1", ""}) {
    EXPECT_EQ(escaped(text), text);
  }
}

TEST(Escaped, EscapesWhatATerminalWouldObey) {
  EXPECT_EQ(escaped("a\x1b[31mb\x7f\r\n\t"), "a\\x1b[31mb\\x7f\\r\\n\\t");
  // U+009B, the one-character ESC [
  EXPECT_EQ(escaped("\xc2\x9b"
                    "31m"),
            "\\u{9b}31m");
  // U+202E, right to left from here on, and the isolate U+2066
  EXPECT_EQ(escaped("a\xe2\x80\xae"
                    "b\xe2\x81\xa6"),
            "a\\u{202e}b\\u{2066}");
  EXPECT_EQ(escaped("a\xe2\x80\xa8"
                    "b\xc2\x85"),
            "a\\u{2028}b\\u{85}");  // line ends
  EXPECT_EQ(escaped(std::string("a\0b", 3)), "a\\x00b");
}

TEST(Escaped, EscapesWhatIsInvisible) {
  EXPECT_EQ(escaped("a\xe2\x80\x8b"
                    "b\xc2\xad"),
            "a\\u{200b}b\\u{ad}");
  EXPECT_EQ(escaped("\xf3\xa0\x81\x81\xf3\xa0\x84\x80"), "\\u{e0041}\\u{e0100}");  // tags
  EXPECT_EQ(escaped("\xe3\x85\xa4\xef\xbb\xbf"), "\\u{3164}\\u{feff}");
}

TEST(Escaped, EscapesBytesThatAreNotUtf8) {
  EXPECT_EQ(escaped("a\xff"
                    "b\x80"),
            "a\\xffb\\x80");
  EXPECT_EQ(escaped("\xc0\xaf"), "\\xc0\\xaf");                    // "/" in two bytes
  EXPECT_EQ(escaped("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // a surrogate
  EXPECT_EQ(escaped("\xf5\x80\x80\x80"), "\\xf5\\x80\\x80\\x80");  // beyond U+10FFFF
  EXPECT_EQ(escaped("a\xe5\x90"), "a\\xe5\\x90");                  // cut off
}

TEST(EscapedBytes, KeepsNamesThatDifferApart) {
  EXPECT_EQ(escaped_bytes("größe\n"), "größe\n");
  EXPECT_EQ(escaped_bytes("a\xff"
                          "b\x80"),
            "a\\xffb\\x80");
  EXPECT_EQ(escaped_bytes("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // a surrogate
}

TEST(Escaped, EscapesWhatARunnerWouldObey) {
  EXPECT_EQ(escaped("::error::x"), "\\x3a:error::x");
  EXPECT_EQ(escaped(" \xc2\xa0::error::x"), " \xc2\xa0\\x3a:error::x");  // a runner skips spaces
  EXPECT_EQ(escaped("a ##vso[task.x]"), "a #\\x23vso[task.x]");
  EXPECT_EQ(escaped("##[error]x"), "#\\x23[error]x");
  EXPECT_EQ(escaped("#[error]x"), "\\x23[error]x");  // after another "#" of ours
}

TEST(Escaped, ChangesNothingTheSecondTime) {
  for (const std::string text : {"\x1b\n::a", "::a", "##vso[a]", "\xff\xe2\x80\xae", "a\\nb"}) {
    EXPECT_EQ(escaped(escaped(text)), escaped(text));
  }
}

TEST(Elided, KeepsBothEnds) {
  EXPECT_EQ(elided("abcdef", 6), "abcdef");
  EXPECT_EQ(elided("abcdefg", 6), "ab…efg");
  EXPECT_EQ(elided("äöüßàé", 5), "äö…àé");
  EXPECT_EQ(code_points(elided(std::string(10000, 'x'), 160)), 160U);
}

TEST(Show, EscapesStringsOfEveryTypeAndNothingElse) {
  const std::string name = "a\nb";
  const std::filesystem::path path = "c\rd";
  EXPECT_EQ(show("{}\n{} {} {} {:.1f} {:<6}|", name, path, name.c_str(), 3, 0.25, std::string("\t"))
                .text(),
            "a\\nb\nc\\rd a\\nb 3 0.2 \\t    |");
  EXPECT_EQ(show("{}", show("{}\n", name)).text(), "a\\nb\n");
  EXPECT_EQ(show("{}", '\n').text(), "\\n");
  EXPECT_EQ(show_joined(std::vector<std::string>{"a", "\n"}, ",\n").text(), "a,\n\\n");
  EXPECT_EQ(code_points(show("{}", std::string(10000, 'x')).text()), 4000U);
}

TEST(Shown, IsMadeFromNoString) {
  static_assert(!std::is_constructible_v<Shown, std::string>);
  static_assert(!std::is_constructible_v<Shown, std::string_view>);
  static_assert(!std::is_constructible_v<Shown, const char*>);
  static_assert(!std::is_assignable_v<Shown&, std::string>);
  EXPECT_EQ(("a" + Shown("\n") + "b").text(), "a\nb");
}

TEST(Error, EscapesAMessageThatIsAString) {
  EXPECT_STREQ(UsageError(std::string("a\x1b\nb")).what(), "a\\x1b\\nb");
  EXPECT_STREQ(InputError("f\n", "no\r").what(), "f\\n: no\\r");
  EXPECT_STREQ(UsageError(show("{}\nrun", std::string("\n"))).what(), "\\n\nrun");
}

}  // namespace
}  // namespace shardlens
