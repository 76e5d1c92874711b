#include "core/workload/workload.h"

#include <fstream>
#include <map>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/model/step_workload.h"
#include "core/plan/resolve.h"
#include "tests/core/workload/with_communication.h"
#include "tests/support/case_name.h"

namespace shardlens::plan {
namespace {

using nlohmann::json;
using test::insert_communication;
using test::position_of;
using testing::AllOf;
using testing::HasSubstr;

struct Step {
  ModelConfig config;
  ResolvedPlan plan;
  Workload workload;
};

Step step_of(const std::string& model,
             const std::string& plan_json,
             int64_t world,
             int64_t batch,
             int64_t seq) {
  Step out;
  out.config = load_model_config(std::string(SHARDLENS_TEST_DATA) + "/" + model);
  out.plan = resolve(parse_plan(plan_json, "plan.json"), module_tree(out.config), world);
  out.workload = step_workload(out.config, out.plan, {.batch = batch, .seq = seq});
  return out;
}

const std::string kFullShard = R"({"version": 1})";

// Compared with the operators that PyTorch's profiler recorded in a step of transformers' own model
// (tests/tools/module_fixtures.py).
class WorkloadGemmTest : public testing::TestWithParam<std::string> {};

TEST_P(WorkloadGemmTest, GemmsAreThoseThatPyTorchRuns) {
  json expected;
  std::ifstream(std::string(SHARDLENS_TEST_DATA) + "/models/" + GetParam() + "/expected.json") >>
      expected;
  const Step step =
      step_of("models/" + GetParam(), kFullShard, 2, expected["batch"], expected["seq"]);
  json found{{"forward", json::array()}, {"backward", json::array()}};
  for (const Operator& op : step.workload.operators) {
    const bool gemm = op.kind == OperatorKind::kGemm;
    if (gemm || (op.kind == OperatorKind::kAttention && op.phase == Phase::kForward)) {
      found[op.phase == Phase::kForward ? "forward" : "backward"].push_back(
          {op.name, op.m, op.n, op.k, op.batch});
      if (gemm) {
        EXPECT_EQ(op.flops, 2 * op.m * op.n * op.k);
      }
    }
  }
  EXPECT_EQ(found["forward"], expected["gemms"]["forward"]);
  EXPECT_EQ(found["backward"], expected["gemms"]["backward"]);
}

INSTANTIATE_TEST_SUITE_P(Transformers,
                         WorkloadGemmTest,
                         testing::Values("llama-untied",
                                         "llama-tied-gqa",
                                         "llama-biases",
                                         "llama-head-dim",
                                         "llama-rope-flat",
                                         "gpt2-tied",
                                         "gpt2-untied-inner",
                                         "gpt2-mapped-names",
                                         "mlp-untied",
                                         "mlp-tied",
                                         "mistral-small",
                                         "qwen2-small",
                                         "qwen3-small",
                                         "gemma3-small",
                                         "phi3-small",
                                         "opt-small",
                                         "opt-post-norm"),
                         [](const auto& each) { return test::case_name(each.param); });

std::string hooks_of(const Step& step) {
  std::string out;
  for (const HookEvent& event : step.workload.hooks) {
    out += std::string(name_of(event.hook)) + ":" + std::to_string(event.unit) + " ";
  }
  return out;
}

TEST(WorkloadTest, HooksComeAsFreshViewsRaiseThem) {
  const Step step = step_of("models/llama-untied", kFullShard, 2, 1, 4);
  EXPECT_EQ(hooks_of(step),
            "root_pre_forward:0 pre_forward:0 pre_forward:1 post_forward:1 pre_forward:2 "
            "post_forward:2 post_forward:0 "
            "pre_backward:0 pre_backward:2 grads_ready:2 pre_backward:1 grads_ready:1 "
            "grads_ready:0 backward_end:0 "
            "optimizer_done:0 ");
}

TEST(WorkloadTest, UnitsOfSeveralModulesSpanThem) {
  const Step step = step_of(
      "models/llama-untied",
      R"({"version": 1, "units": [{"modules": "model.layers.*"}, {"modules": ["model.norm", "lm_head"]},
                                {"modules": "model.embed_tokens"}]})",
      2, 1, 4);
  // The root owns no parameters, so it has no gradients to wait for.
  EXPECT_EQ(hooks_of(step),
            "root_pre_forward:0 pre_forward:0 pre_forward:1 post_forward:1 pre_forward:2 "
            "post_forward:2 pre_forward:3 "
            "post_forward:3 pre_forward:4 post_forward:4 post_forward:0 pre_backward:0 "
            "pre_backward:4 grads_ready:4 "
            "pre_backward:3 grads_ready:3 pre_backward:2 grads_ready:2 pre_backward:1 "
            "grads_ready:1 backward_end:0 "
            "optimizer_done:0 ");
}

