#include "core/plan/resolve.h"

#include <algorithm>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/plan/plan.h"
#include "core/plan/unit_sizes.h"
#include "core/tree/tree_builder.h"
#include "core/workload/step_support.h"
#include "tests/core/plan/resolved.h"

namespace shardlens::plan {
namespace {

using test::error_of;
using test::kBlocksAndRoot;
using test::llama;
using test::resolved;
using test::tree_of;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> unit_names(const ResolvedPlan& plan) {
  std::vector<std::string> out;
  for (const Unit& unit : plan.units) {
    out.push_back(unit.fqn);
  }
  return out;
}

std::vector<std::string> parameter_names(const ResolvedPlan& plan, UnitId unit) {
  std::vector<std::string> out;
  for (const uint32_t parameter : plan.units.at(unit).parameters) {
    out.push_back(plan.tree.parameters[parameter].fqn);
  }
  return out;
}

void expect_partition(const ResolvedPlan& plan) {
  std::vector<int> owners(plan.tree.parameters.size(), 0);
  for (const uint32_t parameter : plan.ignored_parameters) {
    ++owners[parameter];
  }
  uint32_t before = 0;
  for (UnitId id = 0; id < plan.units.size(); ++id) {
    const Unit& unit = plan.units[id];
    const uint32_t first = *std::min_element(unit.modules.begin(), unit.modules.end());
    EXPECT_EQ(unit.parent == kNoUnit, id == 0);
    EXPECT_TRUE(id == 0 || (unit.parent < id && first > before)) << "units are in pre-order";
    before = first;
    for (const uint32_t parameter : unit.parameters) {
      ++owners[parameter];
    }
    int64_t owned = 0;
    for (int64_t rank = 0; rank < plan.shards(); ++rank) {
      owned += plan.layout(id).owned_numel(rank);
    }
    EXPECT_EQ(owned, plan.layout(id).numel());
  }
  EXPECT_EQ(owners, std::vector<int>(owners.size(), 1));
}

TEST(ResolveTest, StrategiesMakeOneUnitPerBlockAndTheRoot) {
  for (const std::string& strategy : strategy_names()) {
    for (const std::string model : {"llama-tiny", "gpt2-tiny", "models/llama-tied-gqa"}) {
      SCOPED_TRACE(strategy + " " + model);
      const ModuleTree tree = tree_of(model);
      const ResolvedPlan plan = resolve(strategy_plan(strategy, tree), tree, 4);
      ASSERT_EQ(plan.units.size(), tree.blocks.size() + 1);
      EXPECT_EQ(plan.units[0].fqn, "");
      EXPECT_EQ(plan.units[0].parent, kNoUnit);
      size_t parameters = 0;
      for (UnitId id = 0; id < plan.units.size(); ++id) {
        parameters += plan.units[id].parameters.size();
        if (id > 0) {
          EXPECT_EQ(plan.units[id].parent, 0U);
          EXPECT_EQ(plan.units[id].modules, std::vector<uint32_t>{tree.blocks[id - 1]});
        }
      }
      EXPECT_EQ(parameters, tree.parameters.size());
      EXPECT_EQ(plan.plan.dialect, Dialect::kFsdp2);
      EXPECT_EQ(plan.plan.layout, Layout::kFlat);
    }
  }
}

TEST(ResolveTest, StrategiesDifferInReshardMeshAndApi) {
  const ModuleTree tree = llama();
  const auto of = [&](const std::string& strategy, int64_t world) {
    return resolve(strategy_plan(strategy, tree), tree, world);
  };
  EXPECT_EQ(of("full_shard", 8).units[1].reshard_after_forward.kind, Reshard::Kind::kAuto);
  EXPECT_EQ(of("full_shard", 8).shards(), 8);
  EXPECT_EQ(of("full_shard", 8).replicas(), 1);
  EXPECT_EQ(of("shard_grad_op", 8).units[1].reshard_after_forward.kind, Reshard::Kind::kNo);
  EXPECT_EQ(of("no_shard", 8).shards(), 1);
  EXPECT_EQ(of("no_shard", 8).replicas(), 8);
  EXPECT_EQ(of("hybrid_shard", 8).replicas(), 2);
  EXPECT_EQ(of("hybrid_shard", 8).shards(), 4);
  EXPECT_EQ(of("replicate", 8).units[1].api, Api::kReplicate);
  EXPECT_THROW(of("hybrid_shard", 7), InputError);
  try {
    (void)strategy_plan("full_shards", tree);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("'full_shards'"), HasSubstr("did you mean 'full_shard'?")));
  }
}

