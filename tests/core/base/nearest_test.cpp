#include "core/base/nearest.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace shardlens {
namespace {

const std::vector<std::string> kSpecs{"8xH100-96", "8xH100", "8xA100-80"};

TEST(NearestTest, ATypingErrorIsNear) {
  EXPECT_EQ(nearest_name("8xH10O", kSpecs), "8xH100");
  EXPECT_EQ(nearest_name("8xZ9", kSpecs), "");
}

TEST(NearestTest, APartOfANameMeansTheShortestNameThatHasIt) {
  EXPECT_EQ(nearest_name("h100", kSpecs), "8xH100");
  EXPECT_EQ(nearest_name("layers.0", std::vector<std::string>{"model.layers.0", "lm_head"}),
            "model.layers.0");
  EXPECT_EQ(nearest_name("xH", kSpecs), "");  // too short to say anything
}

}  // namespace
}  // namespace shardlens