TEST(WorkloadTest, NestedUnitsNestTheirHooks) {
  const Step step = step_of(
      "models/gpt2-mapped-names",
      R"({"version": 1, "units": [{"modules": "transformer.h.0"}, {"modules": "**.mlp"}, {"modules": ""}]})",
      2, 1, 4);
  EXPECT_EQ(hooks_of(step),
            "root_pre_forward:0 pre_forward:0 pre_forward:1 pre_forward:2 post_forward:2 "
            "post_forward:1 post_forward:0 "
            "pre_backward:0 pre_backward:1 pre_backward:2 grads_ready:2 grads_ready:1 "
            "grads_ready:0 backward_end:0 "
            "optimizer_done:0 ");
}

TEST(WorkloadTest, EveryItemIsInOrderOnceAndBackwardMirrorsForward) {
  for (const std::string model : {"llama-tiny", "gpt2-tiny"}) {
    const Step step = step_of(model, kFullShard, 3, 2, 64);
    const Workload& workload = step.workload;
    std::vector<int> operators(workload.operators.size());
    std::vector<int> hooks(workload.hooks.size());
    int32_t last_forward = static_cast<int32_t>(workload.operators.size());
    for (const WorkloadItem& item : workload.order) {
      (item.kind == WorkloadItem::Kind::kHook ? hooks : operators).at(item.index)++;
      if (item.kind == WorkloadItem::Kind::kOperator &&
          workload.operators[item.index].phase == Phase::kBackward) {
        const Operator& op = workload.operators[item.index];
        ASSERT_GE(op.forward, 0);
        EXPECT_LE(op.forward, last_forward);
        last_forward = op.forward;
        EXPECT_EQ(op.unit, workload.operators[static_cast<size_t>(op.forward)].unit);
        EXPECT_NE(workload.operators[static_cast<size_t>(op.forward)].phase, Phase::kBackward);
      } else if (item.kind == WorkloadItem::Kind::kOperator) {
        EXPECT_EQ(workload.operators[item.index].forward, -1);
      }
    }
    EXPECT_EQ(operators, std::vector<int>(operators.size(), 1));
    EXPECT_EQ(hooks, std::vector<int>(hooks.size(), 1));
  }
}