TEST(ResolveTest, AbsentUnitsMeanEveryBlockAndTheRoot) {
  const ModuleTree tree = llama();
  const ResolvedPlan plan = resolve(parse_plan(R"({"version": 1})", "plan.json"), tree, 2);
  EXPECT_EQ(unit_names(plan), unit_names(resolve(strategy_plan("full_shard", tree), tree, 2)));
}

TEST(ResolveTest, NestedUnitsOwnWhatInnerUnitsDoNot) {
  const ModuleTree tree = llama();
  const ResolvedPlan plan = resolved(
      R"([{"modules": ""}, {"modules": "model.layers.0"}, {"modules": "model.layers.0.mlp"}, {"modules": "**.q_proj"}])",
      2, tree);
  EXPECT_THAT(unit_names(plan),
              ElementsAre("", "model.layers.0", "model.layers.0.self_attn.q_proj",
                          "model.layers.0.mlp", "model.layers.1.self_attn.q_proj",
                          "model.layers.2.self_attn.q_proj", "model.layers.3.self_attn.q_proj"));
  EXPECT_THAT(
      parameter_names(plan, 1),
      ElementsAre("model.layers.0.self_attn.k_proj.weight",
                  "model.layers.0.self_attn.v_proj.weight",
                  "model.layers.0.self_attn.o_proj.weight", "model.layers.0.input_layernorm.weight",
                  "model.layers.0.post_attention_layernorm.weight"));
  EXPECT_EQ(plan.units[2].parent, 1U);
  EXPECT_EQ(plan.units[3].parent, 1U);
  EXPECT_EQ(plan.units[4].parent, 0U);
}

TEST(ResolveTest, AListIsOneUnit) {
  const ModuleTree tree = llama();
  const ResolvedPlan plan = resolved(
      R"([{"modules": ["model.norm", "lm_head"]}, {"modules": "model.layers.*"}, {"modules": ["model.embed_tokens"]}])",
      2, tree);
  EXPECT_THAT(unit_names(plan),
              ElementsAre("", "model.embed_tokens", "model.layers.0", "model.layers.1",
                          "model.layers.2", "model.layers.3", "model.norm, lm_head"));
  EXPECT_TRUE(plan.units[0].parameters.empty());
  EXPECT_EQ(plan.layout(0).shard_numel(), 0);
  EXPECT_THAT(parameter_names(plan, 6), ElementsAre("model.norm.weight", "lm_head.weight"));
  // A module inside another one of the list adds no parameters.
  const ResolvedPlan inside = resolved(
      R"([{"modules": ["model.layers.0", "model.layers.0.mlp"]}, {"modules": ""}])", 2, tree);
  EXPECT_THAT(unit_names(inside), ElementsAre("", "model.layers.0"));
}

TEST(ResolveTest, TiedParametersStayInOneUnit) {
  const ModuleTree tree = tree_of("gpt2-tiny");
  const ResolvedPlan plan = resolve(strategy_plan("full_shard", tree), tree, 2);
  EXPECT_EQ(parameter_names(plan, 0).front(), "transformer.wte.weight");
  EXPECT_EQ(plan.units[0].parameters.size(), 4U);  // wte, wpe, ln_f; lm_head is wte
  const std::string message = error_of(
      R"([{"modules": "transformer.wte"}, {"modules": "transformer.h.*"}, {"modules": ""}])", 2,
      tree);
  EXPECT_THAT(message, AllOf(HasSubstr("'transformer.wte.weight'"), HasSubstr("'lm_head'"),
                             HasSubstr("'transformer.wte'"), HasSubstr("tied across two units")));
  EXPECT_THAT(resolved(R"([{"modules": ["transformer.wte", "lm_head"]}, {"modules": ""}])", 2, tree)
                  .units[1]
                  .parameters.size(),
              1U);
}

