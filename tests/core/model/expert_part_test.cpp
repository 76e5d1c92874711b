#include <algorithm>
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/model/mesh_support.h"
#include "core/model/step_workload.h"
#include "core/plan/resolve.h"

namespace shardlens::plan {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

// One layer: H 64, I 128, 8 experts of which a token has 2.
constexpr int64_t kHidden = 64, kInner = 128, kExperts = 8, kPerToken = 2;
constexpr int64_t kBatch = 2, kSeq = 64, kRows = kBatch * kSeq * kPerToken;

ModelConfig sparse_model(const std::string& keys = R"("model_type": "mixtral",
                                                     "num_local_experts": 8)") {
  return parse_model_config(fmt::format(R"({{"hidden_size": 64, "intermediate_size": 128,
      "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4,
      "vocab_size": 256, "max_position_embeddings": 1024, "num_experts_per_tok": 2, {}}})",
                                        keys),
                            "config.json");
}

struct ExpertStep {
  ResolvedPlan plan;
  Workload workload;
};

ExpertStep expert_step(const std::string& mesh,
                       int64_t world,
                       double skew = 0,
                       const ModelConfig& config = sparse_model(),
                       const std::string& keys = "") {
  const std::string text = fmt::format(R"({{"version": 1, "mesh": {{{}}}{}}})", mesh, keys);
  ExpertStep out;
  out.plan = resolve(parse_plan(text, "plan.json"), module_tree(config), world);
  out.workload =
      step_workload(config, out.plan, {.batch = kBatch, .seq = kSeq, .expert_skew = skew});
  return out;
}

std::vector<Communication> token_exchanges(const Workload& workload) {
  std::vector<Communication> out;
  std::ranges::copy_if(workload.communications, std::back_inserter(out),
                       [](const Communication& each) { return each.purpose == Purpose::kTokens; });
  return out;
}

int64_t expert_flops(const Workload& workload) {
  int64_t out = 0;
  for (const Operator& op : workload.operators) {
    out += op.name == "shardlens::grouped_mm" ? op.flops : 0;
  }
  return out;
}

// Three products of a row with an expert's weights in forward, twice as many in backward.
constexpr int64_t kFlopsOfRow = 3 * 3 * 2 * kHidden * kInner;

// Every rank sends and receives as many rows as it has: 1/E of them to each. The first all-to-all
// has the numbers of rows, which have no gradient.
TEST(ExpertPart, BalancedRanksSendAndMultiplyTheirOwnNumberOfRows) {
  for (const int64_t ranks : {2, 4, 8}) {
    const Workload workload =
        expert_step(fmt::format(R"("shard": 8, "expert": {})", ranks), 8).workload;
    const std::vector<Communication> sent = token_exchanges(workload);
    ASSERT_THAT(sent, SizeIs(5));
    EXPECT_EQ(sent[0].bytes, kExperts * 8);
    EXPECT_TRUE(sent[0].read_by_host);
    for (size_t i = 1; i < sent.size(); ++i) {
      EXPECT_EQ(sent[i].kind, CollectiveKind::kAllToAll);
      EXPECT_EQ(sent[i].bytes, kRows * kHidden * 4);
      EXPECT_TRUE(sent[i].parts.empty());
      EXPECT_EQ(sent[i].phase, i < 3 ? Phase::kForward : Phase::kBackward);
    }
    EXPECT_EQ(expert_flops(workload), kRows * kFlopsOfRow) << ranks;
  }
}