// Which products PyTorch runs again in a backward under non-reentrant checkpointing, and where
// (tests/tools/checkpointed_gemms.py).
TEST(CheckpointedWorkloadTest, BackwardRunsTheProductsThatPyTorchRuns) {
  json cases;
  std::ifstream(std::string(SHARDLENS_TEST_DATA) + "/checkpointed_gemms.json") >> cases;
  ASSERT_EQ(cases.size(), 9U);
  for (const json& recorded : cases) {
    const std::string model = recorded["model"];
    const std::string modules = recorded["modules"];
    SCOPED_TRACE(model + " " + modules);
    const json plan{{"version", 1}, {"activation_checkpointing", {modules}}};
    const Step step =
        step_of("models/" + model, plan.dump(), 2, recorded["batch"], recorded["seq"]);
    json found = json::array();
    for (const WorkloadItem& item : step.workload.order) {
      if (item.kind != WorkloadItem::Kind::kOperator) {
        continue;
      }
      const Operator& op = step.workload.operators[item.index];
      const bool product = op.kind == OperatorKind::kGemm ||
                           (op.kind == OperatorKind::kAttention && op.phase == Phase::kRecompute);
      if (product && (op.phase == Phase::kBackward || op.phase == Phase::kRecompute)) {
        found.push_back({op.name, op.m, op.n, op.k, op.batch});
      }
      if (op.phase == Phase::kRecompute) {
        const Operator& first = step.workload.operators.at(static_cast<size_t>(op.forward));
        EXPECT_EQ(first.phase, Phase::kForward);
        EXPECT_EQ(first.name, op.name);
        EXPECT_EQ(first.flops, op.flops);
      }
    }
    EXPECT_EQ(found, recorded["backward"]);
  }
}

// llama-untied, by hand as below: a layer keeps only its input, [32, 32]; backward recomputes
// everything else that the layer would have kept.
TEST(CheckpointedWorkloadTest, LayersKeepTheirInputAlone) {
  const Step plain = step_of("models/llama-untied", kFullShard, 2, 2, 16);
  const Step step =
      step_of("models/llama-untied",
              R"({"version": 1, "activation_checkpointing": ["model.layers.*"]})", 2, 2, 16);
  std::map<Phase, Bytes> kept, kept_without;
  for (const Operator& op : step.workload.operators) {
    kept[op.phase] += op.unit == 0 ? 0 : op.saved;
  }
  for (const Operator& op : plain.workload.operators) {
    kept_without[op.phase] += op.unit == 0 ? 0 : op.saved;
  }
  const Bytes input = 32 * 32 * 4;
  EXPECT_EQ(kept[Phase::kForward], 2 * input);
  EXPECT_EQ(kept[Phase::kRecompute], kept_without[Phase::kForward] - 2 * input);
  EXPECT_EQ(kept[Phase::kBackward], 0);
}

TEST(CheckpointedWorkloadTest, HooksOfUnitsInsideComeAgain) {
  const Step inside =
      step_of("models/llama-untied",
              R"({"version": 1, "activation_checkpointing": ["model.layers.*"]})", 2, 1, 4);
  EXPECT_EQ(hooks_of(inside), hooks_of(step_of("models/llama-untied", kFullShard, 2, 1, 4)));
  Step around = step_of("models/llama-untied",
                        R"({"version": 1, "activation_checkpointing": ["model"]})", 2, 1, 4);
  // The final norm, the last operator that keeps a tensor, belongs to the root, so both layers are
  // recomputed in full.
  std::string again;
  for (const HookEvent& event : around.workload.hooks) {
    if (event.recompute) {
      again += std::string(name_of(event.hook)) + ":" + std::to_string(event.unit) + " ";
    }
  }
  EXPECT_EQ(again, "pre_forward:1 post_forward:1 pre_forward:2 post_forward:2 ");
  EXPECT_EQ(parse_workload(to_json(around.workload, around.plan), "w", around.plan),
            around.workload);
}

// One layer of llama-untied, by hand: batch 2, seq 16 → 32 rows; hidden 32, inner 88, 4 heads of 8,
// vocabulary 96, fp32.
TEST(WorkloadTest, SavedBytesCountEachKeptTensorOnce) {
  const Step step = step_of("models/llama-untied", kFullShard, 2, 2, 16);
  Bytes layer = 0;
  Bytes outside = 0;
  for (const Operator& op : step.workload.operators) {
    (op.unit == 1 ? layer : outside) += op.unit == 2 ? 0 : op.saved;
  }
  // Two norm inputs with one statistic per row, q/k/v's input, q, k, v, attention's output and
  // log-sums, the MLP's input, gate, up, product.
  const Bytes row = 2 * (32 + 1) + 32 + 3 * 32 + 32 + 4 + 32 + 3 * 88;
  EXPECT_EQ(layer, 32 * row * 4);
  // Token ids, final norm, the head's input, the loss's log-probabilities.
  EXPECT_EQ(outside, 32 * 8 + 32 * (32 + 1 + 32 + 96) * 4);
}

