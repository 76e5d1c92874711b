#include "core/base/printable.h"

#include <string>

#include <gtest/gtest.h>

namespace shardlens {
namespace {

TEST(Printable, KeepsTextOfAnyLanguage) {
  for (const std::string text : {"model.layers.0", "größe 名前 🙂", "a\tb", ""}) {
    EXPECT_EQ(printable(text), text == "a\tb" ? "a?b" : text);
  }
}

TEST(Printable, ReplacesWhatATerminalWouldObey) {
  EXPECT_EQ(printable("a\x1b[31mb\x7f\r\n"), "a?[31mb???");
  EXPECT_EQ(printable("\xc2\x9b"
                      "31m"),
            "?31m");  // U+009B, the one-character ESC [
  EXPECT_EQ(printable("a\xe2\x80\xae"
                      "b"),
            "a?b");  // U+202E, right to left from here on
  EXPECT_EQ(printable("a\xe2\x81\xa6"
                      "b"),
            "a?b");  // U+2066
  EXPECT_EQ(printable("a\xe2\x80\xa8"
                      "b"),
            "a?b");  // U+2028, a line separator
  EXPECT_EQ(printable(std::string("a\0b", 3)), "a?b");
}

TEST(Printable, ReplacesBytesThatAreNotUtf8) {
  EXPECT_EQ(printable("a\xff"
                      "b\x80"),
            "a?b?");
  EXPECT_EQ(printable("\xc0\xaf"), "??");            // "/" in two bytes
  EXPECT_EQ(printable("\xed\xa0\x80"), "???");       // a surrogate
  EXPECT_EQ(printable("\xf5\x80\x80\x80"), "????");  // beyond U+10FFFF
  EXPECT_EQ(printable("a\xe5\x90"), "a??");          // cut off
}

TEST(EscapedBytes, KeepsNamesThatDifferApart) {
  EXPECT_EQ(escaped_bytes("größe\n"), "größe\n");
  EXPECT_EQ(escaped_bytes("a\xff"
                          "b\x80"),
            "a\\xffb\\x80");
  EXPECT_EQ(escaped_bytes("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // a surrogate
}

TEST(Printable, KeepsLineEndsWhereAsked) {
  EXPECT_EQ(printable("a\nb\r\n", LineEnds::kKept), "a\nb?\n");
}

TEST(Elided, KeepsBothEnds) {
  EXPECT_EQ(elided("abcdef", 6), "abcdef");
  EXPECT_EQ(elided("abcdefg", 6), "ab…efg");
  EXPECT_EQ(elided("äöüßàé", 5), "äö…àé");
  EXPECT_EQ(code_points(elided(std::string(10000, 'x'), 160)), 160U);
}

}  // namespace
}  // namespace shardlens