TEST(ResolveTest, ImpossibleUnitsNameThePlace) {
  const ModuleTree tree = llama();
  EXPECT_THAT(error_of(R"([{"modules": "model.layer.*"}, {"modules": ""}])", 2, tree),
              AllOf(HasSubstr("plan.json#/units/0/modules: glob 'model.layer.*' matches no module"),
                    HasSubstr("did you mean 'model.layers.*'?")));
  EXPECT_THAT(
      error_of(R"([{"modules": ["lm_head", "model.nrom"]}, {"modules": ""}])", 2, tree),
      AllOf(HasSubstr("plan.json#/units/0/modules/1"), HasSubstr("did you mean 'model.norm'?")));
  EXPECT_THAT(
      error_of(R"([{"modules": "model.layers.*"}, {"modules": "model.layers.2"}, {"modules": ""}])",
               2, tree),
      AllOf(HasSubstr("plan.json#/units/1/modules"), HasSubstr("'model.layers.2'"),
            HasSubstr("units/0")));
  EXPECT_THAT(error_of(R"([{"modules": "model.layers.*"}])", 2, tree),
              AllOf(HasSubstr("parameter 'model.embed_tokens.weight' is in no unit"),
                    HasSubstr("plan.json#/units")));
  for (const std::string glob : {"model.layers", "model.layers.9"}) {
    EXPECT_THAT(error_of(kBlocksAndRoot, 2, tree,
                         R"(, "activation_checkpointing": ["lm_head", ")" + glob + "\"]"),
                AllOf(HasSubstr("plan.json#/activation_checkpointing/1: "), HasSubstr(glob)));
  }
  EXPECT_THAT(error_of(R"([{"modules": "model.layers"}, {"modules": ""}])", 2, tree),
              HasSubstr("ModuleList"));
}

TEST(ResolveTest, PrefetchListsNameUnits) {
  const ModuleTree tree = llama();
  const ResolvedPlan plan = resolved(
      kBlocksAndRoot, 2, tree,
      R"(, "forward_prefetch": {"": ["model.layers.0"], "model.layers.0": ["model.layers.1", "model.layers.2"]},
                                         "backward_prefetch": {"model.layers.3": []})");
  EXPECT_THAT(plan.units[0].forward_prefetch, ElementsAre(1U));
  EXPECT_THAT(plan.units[1].forward_prefetch, ElementsAre(2U, 3U));
  EXPECT_FALSE(plan.units[2].has_forward_prefetch_list);
  EXPECT_TRUE(plan.units[4].has_backward_prefetch_list);
  EXPECT_TRUE(plan.units[4].backward_prefetch.empty());
  EXPECT_THAT(error_of(kBlocksAndRoot, 2, tree, R"(, "forward_prefetch": {"model.layer.0": []})"),
              AllOf(HasSubstr("plan.json#/forward_prefetch/model.layer.0"),
                    HasSubstr("did you mean 'model.layers.0'?")));
  EXPECT_THAT(error_of(kBlocksAndRoot, 2, tree, R"(, "backward_prefetch": {"": ["lm_head"]})"),
              HasSubstr("plan.json#/backward_prefetch//0: 'lm_head' is not a unit"));
}

TEST(ResolveTest, OnlyEmbeddingsNeedNoParametersInBackward) {
  const auto units = [](const std::string& modules) {
    return R"([{"modules": "model.layers.*"}, {"modules": )" + modules +
           R"(, "unshard_in_backward": false, "reshard_after_backward": false}, {"modules": ""}])";
  };
  const ModuleTree tree = llama();
  const ResolvedPlan plan = resolved(units(R"("model.embed_tokens")"), 2, tree);
  EXPECT_FALSE(plan.units[1].unshard_in_backward);
  EXPECT_FALSE(plan.units[1].reshard_after_backward);
  EXPECT_TRUE(plan.units[0].unshard_in_backward);
  EXPECT_TRUE(plan.units[0].reshard_after_backward);
  EXPECT_EQ(error_of(units(R"("lm_head")"), 2, tree),
            "plan.json#/units/1/unshard_in_backward: the backward of 'lm_head' (Linear) needs "
            "parameter 'lm_head.weight'; expected a unit with only embeddings");
  // Tied: the head's backward needs the embedding's parameter.
  EXPECT_THAT(error_of(R"([{"modules": "transformer.h.*"}, {"modules": ["transformer.wte", )"
                       R"("lm_head"], "unshard_in_backward": false}, {"modules": ""}])",
                       2, tree_of("gpt2-tiny")),
              HasSubstr("the backward of 'lm_head' (Linear) needs parameter"));
}