TEST(WorkloadTest, MixedPrecisionSetsTheDtypeOfItsUnits) {
  const Step step = step_of(
      "models/llama-untied",
      R"({"version": 1, "units": [{"modules": "model.layers.*", "mixed_precision": {"param_dtype": "bf16"}}, {"modules": ""}]})",
      2, 2, 16);
  for (const Operator& op : step.workload.operators) {
    const bool in_block = op.unit != 0 && op.phase != Phase::kOptimizer;
    EXPECT_EQ(op.dtype, in_block ? DType::kBF16 : DType::kF32) << op.name;
  }
}

TEST(WorkloadTest, OptimizerTouchesTheShardsOnly) {
  const Step step = step_of("llama-tiny", kFullShard, 4, 2, 16);
  int64_t elements = 0;
  for (UnitId id = 0; id < step.plan.units.size(); ++id) {
    elements += step.plan.layout(id).shard_numel();
  }
  EXPECT_EQ(step.workload.operators.back().kind, OperatorKind::kOptimizer);
  EXPECT_EQ(step.workload.operators.back().written, 3 * 4 * elements);
}

// By hand, llama-tiny: a block has seven products, the head is one more, and each has two
// gradients, one of them of its weight.
TEST(WorkloadTest, FrozenParametersHaveNoGradients) {
  const ModelConfig config = load_model_config(std::string(SHARDLENS_TEST_DATA) + "/llama-tiny");
  const ModuleTree tree = module_tree(config);
  struct Counts {
    int64_t gradients = 0, embeddings = 0;
    Bytes saved = 0;
  };
  const auto counts = [&](std::vector<std::string> frozen) {
    Plan plan = strategy_plan("full_shard", tree);
    plan.frozen_parameters = std::move(frozen);
    Counts out;
    for (const Operator& op :
         step_workload(config, resolve(plan, tree, 2), {.batch = 1, .seq = 8}).operators) {
      const bool backward = op.phase == Phase::kBackward;
      out.gradients += backward && op.kind == OperatorKind::kGemm ? 1 : 0;
      out.embeddings += backward && op.kind == OperatorKind::kEmbedding ? 1 : 0;
      out.saved += op.phase == Phase::kForward ? op.saved : 0;
    }
    return out;
  };
  const Counts all = counts({});
  EXPECT_EQ(all.gradients, 4 * 14 + 2);
  EXPECT_EQ(all.embeddings, 1);
  EXPECT_EQ(counts({"lm_head.weight"}).gradients, 4 * 14 + 1);
  EXPECT_EQ(counts({"model.layers.*.mlp.**"}).gradients, 4 * 11 + 2);
  // Nothing before the third block has a backward; that block's norm needs gradients of q, k and v.
  const Counts prefix =
      counts({"model.embed_tokens.weight", "model.layers.0.**", "model.layers.1.**"});
  EXPECT_EQ(prefix.gradients, 2 * 14 + 2);
  EXPECT_EQ(prefix.embeddings, 0);
  // The input of q, k and v is kept once if any of them needs it, and not if none does.
  const Bytes input = 8 * config.hidden_size * size_of(DType::kF32);
  const std::string attention = "model.layers.0.self_attn.";
  EXPECT_EQ(all.saved - counts({attention + "q_proj.*", attention + "k_proj.*"}).saved, 0);
  EXPECT_EQ(
      all.saved -
          counts({attention + "q_proj.*", attention + "k_proj.*", attention + "v_proj.*"}).saved,
      input);
}

