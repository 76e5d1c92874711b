#include "sim/validate/published_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"

namespace shardlens::sim {
namespace {

using testing::HasSubstr;

const std::string kRunsHeader =
    "source,model,params,n_layers,hidden,ffn,heads,kv_heads,vocab,seq_len,microbatch,grad_accum,"
    "gpus,gpu_type,strategy,dtype,act_ckpt,torch_compile,tokens_s_gpu,peak_mem_GiB,notes\n";
const std::string kMpt =
    "here,MPT-125m,125311488,12,768,3072,12,12,50368,2048,24,3,8,A100,FULL_SHARD,bf16,none,n,"
    "134000,,\n";

PublishedRun only(const std::string& row) {
  const std::vector<PublishedRun> runs = parse_published_runs(kRunsHeader + row, "runs.csv");
  EXPECT_EQ(runs.size(), 1U);
  return runs.at(0);
}

std::string with(std::string row, const std::string& from, const std::string& to) {
  const size_t at = row.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return row.replace(at, from.size(), to);
}

TEST(PublishedRuns, ShapeFollowsFromTheNumberOfParameters) {
  const PublishedRun mpt = only(kMpt);
  EXPECT_EQ(mpt.shape.positions, 2048);
  EXPECT_TRUE(mpt.shape.tied);
  EXPECT_TRUE(mpt.shape.bias);
  EXPECT_FALSE(mpt.shape.gated);
  EXPECT_EQ(plan::parameter_count(mpt.shape), 125311488);
  const PublishedRun llama = only(
      "here,Llama-3.1-8B,8030261248,32,4096,14336,32,8,128256,8192,2,1,8,H100,FULL_SHARD,bf16,"
      "selective,n,5762,82.4,\n");
  EXPECT_TRUE(llama.shape.gated);
  EXPECT_FALSE(llama.shape.tied);
  EXPECT_FALSE(llama.shape.bias);
  EXPECT_EQ(llama.shape.positions, 0);
  EXPECT_EQ(llama.checkpointing, Checkpointing::kSelective);
  EXPECT_DOUBLE_EQ(llama.peak_gib.value(), 82.4);
  const PublishedRun in_gb = only(
      "here,Llama-3.1-8B,8030261248,32,4096,14336,32,8,128256,8192,2,1,8,H100,FULL_SHARD,bf16,"
      "selective,n,5762,82.4,memory printed (GB)\n");
  EXPECT_NEAR(in_gb.peak_gib.value(), 76.74, 0.005);
  // 8192 tokens, twice, at 5762 a second.
  EXPECT_DOUBLE_EQ(llama.step_seconds(), 2 * 8192 / 5762.0);
}

TEST(PublishedRuns, WithoutParametersTheMlpsWidthTells) {
  EXPECT_FALSE(only(with(kMpt, "125311488", "")).shape.gated);
  EXPECT_TRUE(only(with(with(kMpt, "125311488", ""), "3072", "2048")).shape.gated);
}

TEST(PublishedRuns, RowsOutOfScopeSayWhy) {
  EXPECT_EQ(only(kMpt).out_of_scope, "");
  EXPECT_EQ(only(with(kMpt, "bf16", "fp8")).out_of_scope, "fp8");
  EXPECT_EQ(only(with(kMpt, ",none,n,", ",none,y,")).out_of_scope, "torch.compile");
  EXPECT_EQ(only(with(kMpt, ",none,n,", ",none,thunder,")).out_of_scope, "compiled by thunder");
  EXPECT_EQ(only(with(kMpt, "FULL_SHARD", "FULL_SHARD+CP2")).out_of_scope, "context parallelism");
  EXPECT_EQ(only(with(kMpt, "134000", "")).out_of_scope, "sizes are missing");
  EXPECT_EQ(only(with(kMpt, ",768,", ",,")).out_of_scope, "sizes are missing");
}

// Larger sizes would overflow the number of parameters.
TEST(PublishedRuns, SizesBeyondAnyModelAreRefused) {
  const auto refused = [](const std::string& from, const std::string& to, const std::string& says) {
    try {
      only(with(kMpt, from, to));
      ADD_FAILURE() << "accepted: " << to;
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr(says));
    }
  };
  refused(",3072,", ",283333333333672,",
          "runs.csv:2: column 'ffn': expected a whole number from 1 to 1048576, found "
          "'283333333333672'");
  refused(",12,768,", ",5000,768,", "column 'n_layers': expected a whole number from 1 to 4096");
  refused(",12,12,", ",12,13,", "column 'kv_heads': expected a whole number from 1 to 12");
  const PublishedRun largest = only(
      "here,Large,1,4096,1048576,1048576,1048576,1048576,134217728,16777216,1,1,8,A100,FULL_SHARD,"
      "bf16,none,n,1,,\n");
  EXPECT_GT(plan::parameter_count(largest.shape), int64_t{1} << 54);
}

TEST(PublishedRuns, QuotedFieldsHoldCommasQuotesAndLineEnds) {
  const std::vector<PublishedRun> runs = parse_published_runs(
      kRunsHeader + with(kMpt, "134000,,", "134000,,\"a, \"\"b\"\"\nc\"") + kMpt, "runs.csv");
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_EQ(runs[0].notes, "a, \"b\"\nc");
  EXPECT_EQ(runs[0].row, 2);
  EXPECT_EQ(runs[1].row, 4);  // the line on which it begins
}

TEST(PublishedRuns, WindowsLineEndsAndBlankLinesAreRead) {
  std::string text = kRunsHeader + kMpt;
  for (size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 2) {
    text.insert(at, "\r");
  }
  const std::vector<PublishedRun> runs = parse_published_runs(text + "\r\n\n", "runs.csv");
  ASSERT_EQ(runs.size(), 1U);
  EXPECT_EQ(runs[0].notes, "");
}

TEST(PublishedRuns, IdentityIsTheSameInAnyFile) {
  const std::vector<PublishedRun> runs =
      parse_published_runs(kRunsHeader + with(kMpt, "134000", "1") + kMpt, "other.csv");
  EXPECT_EQ(runs[1].identity, only(kMpt).identity);
  EXPECT_NE(runs[0].identity, runs[1].identity);
}

void fails(const std::string& text, const std::string& message) {
  try {
    (void)parse_published_runs(text, "runs.csv");
    ADD_FAILURE() << "expected: " << message;
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr(message));
  }
}

TEST(PublishedRuns, WhatIsWrongIsNamedWithItsLine) {
  fails("", "the file is empty");
  fails("model,params\n", "no column 'source'");
  fails(kRunsHeader + "a,b\n", "runs.csv:2");
  fails(kRunsHeader + kMpt + with(kMpt, "134000", "fast"), "column 'tokens_s_gpu'");
  fails(kRunsHeader + kMpt + with(kMpt, "134000", "fast"), "runs.csv:3");
  fails(kRunsHeader + with(kMpt, ",12,768", ",12.5,768"), "column 'n_layers'");
  fails(kRunsHeader + with(kMpt, ",12,768", ",-12,768"), "column 'n_layers'");
  fails(kRunsHeader + "\"no end", "a quoted field is not closed");
}

}  // namespace
}  // namespace shardlens::sim
