#include "core/checkpoint/checkpoint_index.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"

namespace shardlens::checkpoint {
namespace {

using testing::HasSubstr;

constexpr const char* kGood =
    R"({"shardlens_checkpoint": 1, "step": 2, "samples": 24, "seq": 8, "scaler": null,
  "origin": {"world_size": 2, "replicate": 1, "shard": 2, "dialect": "fsdp2", "layout": "flat", "optimizer": "sgd"},
  "files": [{"name": "rank00000.safetensors", "bytes": 100}, {"name": "rank00001.safetensors", "bytes": 90}],
  "tensors": [{"name": "w", "dtype": "F32", "shape": [3, 2], "pieces": [
    {"file": 0, "offset": [0, 0], "shape": [2, 2], "crc32": "0000ffff"}, {"file": 1, "offset": [2, 0], "shape": [1, 2]}]}]})";

std::string refusal(const std::string& from, const std::string& to) {
  std::string text = kGood;
  text.replace(text.find(from), from.size(), to);
  try {
    (void)parse_index(text, "c.json");
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(CheckpointIndexTest, IsRead) {
  const Index index = parse_index(kGood, "c.json");
  EXPECT_EQ(index.position.samples, 24);
  EXPECT_EQ(index.tensors.at(0).pieces.at(0).crc32, 0xffffU);
  EXPECT_EQ(index.tensors.at(0).pieces.at(1).crc32, std::nullopt);
  EXPECT_EQ(parse_index(to_json(index), "again"), index);
}

TEST(CheckpointIndexTest, WhatIsWrongIsNamed) {
  EXPECT_THAT(refusal("\"step\": 2", "\"step\": -2"), HasSubstr("c.json#/step"));
  EXPECT_THAT(refusal("point\": 1", "point\": 2"), HasSubstr("c.json#/shardlens_checkpoint"));
  EXPECT_THAT(refusal("\"file\": 1", "\"file\": 2"), HasSubstr("c.json#/tensors/0/pieces/1/file"));
  EXPECT_THAT(refusal("[2, 0]", "[3, 0]"),
              HasSubstr("the piece at [3, 0] of shape [1, 2] is not inside tensor 'w' [3, 2]"));
  EXPECT_THAT(refusal("\"shape\": [2, 2]", "\"shape\": [1, 2]"),
              HasSubstr("tensor 'w' has 6 elements, its pieces have 4"));
  EXPECT_THAT(refusal("0000ffff", "ffff"), HasSubstr("expected 8 hexadecimal digits"));
  EXPECT_THAT(refusal("\"rank00001.", "\"../rank00001."),
              HasSubstr("is not the name of a file next to the index"));
  EXPECT_THAT(refusal("\"F32\"", "\"F33\""), HasSubstr("unknown dtype 'F33'"));
  EXPECT_THAT(refusal("[3, 2]", "[9007199254740992, 9007199254740992]"),
              HasSubstr("too many elements"));
}

TEST(CheckpointIndexTest, NamesOfTensorsNameTheirParameter) {
  EXPECT_EQ(parameter_of("a.weight"), "a.weight");
  EXPECT_EQ(parameter_of("state.a.weight.exp_avg"), "a.weight");
  EXPECT_EQ(parameter_of("rank12.state.a.weight.step"), "a.weight");
  EXPECT_EQ(parameter_of("rank.weight"), "rank.weight");
  EXPECT_TRUE(is_parameter("rankings.weight"));
  EXPECT_FALSE(is_parameter("rank0.weight"));
  EXPECT_FALSE(is_parameter("state.a.weight.step"));
}

}  // namespace
}  // namespace shardlens::checkpoint
