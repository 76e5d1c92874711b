#include "core/json/json_values.h"

#include <cstdint>
#include <optional>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/json/json_dump.h"

namespace shardlens::plan {
namespace {

using nlohmann::json;

TEST(JsonValues, IntegersOutsideOf64BitsAreNone) {
  const auto of = [](const char* text) { return integer_of(json::parse(text)); };
  EXPECT_EQ(of("9223372036854775807"), INT64_MAX);
  EXPECT_EQ(of("-9223372036854775808"), INT64_MIN);
  EXPECT_EQ(of("9223372036854775808"), std::nullopt);  // as signed bits, -2^63
  EXPECT_EQ(of("18446744073709551615"), std::nullopt);
  EXPECT_EQ(of("18446744073709551616"), std::nullopt);
  EXPECT_EQ(of("1.0"), std::nullopt);
  EXPECT_EQ(of("\"1\""), std::nullopt);
}

TEST(JsonValues, DeepDocumentsAreNotParsed) {
  const auto nested = [](size_t levels) {
    return std::string(levels, '[') + std::string(levels, ']');
  };
  EXPECT_TRUE(try_parse_json(nested(64)));
  EXPECT_FALSE(try_parse_json(nested(65)));
  EXPECT_FALSE(try_parse_json(nested(1'000'000)));
  EXPECT_FALSE(try_parse_json("{"));
}

TEST(JsonText, NamesThatAreNotUtf8AreEscaped) {
  const json good{{"path", "größe"}, {"n", {1, 2.5, nullptr}}};
  EXPECT_EQ(json_text(good, 1), good.dump(1));
  const json bad{{"runs", {{{"source", "a\xff/b"}}, 1}}};
  EXPECT_EQ(json::parse(json_text(bad))["runs"][0]["source"], "a\\xff/b");
  EXPECT_EQ(bad["runs"][0]["source"], "a\xff/b");  // as it was
}

}  // namespace
}  // namespace shardlens::plan