TEST(ResolveTest, ForwardDepthBecomesListsInFsdp2) {
  const ModuleTree tree = llama();
  const ResolvedPlan plan = resolved(kBlocksAndRoot, 2, tree, R"(, "forward_prefetch": 2)");
  EXPECT_THAT(plan.units[0].forward_prefetch, ElementsAre(1U, 2U));
  EXPECT_THAT(plan.units[1].forward_prefetch, ElementsAre(2U, 3U));
  EXPECT_THAT(plan.units[3].forward_prefetch, ElementsAre(4U));
  EXPECT_FALSE(plan.units[4].has_forward_prefetch_list);
  const ResolvedPlan fsdp1 =
      resolved(kBlocksAndRoot, 2, tree, R"(, "forward_prefetch": 1, "dialect": "fsdp1")");
  EXPECT_FALSE(fsdp1.units[0].has_forward_prefetch_list);
}

TEST(ResolveTest, IgnoredParametersAreInNoUnit) {
  const ModuleTree tree = llama();
  const ResolvedPlan plan = resolved(
      kBlocksAndRoot, 2, tree,
      R"(, "ignored_modules": ["lm_head"], "ignored_parameters": ["**.input_layernorm.*"])");
  EXPECT_EQ(plan.ignored_parameters.size(), 5U);
  EXPECT_THAT(parameter_names(plan, 0),
              ElementsAre("model.embed_tokens.weight", "model.norm.weight"));
  EXPECT_EQ(plan.units[1].parameters.size(), 8U);
  EXPECT_THAT(error_of(kBlocksAndRoot, 2, tree, R"(, "ignored_parameters": ["**.biass"])"),
              HasSubstr("plan.json#/ignored_parameters/0"));
  EXPECT_THAT(error_of(kBlocksAndRoot, 2, tree, R"(, "ignored_modules": ["model.layers.1"])"),
              AllOf(HasSubstr("'model.layers.1'"), HasSubstr("ignored_modules")));
  // With the embedding ignored, no root entry is needed.
  EXPECT_EQ(resolved(R"([{"modules": "model.layers.*"}])", 2, tree,
                     R"(, "ignored_modules": ["model.embed_tokens", "model.norm", "lm_head"])")
                .units[0]
                .parameters.size(),
            0U);
}

// By hand: the three MLP matrices of a block have 172·64 elements each, which leaves 12 416 of its
// 45 440.
TEST(ResolveTest, FrozenParametersAreGatheredAndNotReduced) {
  const ModuleTree tree = llama();
  const auto frozen = [&](const std::string& globs, const std::string& layout, int64_t ranks) {
    return resolved(kBlocksAndRoot, ranks, tree,
                    R"(, "layout": ")" + layout + R"(", "frozen_parameters": )" + globs);
  };
  const std::string mlps = R"(["model.layers.*.mlp.**"])";
  for (const std::string layout : {"flat", "per_parameter"}) {
    const ResolvedPlan plan = frozen(mlps, layout, 2);
    EXPECT_EQ(plan.layout(1).padded_numel(), 45440);
    EXPECT_EQ(plan.reduced_layout(1).padded_numel(), layout == "flat" ? 45440 : 12416);
    EXPECT_EQ(plan.stepped_numel(1), 12416 / 2);
    EXPECT_FALSE(plan.is_frozen(1));
    EXPECT_EQ(plan.reduced_layout(0).padded_numel(), plan.layout(0).padded_numel());
    EXPECT_FALSE(plan.tree.find("model.layers.0.mlp.up_proj") == nullptr);

    const ResolvedPlan whole = frozen(R"(["model.layers.2.**"])", layout, 3);
    EXPECT_TRUE(whole.is_frozen(3));
    EXPECT_GT(whole.layout(3).numel(), 0);
    EXPECT_EQ(whole.reduced_layout(3).padded_numel(), 0);
    EXPECT_EQ(whole.stepped_numel(3), 0);
    EXPECT_FALSE(whole.is_frozen(2));
  }
  EXPECT_THAT(
      error_of(kBlocksAndRoot, 2, tree, R"(, "frozen_parameters": ["**.biass"])"),
      AllOf(HasSubstr("plan.json#/frozen_parameters/0"), HasSubstr("matches no parameter")));
}

