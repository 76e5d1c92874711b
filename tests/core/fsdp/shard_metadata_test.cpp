#include "core/fsdp/unit/shard_metadata.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>

#include "core/base/error.h"
#include "core/fsdp/wrapper/flatten_params_wrapper.h"
#include "tests/core/fsdp/stack.h"

namespace shardlens::fsdp {
namespace {

using test::make_stack;
using test::Stack;
using test::StackImpl;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

class ShardMetadataTest : public testing::Test {
 protected:
  ShardMetadataTest()
      : stack(make_stack()), wrapper(flatten_params(stack.ptr(), stack->parameters())) {}
  ShardMetadata at_range(int64_t first, int64_t last) const {
    return shard_metadata(wrapper->handle(), {first, last});
  }
  static ShardMetadata expected(const std::vector<std::string>& names,
                                const std::vector<OffsetPair>& offsets) {
    return {names, std::vector<std::vector<int64_t>>(names.size(), {10, 10}),
            std::vector<int64_t>(names.size(), 100), offsets};
  }
  Stack stack;
  std::shared_ptr<FlattenParamsWrapper<StackImpl>> wrapper;
};

TEST_F(ShardMetadataTest, OffsetsOfEveryRangeInPyTorchsTable) {
  EXPECT_EQ(at_range(0, 0), expected({"0.weight"}, {{0, 0}}));
  EXPECT_EQ(at_range(0, 50), expected({"0.weight"}, {{0, 50}}));
  EXPECT_EQ(at_range(0, 99), expected({"0.weight"}, {{0, 99}}));
  EXPECT_EQ(at_range(50, 149), expected({"0.weight", "2.weight"}, {{50, 99}, {0, 49}}));
  EXPECT_EQ(at_range(50, 199), expected({"0.weight", "2.weight"}, {{50, 99}, {0, 99}}));
  EXPECT_EQ(at_range(99, 199), expected({"0.weight", "2.weight"}, {{99, 99}, {0, 99}}));
  EXPECT_EQ(at_range(100, 199), expected({"2.weight"}, {{0, 99}}));
  EXPECT_EQ(at_range(100, 299), expected({"2.weight", "4.weight"}, {{0, 99}, {0, 99}}));
  EXPECT_EQ(at_range(100, 1000), expected({"2.weight", "4.weight"}, {{0, 99}, {0, 99}}));
  EXPECT_EQ(at_range(299, 299), expected({"4.weight"}, {{99, 99}}));
}

TEST_F(ShardMetadataTest, InvalidRangesAreRefused) {
  for (const OffsetPair& range : {OffsetPair{-1, 5}, {5, -1}, {-2, -1}, {6, 5}}) {
    EXPECT_THAT([&] { (void)shard_metadata(wrapper->handle(), range); },
                ThrowsMessage<UsageError>(
                    HasSubstr("Shard the flatten parameter with an invalid offset pair")));
  }
  EXPECT_THAT(
      [&] {
        (void)shard_metadata(wrapper->handle(), {0, 1}, 3);
      },
      ThrowsMessage<UsageError>(HasSubstr("The number of padding is larger than the shard size")));
  EXPECT_NO_THROW((void)shard_metadata(wrapper->handle(), {0, 1}, 2));
}

TEST_F(ShardMetadataTest, GlobalOffsetsAreTheInverse) {
  using Offsets = std::vector<std::optional<OffsetPair>>;
  const auto global = [&](const Offsets& offsets) {
    return global_offsets(wrapper->handle(), offsets);
  };
  constexpr auto kNone = std::nullopt;
  EXPECT_EQ(global(Offsets{kNone, kNone, kNone}), OffsetPair(0, 0));
  EXPECT_EQ(global(Offsets{OffsetPair{0, 50}, kNone, kNone}), OffsetPair(0, 50));
  EXPECT_EQ(global(Offsets{OffsetPair{99, 99}, OffsetPair{0, 99}, kNone}), OffsetPair(99, 199));
  EXPECT_EQ(global(Offsets{kNone, OffsetPair{0, 99}, kNone}), OffsetPair(100, 199));
  EXPECT_EQ(global(Offsets{kNone, OffsetPair{50, 99}, OffsetPair{0, 99}}), OffsetPair(150, 299));
  EXPECT_THROW((void)global(Offsets{kNone}), UsageError);
}

TEST_F(ShardMetadataTest, ShardsOfAllRanksAreThePaddedFlatParameter) {
  const at::Tensor flat = wrapper->flat_param().detach();
  for (const int64_t ranks : {1, 2, 3, 7, 8}) {
    std::vector<at::Tensor> shards;
    int64_t held = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const FlatParamShard shard = shard_of(wrapper->handle(), rank, ranks);
      EXPECT_EQ(shard.values.numel(), (300 + ranks - 1) / ranks);
      for (const OffsetPair& pair : shard.metadata.offsets) {
        held += pair.second - pair.first + 1;
      }
      shards.push_back(shard.values);
    }
    EXPECT_EQ(held, 300);
    const at::Tensor all = at::cat(shards);
    EXPECT_TRUE(at::equal(all.narrow(0, 0, 300), flat));
    EXPECT_EQ(all.narrow(0, 300, all.numel() - 300).abs().sum().item<double>(), 0);
  }
}

TEST(ShardOfTest, RankBeyondTheLastChunkHoldsPaddingAlone) {
  // torch.chunk of 5 elements over 4 ranks: 2, 2, 1 and nothing.
  const torch::nn::Linear linear(torch::nn::LinearOptions(5, 1).bias(false));
  const auto wrapper = flatten_params(linear.ptr(), linear->parameters());
  const FlatParamShard third = shard_of(wrapper->handle(), 2, 4);
  EXPECT_EQ(third.padding, 1);
  EXPECT_THAT(third.metadata.offsets, ElementsAre(OffsetPair(4, 4)));
  const FlatParamShard last = shard_of(wrapper->handle(), 3, 4);
  EXPECT_EQ(last.values.numel(), 2);
  EXPECT_EQ(last.padding, 2);
  EXPECT_THAT(last.metadata.names, IsEmpty());
  EXPECT_THROW((void)shard_of(wrapper->handle(), 4, 4), UsageError);
}

}  // namespace
}  // namespace shardlens::fsdp
