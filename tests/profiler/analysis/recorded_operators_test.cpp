#include "profiler/analysis/recover/recorded_operators.h"

#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace shardlens::analysis {
namespace {

plan::Operator recorded(const std::string& name,
                        const std::string& dims,
                        Section section = Section::kForward) {
  trace::Trace trace;
  const uint32_t event =
      trace.add_complete(trace::Category::kCpuOp, name, trace.track(1, 1), 0, 10);
  trace.set_args(event, fmt::format(R"({{"Input Dims": [{}]}})", dims));
  return recorded_operator(trace, trace.events[event], section).op;
}

TEST(RecordedOperatorsTest, SizesFollowFromShapes) {
  const plan::Operator mm = recorded("aten::mm", "[3, 5], [5, 7]");
  EXPECT_EQ(mm.m, 3);
  EXPECT_EQ(mm.k, 5);
  EXPECT_EQ(mm.n, 7);
  EXPECT_EQ(mm.flops, 2 * 3 * 5 * 7);
  EXPECT_EQ(mm.read, 4 * (3 * 5 + 5 * 7));
  EXPECT_EQ(mm.written, 4 * 3 * 7);
  const plan::Operator attention =
      recorded("aten::scaled_dot_product_attention", "[2, 4, 8, 16], [2, 4, 9, 16]");
  EXPECT_EQ(attention.batch, 2 * 4);
  EXPECT_EQ(attention.flops, 4 * 8 * 8 * 9 * 16);
}

// A checkpoint runs attention's forward again in backward, which DDP's traces do not tell apart.
// The backward itself takes the gradient first, and computes five products instead of two.
TEST(RecordedOperatorsTest, AttentionThatRunsAgainInBackwardIsAForward) {
  const std::string name = "aten::_scaled_dot_product_flash_attention_for_cpu";
  const std::string inputs = "[2, 4, 8, 16], [2, 4, 9, 16], [2, 4, 9, 16]";
  const plan::Operator again = recorded(name, inputs, Section::kBackward);
  EXPECT_FALSE(plan::is_attention_backward(again));
  EXPECT_EQ(again.n, 9);
  EXPECT_EQ(again.flops, 2 * 2 * 8 * 8 * 9 * 16);
  const plan::Operator backward =
      recorded(name + "_backward", "[2, 4, 8, 16], " + inputs, Section::kBackward);
  EXPECT_TRUE(plan::is_attention_backward(backward));
  EXPECT_EQ(backward.n, 9);
  EXPECT_EQ(backward.flops, 5 * 2 * 8 * 8 * 9 * 16);
}

// Products of such sizes do not fit in 64 bits.
TEST(RecordedOperatorsTest, ImpossibleShapesHaveNoSizes) {
  for (const auto& [name, dims] : {
           std::pair{"aten::mm", "[4000000000, 4000000000], [4000000000, 4000000000]"},
           {"aten::mm", "[9223372036854775807, 2], [2, 3]"},
           {"aten::mm", "[-3, 5], [5, 7]"},
           {"aten::bmm", "[9000000000000000, 3, 5], [9000000000000000, 5, 7]"},
           {"aten::scaled_dot_product_attention",
            "[9000000000000000, 9000000000000000, 8, 16], [2, 4, 9, 16]"},
           {"aten::scaled_dot_product_attention",
            "[2, 4, 9000000000000000, 16], [2, 4, 9000000000000000, 16]"},
       }) {
    const plan::Operator op = recorded(name, dims);
    EXPECT_EQ(op.flops, 0) << name << dims;
    EXPECT_GE(op.read, 0) << name << dims;
    EXPECT_LE(op.read, plan::kMostOfOperator) << name << dims;
  }
  const std::string large = "[4294967296, 65536]";  // 2^48 elements; a hundred thousand tensors
  std::string many = large;
  for (int i = 0; i < 100000; ++i) {
    many += ", " + large;
  }
  EXPECT_EQ(recorded("aten::cat", many).read, plan::kMostOfOperator);
}

}  // namespace
}  // namespace shardlens::analysis