// Sizes as PyTorch's FSDP2 has them for the same parameters (tests/data/mixed_dtypes.json).
TEST(ResolveTest, ParametersOfSeveralDtypesAreGatheredAsBytes) {
  TreeBuilder builder("Adapted");
  const uint32_t shift = builder.parameter(0, "shift", {5});
  builder.parameter(0, "head", {2, 5});
  const uint32_t first = builder.module(0, "first", "Adapter");
  const uint32_t base = builder.parameter(first, "base", {5, 5});
  const uint32_t gain = builder.parameter(first, "gain", {5});
  builder.parameter(first, "down", {3, 5});
  builder.parameter(first, "up", {5, 3});
  ModuleTree tree = builder.take();
  for (const auto& [parameter, dtype] :
       {std::pair(shift, DType::kF16), {base, DType::kBF16}, {gain, DType::kF64}}) {
    tree.parameters[parameter].dtype = dtype;
    tree.parameters[parameter].requires_grad = false;
  }
  const std::string units = R"([{"modules": ""}, {"modules": "first"}])";
  const std::string layout = R"(, "layout": "per_parameter")";
  struct Case {
    int64_t ranks;
    std::string keys;
    DType gathered;
    Bytes root, unit, reduced_root, reduced_unit;
  };
  const std::string bf16 =
      R"(, "mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32"})";
  for (const Case& each : {Case{2, layout, DType::kU8, 52, 260, 40, 152},
                           Case{3, layout, DType::kU8, 72, 240, 60, 132},
                           Case{3, layout + bf16, DType::kBF16, 42, 138, 60, 132}}) {
    const ResolvedPlan plan = resolved(units, each.ranks, tree, each.keys);
    const std::vector<UnitSize> sizes = unit_sizes(plan);
    EXPECT_EQ(plan.gather_dtype(0), each.gathered);
    EXPECT_EQ(plan.gather_dtype(1), each.gathered);
    EXPECT_EQ(plan.master_dtype(1), DType::kF32);  // of what is trained
    EXPECT_EQ(plan.reduce_dtype(1), DType::kF32);
    EXPECT_EQ(unit_messages(plan, 0, sizes[0]).all_gather, each.root);
    EXPECT_EQ(unit_messages(plan, 1, sizes[1]).all_gather, each.unit);
    EXPECT_EQ(unit_messages(plan, 0, sizes[0]).reduce_scatter, each.reduced_root);
    EXPECT_EQ(unit_messages(plan, 1, sizes[1]).reduce_scatter, each.reduced_unit);
  }
}

TEST(ResolveTest, OverridesApplyToTheirUnits) {
  const ModuleTree tree = llama();
  const ResolvedPlan plan = resolved(
      R"([{"modules": "model.layers.*", "mixed_precision": {"param_dtype": "bf16"}, "reshard_after_forward": false}, {"modules": ""}])",
      2, tree,
      R"(, "mixed_precision": {"param_dtype": "fp16", "reduce_dtype": "fp32"}, "gradient_divide_factor": 3)");
  EXPECT_EQ(plan.param_dtype(1), DType::kBF16);
  EXPECT_EQ(plan.reduce_dtype(1), DType::kBF16);  // the whole object is replaced
  EXPECT_EQ(plan.param_dtype(0), DType::kF16);
  EXPECT_EQ(plan.reduce_dtype(0), DType::kF32);
  EXPECT_EQ(plan.units[1].reshard_after_forward.kind, Reshard::Kind::kNo);
  EXPECT_EQ(plan.units[0].reshard_after_forward.kind, Reshard::Kind::kAuto);
  EXPECT_EQ(plan.units[1].gradient_divide_factor, 3);
}

// llama-tiny, by hand: one block has q 64·64, k and v 32·64, o 64·64, three MLP matrices 172·64 and
// two norms of 64.
TEST(ResolveTest, LayoutsHaveTheSizesOfTheUnits) {
  const ModuleTree tree = llama();
  const ResolvedPlan plan = resolve(strategy_plan("full_shard", tree), tree, 3);
  const int64_t block = 64 * 64 * 2 + 32 * 64 * 2 + 172 * 64 * 3 + 2 * 64;
  EXPECT_EQ(plan.layout(1).numel(), block);
  EXPECT_EQ(plan.layout(1).shard_numel(), (block + 2) / 3);
  EXPECT_EQ(plan.layout(0).numel(), 256 * 64 * 2 + 64);
  // As PyTorch pads a flat parameter of NO_SHARD (tests/data/parity/fsdp1-no-shard.json).
  const ResolvedPlan whole = resolve(strategy_plan("no_shard", tree), tree, 3);
  EXPECT_EQ(block % 3, 2);
  EXPECT_EQ(whole.layout(1).shard_numel(), block + 1);
  EXPECT_EQ(resolve(strategy_plan("no_shard", tree), tree, 4).layout(1).shard_numel(), block);
  // replicate keeps every parameter whole.
  EXPECT_EQ(resolve(strategy_plan("replicate", tree), tree, 3).layout(1).shard_numel(), block);
}