// All rows of all E ranks come to the first one, whose other experts have a group of 8 rows of
// zeros each.
TEST(ExpertPart, OneExpertGetsAllTokens) {
  for (const int64_t ranks : {2, 4, 8}) {
    const Workload workload =
        expert_step(fmt::format(R"("shard": 8, "expert": {})", ranks), 8, 100).workload;
    const Bytes own = kRows * kHidden * 4;
    for (const Communication& each : token_exchanges(workload)) {
      if (each.read_by_host) {
        continue;
      }
      EXPECT_EQ(each.bytes, ranks * own);
      const auto received = each.returns ? sent_by : received_by;
      const auto sent = each.returns ? received_by : sent_by;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(sent(each, rank), own);
        EXPECT_EQ(received(each, rank), rank == 0 ? ranks * own : 0);
      }
    }
    const int64_t padding = 8 * (kExperts / ranks - 1);
    EXPECT_EQ(expert_flops(workload), (ranks * kRows + padding) * kFlopsOfRow) << ranks;
  }
}

// Of the 128 tokens of a rank each goes once to each rank with one of its two experts: to 1 − 6·5 /
// (8·7) of 4 ranks, 59 to each, instead of 64 rows. Experts multiply the same rows.
TEST(ExpertPart, DeepEpSendsATokenOnceToEachRank) {
  const Workload workload = expert_step(R"("shard": 8, "expert": 4)", 8, 0, sparse_model(),
                                        R"(, "expert_parallel": {"dispatch": "deep_ep"})")
                                .workload;
  const std::vector<Communication> sent = token_exchanges(workload);
  ASSERT_THAT(sent, SizeIs(5));
  EXPECT_TRUE(sent[0].read_by_host);
  for (size_t i = 1; i < sent.size(); ++i) {
    EXPECT_EQ(sent[i].kind, CollectiveKind::kAllToAll);
    EXPECT_EQ(sent[i].bytes, 4 * 59 * kHidden * 4);
    const bool sums = i == 2 || i == 4;  // results and gradients of the rank's own tokens
    EXPECT_EQ(sent[i].written, (sums ? kBatch * kSeq : 4 * 59) * kHidden * 4) << i;
  }
  EXPECT_EQ(expert_flops(workload), kRows * kFlopsOfRow);
}

// One rank for each token: as few bytes as tokens.
TEST(ExpertPart, DeepEpTakesTheRanksOfAToken) {
  const std::string keys = R"(, "expert_parallel": {"dispatch": "deep_ep", "ranks_per_token": 1})";
  const ExpertStep step = expert_step(R"("shard": 8, "expert": 4)", 8, 0, sparse_model(), keys);
  EXPECT_EQ(token_exchanges(step.workload)[1].bytes, kBatch * kSeq * kHidden * 4);
  const Plan again = parse_plan(to_json(step.plan.plan), "again.json");
  EXPECT_EQ(again.ranks_per_token, 1);
  EXPECT_EQ(again.expert_dispatch, ExpertDispatch::kDeepEp);
}

// Every rank has the tokens of all E ranks, with a byte and a number for each expert of each token,
// and adds up as many.
TEST(ExpertPart, GatheringRanksHaveTheTokensOfAll) {
  const std::string gathers = R"(, "expert_parallel": {"dispatch": "all_gather"})";
  for (const int64_t ranks : {2, 4, 8}) {
    const std::string mesh = fmt::format(R"("shard": 8, "expert": {})", ranks);
    const std::vector<Communication> sent =
        token_exchanges(expert_step(mesh, 8, 0, sparse_model(), gathers).workload);
    const int64_t tokens = ranks * kBatch * kSeq;
    std::vector<std::pair<CollectiveKind, Bytes>> found;
    for (const Communication& each : sent) {
      found.emplace_back(each.kind, each.bytes);
    }
    constexpr auto kGather = CollectiveKind::kAllGather, kReduce = CollectiveKind::kReduceScatter;
    const Bytes all = tokens * kHidden * 4;
    EXPECT_THAT(found,
                ElementsAre(std::pair(kGather, tokens * kExperts),
                            std::pair(kGather, tokens * kExperts * 4), std::pair(kGather, all),
                            std::pair(kReduce, all), std::pair(kGather, all),
                            std::pair(kReduce, all), std::pair(kReduce, tokens * kExperts * 4)));
    EXPECT_TRUE(sent[0].read_by_host);
    // Rows are not padded, so that one expert multiplies those of all ranks.
    const Workload one = expert_step(mesh, 8, 100, sparse_model(), gathers).workload;
    EXPECT_EQ(expert_flops(one), ranks * kRows * kFlopsOfRow) << ranks;
  }
}