TEST(WorkloadTest, ImpossibleShapesAreRejected) {
  EXPECT_THROW(step_of("llama-tiny", kFullShard, 2, 0, 4), InputError);
  try {
    (void)step_of("llama-tiny", kFullShard, 2, 1, 257);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("config.json"), HasSubstr("seq 257"), HasSubstr("256 positions")));
  }
  try {
    (void)step_of("llama-tiny", R"({"version": 1, "frozen_parameters": ["**"]})", 2, 1, 4);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("plan.json#/frozen_parameters: every parameter is frozen"));
  }
}

TEST(WorkloadJsonTest, SurvivesARoundTrip) {
  for (const std::string model : {"llama-tiny", "gpt2-tiny", "models/llama-biases"}) {
    Step step = step_of(model, kFullShard, 2, 2, 16);
    step.workload.hooks[3].invocation = 2;
    step.workload.hooks[4].grad_mode = false;
    step.workload.hooks[5].recompute = true;
    step.workload.hooks[6].grads = Grads::kSome;
    const std::string text = to_json(step.workload, step.plan);
    EXPECT_EQ(parse_workload(text, "workload.json", step.plan), step.workload);
    EXPECT_EQ(json::parse(text)["units"].size(), step.plan.units.size());
  }
}

// Two communications of the forward and one of the backward, over the ranks of a context.
Step communicating() {
  Step step =
      step_of("llama-tiny", R"({"version": 1, "mesh": {"replicate": 2, "shard": 1, "context": 2}})",
              4, 2, 16);
  ResolvedPlan whole = step.plan;  // without communication of its own
  whole.mesh = {};
  step.workload = step_workload(step.config, whole, {.batch = 2, .seq = 16});
  Communication each;
  each.kind = CollectiveKind::kAllGather;
  each.purpose = Purpose::kContext;
  each.group = 2;
  each.unit = 1;
  each.module = "model.layers.0.self_attn";
  each.bytes = 4096;
  each.written = 2048;
  each.saved = 1024;
  const size_t at = position_of(step.workload, Phase::kForward, 3);
  each.waited_by = step.workload.order[position_of(step.workload, Phase::kForward, 5)];
  const WorkloadItem forward = insert_communication(step.workload, at, each);
  Communication again;
  again.purpose = Purpose::kOther;
  again.group = kReplicateGroup;
  again.phase = Phase::kLoss;
  again.waited_by = step.workload.order[position_of(step.workload, Phase::kLoss, 0)];
  insert_communication(step.workload, position_of(step.workload, Phase::kLoss, 0), again);
  each.kind = CollectiveKind::kReduceScatter;
  each.phase = Phase::kBackward;
  each.forward = forward;
  each.saved = 0;
  each.frees = 512;
  each.takes = kTakesGradient | takes_before(2);
  each.waited_by.reset();
  insert_communication(step.workload, position_of(step.workload, Phase::kBackward, 2), each);
  Communication rows;  // two ranks, of which each sends 1000 to the first and 200 to the second
  rows.kind = CollectiveKind::kAllToAll;
  rows.purpose = Purpose::kTokens;
  rows.group = 2;
  rows.bytes = 2000;
  rows.parts = {1000, 200};
  rows.read_by_host = true;
  insert_communication(step.workload, position_of(step.workload, Phase::kForward, 1), rows);
  rows.returns = true;
  insert_communication(step.workload, position_of(step.workload, Phase::kForward, 1), rows);
  return step;
}

TEST(WorkloadTest, RanksOfAnAllToAllSendAndReceiveTheirParts) {
  Communication rows;
  rows.bytes = 2000;
  rows.parts = {1000, 200};
  EXPECT_EQ(sent_by(rows, 0), 1200);
  EXPECT_EQ(sent_by(rows, 1), 1200);
  EXPECT_EQ(received_by(rows, 0), 2000);
  EXPECT_EQ(received_by(rows, 1), 400);
  rows.returns = true;
  EXPECT_EQ(sent_by(rows, 1), 400);
  EXPECT_EQ(received_by(rows, 1), 1200);
  rows.parts.clear();
  EXPECT_EQ(sent_by(rows, 1), 2000);
}