// Whatever the globs are: either an InputError, or every parameter is in exactly one unit.
TEST(ResolveTest, UnitsPartitionTheParameters) {
  static const std::vector<std::string> kGlobs{"",
                                               "**",
                                               "*",
                                               "model",
                                               "model.*",
                                               "**.mlp",
                                               "**.self_attn",
                                               "model.layers.*",
                                               "model.layers.1",
                                               "model.layers.2*",
                                               "model.embed_tokens",
                                               "model.norm",
                                               "lm_head",
                                               "**.*_proj",
                                               "**.layers.*.mlp.up_proj",
                                               "transformer.h.*",
                                               "nothing"};
  std::mt19937_64 engine(5);
  const auto pick = [&engine](size_t limit) {
    return std::uniform_int_distribution<size_t>(0, limit - 1)(engine);
  };
  int resolved_plans = 0;
  for (const std::string model : {"llama-tiny", "gpt2-tiny", "models/llama-tied-gqa"}) {
    const ModuleTree tree = tree_of(model);
    for (int trial = 0; trial < 1000; ++trial) {
      Plan plan;
      plan.source = "plan.json";
      plan.layout = pick(2) == 0 ? Layout::kFlat : Layout::kPerParameter;
      for (size_t i = 1 + pick(4); i > 0; --i) {
        UnitEntry& entry = plan.units.emplace_back();
        entry.grouped = pick(2) == 0;
        for (size_t g = entry.grouped ? 1 + pick(3) : 1; g > 0; --g) {
          entry.globs.push_back(kGlobs[pick(kGlobs.size())]);
        }
      }
      if (pick(2) == 0) {
        plan.units.emplace_back().globs = {""};
      }
      if (pick(4) == 0) {
        plan.ignored_parameters = {"**.weight"};
      }
      const auto world = static_cast<int64_t>(1 + pick(5));
      try {
        const ResolvedPlan out = resolve(plan, tree, world);
        expect_partition(out);
        ++resolved_plans;
      } catch (const InputError& error) {
        EXPECT_THAT(error.what(), HasSubstr("plan.json#/units"));
      }
    }
  }
  EXPECT_GT(resolved_plans, 100);
}

// As after model.to(torch.bfloat16): FSDP2's shards, gathers and reductions are in the dtype of the
// parameters unless mixed precision gives another.
TEST(ResolveTest, DtypeIsThatOfStoredParameters) {
  const ModuleTree tree = llama();
  const ResolvedPlan wide = resolved(kBlocksAndRoot, 2, tree);
  const ResolvedPlan plan = resolved(kBlocksAndRoot, 2, tree, R"(, "dtype": "bf16")");
  for (UnitId unit = 0; unit < plan.units.size(); ++unit) {
    EXPECT_EQ(plan.master_dtype(unit), DType::kBF16);
    EXPECT_EQ(plan.gather_dtype(unit), DType::kBF16);
    EXPECT_EQ(plan.reduce_dtype(unit), DType::kBF16);
    EXPECT_FALSE(plan.casts_parameters(unit));
    EXPECT_EQ(unit_sizes(plan)[unit].sharded * 2, unit_sizes(wide)[unit].sharded);
    EXPECT_EQ(unit_sizes(plan)[unit].unsharded * 2, unit_sizes(wide)[unit].unsharded);
  }
  const ResolvedPlan mixed = resolved(
      kBlocksAndRoot, 2, tree, R"(, "dtype": "bf16", "mixed_precision": {"reduce_dtype": "fp32"})");
  EXPECT_EQ(mixed.master_dtype(1), DType::kBF16);
  EXPECT_EQ(mixed.reduce_dtype(1), DType::kF32);
  // A model that is in bf16 already can be planned in fp32. Integers stay.
  ModuleTree other = plan.tree;
  other.parameters[0].dtype = DType::kU8;
  const ResolvedPlan back = resolved(kBlocksAndRoot, 2, other, R"(, "dtype": "fp32")");
  EXPECT_EQ(back.master_dtype(1), DType::kF32);
  EXPECT_EQ(back.tree.parameters[0].dtype, DType::kU8);
}

