#include "core/tree/glob.h"

#include <gtest/gtest.h>

namespace shardlens::plan {
namespace {

TEST(GlobTest, StarIsExactlyOneComponent) {
  EXPECT_TRUE(glob_matches("model.layers.*", "model.layers.0"));
  EXPECT_TRUE(glob_matches("model.layers.*", "model.layers.11"));
  EXPECT_FALSE(glob_matches("model.layers.*", "model.layers"));
  EXPECT_FALSE(glob_matches("model.layers.*", "model.layers.0.mlp"));
  EXPECT_TRUE(glob_matches("*.layers.*.mlp", "model.layers.3.mlp"));
  EXPECT_FALSE(glob_matches("*", ""));
  EXPECT_TRUE(glob_matches("*", "lm_head"));
}

TEST(GlobTest, DoubleStarIsAnyNumberOfComponents) {
  EXPECT_TRUE(glob_matches("**", ""));
  EXPECT_TRUE(glob_matches("**", "a.b.c"));
  EXPECT_TRUE(glob_matches("**.mlp", "mlp"));
  EXPECT_TRUE(glob_matches("**.mlp", "model.layers.0.mlp"));
  EXPECT_FALSE(glob_matches("**.mlp", "model.layers.0.mlp.up_proj"));
  EXPECT_TRUE(glob_matches("model.**", "model"));
  EXPECT_TRUE(glob_matches("model.**.up_proj", "model.layers.0.mlp.up_proj"));
  EXPECT_TRUE(glob_matches("a.**.b.**.c", "a.x.b.y.z.b.c"));
  EXPECT_FALSE(glob_matches("a.**.b.**.c", "a.x.y.z.c"));
}

TEST(GlobTest, EmptyIsTheRootAlone) {
  EXPECT_TRUE(glob_matches("", ""));
  EXPECT_FALSE(glob_matches("", "model"));
  EXPECT_FALSE(glob_matches("model", ""));
}

TEST(GlobTest, StarWithinAComponentIsAnyCharacters) {
  EXPECT_TRUE(glob_matches("layers.1*", "layers.12"));
  EXPECT_TRUE(glob_matches("*_proj", "up_proj"));
  EXPECT_FALSE(glob_matches("*_proj", "up.proj"));
  EXPECT_FALSE(glob_matches("layers.1*", "layers.2"));
}

TEST(GlobTest, MalformedGlobsAreExplained) {
  EXPECT_EQ(glob_problem(""), "");
  EXPECT_EQ(glob_problem("a.**.b*"), "");
  EXPECT_NE(glob_problem("a..b"), "");
  EXPECT_NE(glob_problem("a."), "");
  EXPECT_NE(glob_problem("."), "");
  EXPECT_NE(glob_problem("a.**b"), "");
}

// A glob that backtracks badly in a naive matcher.
TEST(GlobTest, ManyStarsStayFast) {
  std::string glob;
  std::string name;
  for (int i = 0; i < 200; ++i) {
    glob += "**.a.";
    name += "a.";
  }
  EXPECT_FALSE(glob_matches(glob + "b", name + "c"));
}

}  // namespace
}  // namespace shardlens::plan