// The ranks of `tensor` have the same rows, and each sends a part of them.
TEST(ExpertPart, RanksOfTensorSendAPartEach) {
  const ExpertStep step = expert_step(R"("shard": 2, "tensor": 2, "expert": 4)", 4);
  for (const Communication& each : token_exchanges(step.workload)) {
    EXPECT_TRUE(each.read_by_host || each.bytes == kRows / 2 * kHidden * 4);
  }
  EXPECT_EQ(expert_flops(step.workload), kRows / 2 * kFlopsOfRow);
}

// Where there are fewer of them on a rank than ranks that shard them, torchtitan shards their
// second dimension.
TEST(ExpertPart, ExpertsAreAGroupOfTheirBlock) {
  const ExpertStep step = expert_step(R"("shard": 8, "expert": 2)", 8);
  const auto found = std::ranges::find_if(step.plan.units, &Unit::expert);
  ASSERT_NE(found, step.plan.units.end());
  EXPECT_EQ(found->fqn, "model.layers.0 [expert]");
  EXPECT_EQ(step.plan.groups[found->gather].size, 4);
  EXPECT_EQ(step.plan.local_numel(found->parameters[0]), kExperts / 2 * 2 * kInner * kHidden);
  // Products of experts are work of their own group, in which their gradients are.
  for (const Operator& op : step.workload.operators) {
    if (op.name == "shardlens::grouped_mm") {
      EXPECT_EQ(op.unit, found - step.plan.units.begin());
    }
  }
  const auto shard_dim = [](const std::string& mesh, int64_t world) {
    const ModelConfig config = sparse_model();
    const std::string text =
        fmt::format(R"({{"version": 1, "layout": "per_parameter", "mesh": {{{}}}}})", mesh);
    const ResolvedPlan plan = resolve(parse_plan(text, "plan.json"), module_tree(config), world);
    const auto unit = std::ranges::find_if(plan.units, &Unit::expert);
    return plan.placements[unit->parameters[0]].shard_dim;
  };
  EXPECT_EQ(shard_dim(R"("shard": 8, "expert": 2)", 8), 0);    // 4 experts over 4 ranks
  EXPECT_EQ(shard_dim(R"("shard": 16, "expert": 2)", 16), 1);  // 4 experts over 8 ranks
}

// The results of the other experts come back meanwhile, and are waited for after them.
TEST(ExpertPart, SharedExpertsRunBeforeResultsAreAwaited) {
  const ModelConfig config = sparse_model(R"("model_type": "deepseek_v3", "n_routed_experts": 8,
      "moe_intermediate_size": 128, "n_shared_experts": 1, "first_k_dense_replace": 0, "kv_lora_rank": 16, "q_lora_rank": 16,
      "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16, "n_group": 1,
      "topk_group": 1)");
  const Workload workload = expert_step(R"("shard": 4, "expert": 4)", 4, 0, config).workload;
  const Communication back = token_exchanges(workload)[2];
  ASSERT_TRUE(back.waited_by.has_value());
  const auto waits = std::ranges::find(workload.order, *back.waited_by);
  const WorkloadItem own{WorkloadItem::Kind::kCommunication, 2};
  int64_t meanwhile = 0;
  for (auto item = std::ranges::find(workload.order, own); item != waits; ++item) {
    const bool shared =
        item->kind == WorkloadItem::Kind::kOperator &&
        workload.operators[item->index].module.find("shared_experts") != std::string::npos;
    meanwhile += shared ? 1 : 0;
  }
  EXPECT_EQ(meanwhile, 4);  // three products and their gate
}