TEST(WorkloadJsonTest, CommunicationSurvivesARoundTrip) {
  Step step = communicating();
  const std::string text = to_json(step.workload, step.plan);
  EXPECT_EQ(parse_workload(text, "workload.json", step.plan), step.workload);
  const json read = json::parse(text);
  EXPECT_EQ(read["groups"], json::parse(R"([{"name": "replicate", "ranks": 2, "stride": 2},
                                            {"name": "context", "ranks": 2, "stride": 1}])"));
  EXPECT_EQ(read["communications"][0]["group"], "context");
  EXPECT_EQ(read["communications"][1]["purpose"], "other");
  EXPECT_EQ(read["communications"][2]["forward"], "c0");
  EXPECT_EQ(read["communications"][3]["sent_to"], json({1000, 200}));
  EXPECT_EQ(read["communications"][4]["received_from"], json({1000, 200}));
  EXPECT_EQ(read["communications"][4]["read_by_host"], true);
  // A plan without such an axis gets the group, after its own.
  ResolvedPlan other =
      resolve(parse_plan(R"({"version": 1, "mesh": {"replicate": 2, "shard": 2}})", "plan.json"),
              module_tree(step.config), 4);
  const Workload added = parse_workload(text, "workload.json", other);
  ASSERT_EQ(other.groups.size(), 3U);
  EXPECT_EQ(other.groups[2], (mesh::Group{.name = "context", .size = 2, .stride = 1}));
}