TEST(ResolveTest, EngineRefusesByNameWhatItCannotRun) {
  const ModuleTree tree = llama();
  const auto refusal = [&](const std::string& units, const std::string& more,
                           int64_t world = 4) -> std::string {
    const ResolvedPlan plan = resolved(units, world, tree, more);
    try {
      require_engine_support(plan);
    } catch (const InputError& error) {
      return error.what();
    }
    return "accepted";
  };
  const auto alone = [](const std::string& pointer) {
    return "plan.json#" + pointer + ": not supported by the engine yet";
  };
  const auto message = [&](const std::string& pointer) {
    return alone(pointer) +
           R"( in a unit with "api": "replicate"; expected "fully_shard" with "mesh": {"shard": 1}, )"
           "which replicates and casts (simulate supports it)";
  };
  EXPECT_EQ(refusal(kBlocksAndRoot, R"(, "dialect": "fsdp1")"), "accepted");
  EXPECT_EQ(refusal(kBlocksAndRoot, R"(, "layout": "per_parameter")"), "accepted");
  EXPECT_EQ(refusal(kBlocksAndRoot, R"(, "views": "frozen")"), "accepted");
  EXPECT_EQ(refusal(kBlocksAndRoot, R"(, "mesh": {"replicate": 2})"), "accepted");
  EXPECT_EQ(refusal(kBlocksAndRoot, R"(, "activation_checkpointing": ["model.layers.*"])"),
            "accepted");
  EXPECT_EQ(refusal(kBlocksAndRoot, R"(, "checkpointing_saves": ["attention"])"),
            alone("/checkpointing_saves"));
  EXPECT_EQ(
      refusal(kBlocksAndRoot, R"(, "keep_unsharded_storage": true, "layout": "per_parameter")"),
      "accepted");
  EXPECT_THAT(refusal(kBlocksAndRoot, R"(, "keep_unsharded_storage": true)"),
              AllOf(HasSubstr("plan.json#/keep_unsharded_storage: "), HasSubstr("per_parameter")));
  EXPECT_THAT(refusal(R"([{"modules": "model.layers.*", "keep_unsharded_storage": true},
                          {"modules": ""}])",
                      ""),
              HasSubstr("plan.json#/units/0/keep_unsharded_storage: "));
  EXPECT_EQ(refusal(kBlocksAndRoot, R"(, "backward_finalization": "waits")"), "accepted");
  EXPECT_EQ(refusal(kBlocksAndRoot, R"(, "reduce_scatter_unused_params": true)"), "accepted");
  EXPECT_EQ(refusal(kBlocksAndRoot, R"(, "reduce_scatter_max_input_buffers": 2)"), "accepted");
  EXPECT_EQ(refusal(kBlocksAndRoot, R"(, "cpu_offload": true)"), "accepted");
  EXPECT_EQ(refusal(kBlocksAndRoot, R"(, "gradient_divide_factor": 2)"), "accepted");
  EXPECT_EQ(refusal(kBlocksAndRoot, R"(, "gradient_divide_factor": 2, "dialect": "fsdp1")"),
            "plan.json#/gradient_divide_factor: FSDP1 has no gradient divide factor; expected "
            "dialect fsdp2");
  EXPECT_EQ(refusal(kBlocksAndRoot, R"(, "reshard_after_forward": 2)"), "accepted");
  EXPECT_EQ(refusal(kBlocksAndRoot, R"(, "mixed_precision": {"buffer_dtype": "fp32"})"),
            "plan.json#/mixed_precision/buffer_dtype: FSDP2 never casts buffers; expected dialect "
            "fsdp1");
  EXPECT_THAT(refusal(kBlocksAndRoot, R"(, "mixed_precision": {"gather_dtype": "float8_e4m3fn"})"),
              AllOf(HasSubstr("plan.json#/mixed_precision/gather_dtype"), HasSubstr("8 bits")));
  EXPECT_EQ(refusal(R"([{"modules": "model.layers.*", "api": "replicate"}, {"modules": ""}])",
                    R"(, "mixed_precision": {"param_dtype": "bf16"})"),
            message("/mixed_precision/param_dtype"));
  EXPECT_EQ(refusal(R"([{"modules": "model.layers.*", "api": "replicate"}, {"modules": ""}])",
                    R"(, "mixed_precision": {"output_dtype": "bf16"})"),
            message("/mixed_precision/output_dtype"));
  EXPECT_THAT(refusal(kBlocksAndRoot, R"(, "dtype": "bf16")"),
              AllOf(HasSubstr("plan.json#/dtype: "), HasSubstr("converts its model before")));
  EXPECT_EQ(
      refusal(R"([{"modules": "model.layers.*", "reshard_after_forward": 2}, {"modules": ""}])",
              ""),
      "accepted");
  for (
      const std::string accepted :
      {"", R"(, "mesh": {"shard": 1})", R"(, "forward_prefetch": 1)",
       R"(, "forward_prefetch": {"": ["model.layers.0"]})", R"(, "backward_prefetch": "none")",
       R"(, "reshard_after_forward": false)", R"(, "limit_all_gathers": false)",
       R"(, "ignored_modules": ["lm_head"])", R"(, "ignored_parameters": ["lm_head.weight"])",
       R"(, "mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32", "cast_forward_inputs": true})",
       R"(, "mixed_precision": {"param_dtype": "fp16", "reduce_dtype": "fp16", "output_dtype": "fp32", "cast_forward_inputs": false})"}) {
    EXPECT_EQ(refusal(kBlocksAndRoot, accepted), "accepted") << accepted;
  }
}