std::string refused_mesh(const std::string& mesh,
                         int64_t world,
                         const std::string& keys = "",
                         StepSettings settings = {.batch = kBatch, .seq = kSeq},
                         const ModelConfig& config = sparse_model()) {
  const std::string text = fmt::format(R"({{"version": 1, "mesh": {{{}}}{}}})", mesh, keys);
  try {
    require_mesh(config, resolve(parse_plan(text, "plan.json"), module_tree(config), world),
                 settings);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(ExpertPart, RefusesSizesThatDoNotDivide) {
  EXPECT_EQ(refused_mesh(R"("shard": 8, "expert": 8)", 8), "");
  EXPECT_THAT(refused_mesh(R"("shard": 12, "expert": 6)", 12),
              HasSubstr("plan.json#/mesh/expert: expert 6 does not divide 8 experts; expected one "
                        "of 1, 2, 4"));
  EXPECT_THAT(refused_mesh(R"("replicate": 2, "shard": 4, "expert": 8)", 8),
              HasSubstr("plan.json#/mesh/expert: expert 8 does not divide the 4 ranks of a "
                        "replica; expected one of 1, 2, 4"));
}

TEST(ExpertPart, RefusesWhatIsNotSimulated) {
  const std::string mesh = R"("shard": 4, "expert": 2)";
  EXPECT_THAT(refused_mesh(mesh, 4, R"(, "dialect": "fsdp1")"), HasSubstr("fsdp2 only"));
  EXPECT_EQ(refused_mesh(mesh, 4, R"(, "expert_parallel": {"dispatch": "all_gather"})"), "");
  EXPECT_THAT(refused_mesh(R"("shard": 2, "tensor": 2, "expert": 2)", 4,
                           R"(, "expert_parallel": {"dispatch": "all_gather"})"),
              HasSubstr("plan.json#/expert_parallel/dispatch: all_gather is not simulated with "
                        "tensor 2"));
  EXPECT_EQ(refused_mesh(mesh, 4, R"(, "expert_parallel": {"dispatch": "all_to_all"})"), "");
  EXPECT_THAT(refused_mesh(R"("shard": 2, "tensor": 2, "expert": 2)", 4,
                           R"(, "expert_parallel": {"dispatch": "deep_ep"})"),
              HasSubstr("deep_ep is not simulated with tensor 2"));
  EXPECT_THAT(refused_mesh(R"("shard": 8, "expert": 8)", 8,
                           R"(, "expert_parallel": {"dispatch": "deep_ep", "ranks_per_token": 3})"),
              HasSubstr("a token has 2 experts on 8 ranks; expected 1 to 2"));
  StepSettings settings{.batch = kBatch, .seq = kSeq};
  settings.software.compile = Compile::kBlock;
  EXPECT_THAT(refused_mesh(mesh, 4, "", settings), HasSubstr("--compile"));
  settings.software = {.cuda_graphs = true};
  EXPECT_THAT(refused_mesh(mesh, 4, "", settings), HasSubstr("CUDA graph"));
  EXPECT_THAT(refused_mesh(R"("shard": 2, "tensor": 2)", 4), HasSubstr("with expert 2 or more"));
  const ModelConfig sinks = sparse_model(R"("model_type": "gpt_oss", "num_local_experts": 8)");
  EXPECT_EQ(refused_mesh(mesh, 4, "", {.batch = kBatch, .seq = kSeq}, sinks), "");
  EXPECT_THAT(refused_mesh(R"("shard": 2, "tensor": 2, "expert": 2)", 4, "",
                           {.batch = kBatch, .seq = kSeq}, sinks),
              HasSubstr("layers of GptOssForCausalLM are not simulated in parts yet"));
  const ModelConfig dense = parse_model_config(R"({"model_type": "llama"})", "config.json");
  EXPECT_THAT(refused_mesh(mesh, 4, "", {.seq = kSeq}, dense), HasSubstr("no experts"));
}

}  // namespace
}  // namespace shardlens::plan