TEST(WorkloadJsonTest, MessagesOnCommunication) {
  Step step = communicating();
  const json good = json::parse(to_json(step.workload, step.plan));
  const auto message = [&](const char* pointer, const json& value) {
    json changed = good;
    changed[json::json_pointer(pointer)] = value;
    try {
      (void)parse_workload(changed.dump(), "workload.json", step.plan);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(message("/communications/0/bytes", 8192), "accepted");
  EXPECT_THAT(message("/communications/3/sent_to", json({1000})),
              HasSubstr("communications/3/sent_to: expected one list of 2 numbers"));
  EXPECT_THAT(message("/communications/0/kind", "all_gathers"),
              AllOf(HasSubstr("workload.json#/communications/0/kind"), HasSubstr("'all_gather'")));
  EXPECT_THAT(message("/communications/1/group", "tensor"),
              AllOf(HasSubstr("#/communications/1/group"), HasSubstr("'context'")));
  EXPECT_THAT(message("/communications/2/forward", "h0"), HasSubstr("#/communications/2/forward"));
  EXPECT_THAT(message("/communications/2/forward", "c7"),
              AllOf(HasSubstr("#/communications/2/forward"), HasSubstr("below 5")));
  EXPECT_THAT(
      message("/communications/0/waited_by", good["order"][0]),
      AllOf(HasSubstr("#/communications/0/waited_by"), HasSubstr("later in the order than c0")));
  EXPECT_THAT(message("/communications/1/phase", "recompute"),
              AllOf(HasSubstr("#/communications/1"), HasSubstr("forward")));
  EXPECT_THAT(message("/communications/0/bytes", -1), HasSubstr("#/communications/0/bytes"));
  EXPECT_THAT(message("/communications/0/unit", 99), HasSubstr("#/communications/0/unit"));
  EXPECT_THAT(message("/groups/1/ranks", 4),
              AllOf(HasSubstr("#/groups/1"), HasSubstr("in the plan it has 2")));
  EXPECT_THAT(message("/groups/1/name", "replicate"),
              AllOf(HasSubstr("#/groups/1"), HasSubstr("a second group")));
  EXPECT_THAT(message("/groups/1/ranks", 99), HasSubstr("#/groups/1/ranks"));
  EXPECT_THAT(message("/order/0", "c5"), HasSubstr("#/order/0"));
}

TEST(WorkloadJsonTest, DamagedTextEndsAsInputError) {
  Step step = communicating();
  const std::string good = to_json(step.workload, step.plan);
  std::mt19937_64 engine(7);
  const auto pick = [&engine](size_t limit) {
    return std::uniform_int_distribution<size_t>(0, limit - 1)(engine);
  };
  int rejected = 0;
  for (int trial = 0; trial < 500; ++trial) {
    std::string text = good;
    switch (pick(3)) {
      case 0:
        text.resize(pick(text.size()));
        break;
      case 1:
        text.erase(pick(text.size()), 1 + pick(30));
        break;
      default:
        text[pick(text.size())] = "{}[]\",:0123456789-ohc"[pick(21)];
        break;
    }
    try {
      (void)parse_workload(text, "workload.json", step.plan);
    } catch (const InputError& error) {
      ++rejected;
      EXPECT_THAT(error.what(), HasSubstr("workload.json"));
    }
  }
  EXPECT_GT(rejected, 300);
}

TEST(WorkloadJsonTest, MessagesNameThePlace) {
  const auto message = [](const std::string& text) {
    try {
      ResolvedPlan plan;
      (void)parse_workload(text, "workload.json", plan);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(
      message(
          R"({"version": 1, "batch": 1, "seq": 1, "units": [""], "operators": [], "hooks": [], "order": ["o0"]})"),
      HasSubstr("workload.json#/order/0"));
  EXPECT_THAT(
      message(
          R"({"version": 1, "batch": 1, "seq": 1, "units": [""], "operators": [], "hooks": [{"hook": "pre_forwards", "unit": 0}], "order": []})"),
      AllOf(HasSubstr("workload.json#/hooks/0/hook"), HasSubstr("did you mean 'pre_forward'?")));
  EXPECT_THAT(
      message(
          R"({"version": 1, "batch": 1, "seq": 1, "units": [""], "operators": [], "hooks": [{"hook": "reshard", "unit": 1}], "order": []})"),
      HasSubstr("workload.json#/hooks/0/unit"));
}

// Larger ones, or their sums, would not fit in 64 bits.
TEST(WorkloadJsonTest, SizesAreLimited) {
  const auto message = [](const std::string& sizes, int count) {
    const std::string op =
        R"({"kind": "gemm", "phase": "forward", "unit": 0, "name": "mm", "module": "", "dtype": "fp32", )" +
        sizes + "}";
    std::string operators = op;
    for (int i = 1; i < count; ++i) {
      operators += "," + op;
    }
    ResolvedPlan plan;
    try {
      (void)parse_workload(
          R"({"version": 1, "batch": 1, "seq": 1, "units": [""], "hooks": [], "order": [], "operators": [)" +
              operators + "]}",
          "workload.json", plan);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(message(R"("m": 8192, "n": 8192, "k": 8192, "flops": 1099511627776)", 1), "accepted");
  EXPECT_THAT(message(R"("sums": 1001)", 1),
              HasSubstr("#/operators/0/sums: expected an integer from 0 to 1000"));
  EXPECT_THAT(message(R"("flops": 9223372036854775807)", 1),
              HasSubstr("#/operators/0/flops: expected an integer from 0 to"));
  EXPECT_THAT(message(R"("m": 4294967296, "n": 4294967296, "k": 0)", 1),
              HasSubstr("#/operators/0: batch x m x n x k is more than"));
  EXPECT_THAT(message(R"("saved_bytes": 500000000000000000)", 3),
              HasSubstr("#/operators/2: the bytes of the operators up to here are more than"));
}

}  // namespace
}  // namespace shardlens::plan