TEST(ResolveTest, OptimizerInBackwardNeedsGradientsForItselfAlone) {
  const ModuleTree tree = llama();
  const std::string key = R"(, "optimizer_in_backward": true)";
  const auto refusal = [&](const std::string& units, const std::string& more,
                           const StepSettings& settings) -> std::string {
    try {
      require_step_support(resolved(units, 4, tree, more), settings);
    } catch (const InputError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refusal(kBlocksAndRoot, key, {}), "accepted");
  EXPECT_EQ(refusal(kBlocksAndRoot, key, {.accumulate = 2, .sync_every_microbatch = false}),
            "accepted");
  EXPECT_EQ(refusal(kBlocksAndRoot, "", {.accumulate = 2, .clip = 1.0}), "accepted");
  EXPECT_EQ(refusal(kBlocksAndRoot, key, {.clip = 1.0}),
            "plan.json#/optimizer_in_backward: clipping needs the norm of all gradients before any "
            "of them is used; expected no clipping");
  EXPECT_EQ(refusal(kBlocksAndRoot, key, {.accumulate = 2}),
            "plan.json#/optimizer_in_backward: the gradients that microbatches reduce are added up "
            "before the optimizer uses them; expected one microbatch, or no sync before the last "
            "one");
  EXPECT_EQ(
      refusal(R"([{"modules": "model.layers.*", "optimizer_in_backward": true}, {"modules": ""}])",
              R"(, "mixed_precision": {"param_dtype": "fp16"})", {}),
      "plan.json#/units/0/optimizer_in_backward: fp16 scales the loss, so all gradients are "
      "checked for infinities before any of them is used; expected bf16 or fp32");
  const auto both = [&](const std::string& units, const std::string& more) -> std::string {
    try {
      static_cast<void>(resolved(units, 4, tree, more));
    } catch (const InputError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(both(kBlocksAndRoot, key + R"(, "cpu_offload": true)"),
              testing::StartsWith("plan.json#/optimizer_in_backward: unit the root ('') has "
                                  "cpu_offload"));
  EXPECT_EQ(both(R"([{"modules": "model.layers.*", "optimizer_in_backward": false},
                     {"modules": "", "cpu_offload": false}])",
                 key + R"(, "cpu_offload": true)"),
            "accepted");
  const ResolvedPlan replicated = resolved(
      R"([{"modules": "model.layers.*", "api": "replicate"}, {"modules": ""}])", 4, tree, key);
  EXPECT_TRUE(replicated.units[0].optimizer_in_backward);
  EXPECT_FALSE(replicated.units[1].optimizer_in_backward);
}

}  // namespace
}  // namespace shardlens::plan
