#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/plan/plan.h"

namespace shardlens::plan {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string parse_error_of(const std::string& text) {
  try {
    (void)parse_plan(text, "plan.json");
  } catch (const InputError& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    return error.what();
  }
  return "accepted";
}

// A plan with the given keys.
std::string with(const std::string& keys) {
  return R"({"version": 1, "units": [{"modules": ""}], )" + keys + "}";
}
Plan plan_with(const std::string& keys) {
  return parse_plan(with(keys), "plan.json");
}

TEST(PlanJsonTest, DefaultsAreThoseOfTheTable) {
  const Plan plan = parse_plan(R"({"version": 1, "units": [{"modules": ""}]})", "plan.json");
  EXPECT_FALSE(plan.mesh.replicate || plan.mesh.shard);
  EXPECT_EQ(plan.dialect, Dialect::kFsdp2);
  EXPECT_EQ(plan.layout, Layout::kFlat);
  EXPECT_EQ(plan.views, Views::kFresh);
  EXPECT_EQ(plan.reshard_after_forward.kind, Reshard::Kind::kAuto);
  EXPECT_EQ(plan.backward_prefetch, BackwardPrefetch::kPre);
  EXPECT_EQ(plan.forward_prefetch, 0);
  EXPECT_TRUE(plan.limit_all_gathers);
  EXPECT_FALSE(plan.separate_reduce_scatter_group);
  EXPECT_TRUE(plan.reshard_after_backward);
  EXPECT_TRUE(plan.requires_all_reduce);
  EXPECT_EQ(plan.mixed_precision, MixedPrecision{});
  EXPECT_FALSE(plan.cpu_offload);
  EXPECT_FALSE(plan.optimizer_in_backward);
  EXPECT_FALSE(plan.gradient_divide_factor);
  EXPECT_FALSE(plan.bucket_cap_mb);
  ASSERT_EQ(plan.units.size(), 1U);
  EXPECT_EQ(plan.units[0].api, Api::kFullyShard);
  EXPECT_FALSE(plan.units[0].grouped);
}

TEST(PlanJsonTest, ReadsEveryKey) {
  const Plan plan = parse_plan(R"({
      "version": 1, "mesh": {"replicate": 2, "shard": 4, "context": 3, "tensor": 2, "expert": 6},
      "tensor_parallel": {"**.up_proj": "column", "lm_head.weight": 1}, "dialect": "fsdp1", "layout": "per_parameter", "views": "frozen",
      "units": [{"modules": "model.layers.*", "api": "replicate", "bucket_cap_mb": 0.25,
                 "mixed_precision": {"param_dtype": "fp32"},
                 "find_unused_parameters": true, "static_graph": true, "gradient_as_bucket_view": true},
                {"modules": ["model.norm", "lm_head"], "reshard_after_forward": false, "gradient_divide_factor": 2, "cpu_offload": true, "optimizer_in_backward": false,
                 "groups": [{"parameters": ["lm_head.*"], "mesh": "expert", "shard_dim": 1}]},
                {"modules": ""}],
      "reshard_after_forward": true, "backward_prefetch": "post", "forward_prefetch": 1, "limit_all_gathers": false,
      "separate_reduce_scatter_group": true, "dtype": "bf16",
      "mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32", "output_dtype": "fp16", "buffer_dtype": "bf16",
                          "gather_dtype": "float8_e4m3fn", "cast_forward_inputs": false},
      "activation_checkpointing": ["model.layers.*"],
      "checkpointing_saves": ["attention", "every_second_product"], "cpu_offload": true, "optimizer_in_backward": true, "ignored_modules": ["lm_head"],
      "ignored_parameters": ["**.bias"], "frozen_parameters": ["**.weight"], "gradient_divide_factor": 8.5, "bucket_cap_mb": 1,
      "find_unused_parameters": true, "static_graph": true, "gradient_as_bucket_view": true})",
                               "plan.json");
  EXPECT_EQ(plan.mesh,
            (MeshSizes{.replicate = 2, .shard = 4, .context = 3, .tensor = 2, .expert = 6}));
  EXPECT_EQ(plan.tensor_parallel,
            (std::map<std::string, TensorStyle>{
                {"**.up_proj", {.kind = TensorStyle::Kind::kColumn}},
                {"lm_head.weight", {.kind = TensorStyle::Kind::kDimension, .dim = 1}}}));
  EXPECT_EQ(plan.dialect, Dialect::kFsdp1);
  EXPECT_EQ(plan.layout, Layout::kPerParameter);
  EXPECT_EQ(plan.views, Views::kFrozen);
  ASSERT_EQ(plan.units.size(), 3U);
  EXPECT_EQ(plan.units[0].api, Api::kReplicate);
  EXPECT_EQ(plan.units[0].mixed_precision->param_dtype, DType::kF32);
  EXPECT_EQ(plan.units[0].bucket_cap_mb, 0.25);
  EXPECT_TRUE(plan.units[1].grouped);
  EXPECT_EQ(plan.units[1].globs, (std::vector<std::string>{"model.norm", "lm_head"}));
  EXPECT_EQ(plan.units[1].reshard_after_forward->kind, Reshard::Kind::kNo);
  EXPECT_EQ(plan.units[1].gradient_divide_factor, 2);
  EXPECT_EQ(plan.units[1].cpu_offload, true);
  EXPECT_EQ(plan.units[1].optimizer_in_backward, false);
  EXPECT_EQ(plan.units[1].groups,
            (std::vector<ParameterGroupEntry>{
                {.parameters = {"lm_head.*"}, .expert = true, .shard_dim = 1}}));
  EXPECT_EQ(plan.reshard_after_forward.kind, Reshard::Kind::kYes);
  EXPECT_EQ(plan.backward_prefetch, BackwardPrefetch::kPost);
  EXPECT_EQ(plan.forward_prefetch, 1);
  EXPECT_FALSE(plan.limit_all_gathers);
  EXPECT_TRUE(plan.separate_reduce_scatter_group);
  EXPECT_EQ(plan.dtype, DType::kBF16);
  EXPECT_EQ(plan.mixed_precision.param_dtype, DType::kBF16);
  EXPECT_EQ(plan.mixed_precision.reduce_dtype, DType::kF32);
  EXPECT_EQ(plan.mixed_precision.output_dtype, DType::kF16);
  EXPECT_EQ(plan.mixed_precision.buffer_dtype, DType::kBF16);
  EXPECT_TRUE(plan.mixed_precision.gathers_float8);
  EXPECT_EQ(plan.mixed_precision.cast_forward_inputs, false);
  EXPECT_EQ(plan.activation_checkpointing, std::vector<std::string>{"model.layers.*"});
  EXPECT_TRUE(plan.checkpointing_saves.attention);
  EXPECT_EQ(plan.checkpointing_saves.products, CheckpointSaves::Products::kEverySecond);
  EXPECT_TRUE(plan.cpu_offload);
  EXPECT_TRUE(plan.optimizer_in_backward);
  EXPECT_EQ(plan.ignored_modules, std::vector<std::string>{"lm_head"});
  EXPECT_EQ(plan.ignored_parameters, std::vector<std::string>{"**.bias"});
  EXPECT_EQ(plan.frozen_parameters, std::vector<std::string>{"**.weight"});
  EXPECT_EQ(plan.gradient_divide_factor, 8.5);
  EXPECT_EQ(plan.bucket_cap_mb, 1);
  EXPECT_TRUE(plan.find_unused_parameters && plan.static_graph && plan.gradient_as_bucket_view);
  EXPECT_EQ(parse_plan(to_json(plan), "plan.json"), plan);
}

// Plans without it are written as before.
TEST(PlanJsonTest, DtypeIsOnlyWrittenIfItIsSet) {
  const Plan without = plan_with(R"("dtype": null)");
  EXPECT_EQ(without.dtype, std::nullopt);
  EXPECT_THAT(to_json(without), testing::Not(HasSubstr("\"dtype\"")));
  EXPECT_THAT(to_json(plan_with(R"("dtype": "fp16")")), HasSubstr(R"("dtype": "fp16")"));
  EXPECT_THAT(
      parse_error_of(with(R"("dtype": "bfloat16")")),
      AllOf(HasSubstr("plan.json#/dtype"), HasSubstr("expected one of 'fp32', 'bf16', 'fp16'")));
}

TEST(PlanJsonTest, SettingsOfLaterVersionsAreOnlyWrittenIfTheyAreSet) {
  const Plan set = parse_plan(R"({"version": 1, "keep_unsharded_storage": true,
      "reduce_scatter_unused_params": true, "reduce_scatter_max_input_buffers": 3,
      "backward_finalization": "reduces",
      "units": [{"modules": "", "keep_unsharded_storage": false}]})",
                              "plan.json");
  EXPECT_EQ(parse_plan(to_json(set), "plan.json"), set);
  EXPECT_TRUE(set.keep_unsharded_storage && set.reduce_scatter_unused_params);
  EXPECT_EQ(set.units[0].keep_unsharded_storage, false);
  EXPECT_EQ(set.reduce_scatter_max_input_buffers, 3);
  EXPECT_EQ(set.backward_finalization, Finalization::kReduces);
  for (const char* name : {"keep_unsharded_storage", "reduce_scatter_unused_params",
                           "reduce_scatter_max_input_buffers", "backward_finalization"}) {
    EXPECT_THAT(to_json(plan_with(R"("limit_all_gathers": true)")), testing::Not(HasSubstr(name)));
    EXPECT_THAT(to_json(set), HasSubstr(name));
  }
  for (const std::string key :
       {R"("keep_unsharded_storage": true)", R"("reduce_scatter_unused_params": true)",
        R"("reduce_scatter_max_input_buffers": 2)", R"("backward_finalization": "waits")"}) {
    EXPECT_THAT(parse_error_of(with(R"("dialect": "fsdp1", )" + key)),
                HasSubstr("expected dialect fsdp2"));
  }
  EXPECT_THAT(parse_error_of(R"({"version": 1, "dialect": "fsdp1",
                  "units": [{"modules": "", "keep_unsharded_storage": true}]})"),
              AllOf(HasSubstr("#/units/0/keep_unsharded_storage"), HasSubstr("dialect fsdp2")));
  EXPECT_THAT(parse_error_of(with(R"("reduce_scatter_max_input_buffers": 0)")),
              HasSubstr("plan.json#/reduce_scatter_max_input_buffers"));
  EXPECT_THAT(
      parse_error_of(with(R"("requires_all_reduce": false, "backward_finalization": "waits")")),
      AllOf(HasSubstr("plan.json#/backward_finalization"), HasSubstr("expected automatic")));
}

TEST(PlanJsonTest, KeysOfAnotherApiAreErrors) {
  const auto error = [](const std::string& unit) {
    return parse_error_of(R"({"version": 1, "units": [{"modules": "", )" + unit + "}]}");
  };
  EXPECT_THAT(error(R"("api": "replicate", "reshard_after_forward": true)"),
              HasSubstr("#/units/0/reshard_after_forward: allowed only in a unit with \"api\": "
                        "\"fully_shard\""));
  EXPECT_THAT(error(R"("gradient_divide_factor": 2, "api": "replicate")"),
              HasSubstr("#/units/0/gradient_divide_factor: allowed only"));
  EXPECT_THAT(error(R"("static_graph": true)"),
              HasSubstr("#/units/0/static_graph: allowed only in a unit with \"api\": "
                        "\"replicate\""));
  const Plan plan = parse_plan(
      R"({"version": 1, "units": [{"modules": "", "api": "replicate", "reshard_after_forward": null}]})",
      "plan.json");
  EXPECT_EQ(plan.units[0].api, Api::kReplicate);
}

TEST(PlanJsonTest, ReadsReshardAndPrefetchForms) {
  EXPECT_EQ(plan_with(R"("reshard_after_forward": null)").reshard_after_forward.kind,
            Reshard::Kind::kAuto);
  EXPECT_EQ(plan_with(R"("reshard_after_forward": 2)").reshard_after_forward,
            (Reshard{Reshard::Kind::kSubMesh, 2}));
  EXPECT_EQ(plan_with(R"("forward_prefetch": 3)").forward_prefetch, 3);
  EXPECT_EQ(plan_with(R"("forward_prefetch": {"a": ["b", "c"]})").forward_prefetch_lists,
            (PrefetchLists{{"a", {"b", "c"}}}));
  EXPECT_EQ(plan_with(R"("backward_prefetch": {"": ["c"]})").backward_prefetch_lists,
            (PrefetchLists{{"", {"c"}}}));
  EXPECT_EQ(plan_with(R"("backward_prefetch": "none")").backward_prefetch, BackwardPrefetch::kNone);
}

TEST(PlanJsonTest, UnknownKeysAreRejectedEverywhereWithTheNearestName) {
  EXPECT_THAT(parse_error_of(with(R"("dialekt": "fsdp1")")),
              AllOf(HasSubstr("plan.json#/dialekt: unknown key 'dialekt'"),
                    HasSubstr("expected one of 'version'"), HasSubstr("did you mean 'dialect'?")));
  EXPECT_THAT(parse_error_of(with(R"("mesh": {"shards": 2})")),
              AllOf(HasSubstr("plan.json#/mesh/shards"), HasSubstr("did you mean 'shard'?")));
  EXPECT_THAT(parse_error_of(with(R"("mixed_precision": {"param_type": "bf16"})")),
              AllOf(HasSubstr("plan.json#/mixed_precision/param_type"),
                    HasSubstr("did you mean 'param_dtype'?")));
  EXPECT_THAT(parse_error_of(
                  R"({"version": 1, "units": [{"modules": ""}, {"modules": "a", "module": "b"}]})"),
              AllOf(HasSubstr("plan.json#/units/1/module"), HasSubstr("did you mean 'modules'?")));
  EXPECT_THAT(
      parse_error_of(R"({"version": 1, "units": [{"modules": "", "mixed_precision": {"x": 1}}]})"),
      HasSubstr("plan.json#/units/0/mixed_precision/x: unknown key 'x'"));
  EXPECT_THAT(parse_error_of(with(R"("a/b~c": 1)")), HasSubstr("plan.json#/a~1b~0c"));
}

TEST(PlanJsonTest, WrongValuesNamePlaceSeenAndExpected) {
  EXPECT_THAT(parse_error_of("{}"), HasSubstr("plan.json#/version: key 'version' is missing"));
  EXPECT_THAT(parse_error_of(R"({"version": 2, "units": [{"modules": ""}]})"),
              HasSubstr("plan.json#/version: expected 1, the only supported version, found 2"));
  EXPECT_THAT(parse_error_of(R"({"version": true, "units": []})"), HasSubstr("#/version"));
  EXPECT_THAT(parse_error_of(R"({"version": 1, "units": []})"),
              HasSubstr("#/units: expected at least one unit"));
  EXPECT_THAT(parse_error_of(R"({"version": 1, "units": {}})"),
              HasSubstr("#/units: expected a list of units"));
  EXPECT_THAT(parse_error_of(R"({"version": 1, "units": [{}]})"),
              HasSubstr("#/units/0/modules: key 'modules' is missing"));
  EXPECT_THAT(parse_error_of(R"({"version": 1, "units": [{"modules": []}]})"),
              HasSubstr("#/units/0/modules"));
  EXPECT_THAT(parse_error_of(R"({"version": 1, "units": [{"modules": ["a", 3]}]})"),
              HasSubstr("#/units/0/modules/1"));
  EXPECT_THAT(parse_error_of(R"({"version": 1, "units": [{"modules": "a..b"}]})"),
              HasSubstr("#/units/0/modules: glob"));
  EXPECT_THAT(parse_error_of(R"({"version": 1, "units": [{"modules": "", "api": "replicated"}]})"),
              AllOf(HasSubstr("#/units/0/api"), HasSubstr("did you mean 'replicate'?")));
  EXPECT_THAT(parse_error_of(with(R"("dialect": "fsdp3")")),
              AllOf(HasSubstr("#/dialect"), HasSubstr("did you mean 'fsdp1'?")));
  EXPECT_THAT(parse_error_of(with(R"("layout": 4)")),
              HasSubstr("#/layout: expected one of 'flat', 'per_parameter', found 4"));
  EXPECT_THAT(parse_error_of(with(R"("limit_all_gathers": 1)")),
              HasSubstr("expected true or false, found 1"));
  EXPECT_THAT(parse_error_of(with(R"("mesh": {"shard": 0})")),
              HasSubstr("#/mesh/shard: expected an integer from 1"));
  EXPECT_THAT(parse_error_of(with(R"("mesh": {"shard": 2.0})")), HasSubstr("#/mesh/shard"));
  EXPECT_THAT(parse_error_of(with(R"("forward_prefetch": -1)")), HasSubstr("#/forward_prefetch"));
  EXPECT_THAT(parse_error_of(with(R"("forward_prefetch": true)")),
              HasSubstr("#/forward_prefetch: expected a depth"));
  EXPECT_THAT(parse_error_of(with(R"("forward_prefetch": {"a": "b"})")),
              HasSubstr("#/forward_prefetch/a"));
  EXPECT_THAT(parse_error_of(with(R"("reshard_after_forward": "yes")")),
              HasSubstr("#/reshard_after_forward"));
  EXPECT_THAT(parse_error_of(with(R"("reshard_after_forward": 0)")),
              HasSubstr("#/reshard_after_forward"));
  EXPECT_THAT(parse_error_of(with(R"("mixed_precision": {"param_dtype": "int8"})")),
              HasSubstr("#/mixed_precision/param_dtype"));
  EXPECT_THAT(parse_error_of(with(R"("gradient_divide_factor": 0)")),
              HasSubstr("#/gradient_divide_factor"));
  EXPECT_THAT(parse_error_of(with(R"("bucket_cap_mb": "25")")),
              HasSubstr("#/bucket_cap_mb: expected a number"));
  EXPECT_THAT(parse_error_of(with(R"("activation_checkpointing": true)")),
              HasSubstr("#/activation_checkpointing"));
  EXPECT_THAT(parse_error_of(with(R"("checkpointing_saves": ["softmax"])")),
              HasSubstr("#/checkpointing_saves/0"));
  EXPECT_THAT(
      parse_error_of(with(R"("checkpointing_saves": ["products", "every_second_product"])")),
      HasSubstr("expected products or every_second_product, found both"));
  EXPECT_THAT(parse_error_of(with(R"("mesh": {"shard": 18446744073709551615})")),
              HasSubstr("#/mesh/shard"));
  EXPECT_THAT(parse_error_of(with(R"("bucket_cap_mb": 1e999)")), HasSubstr("plan.json"));
}

TEST(PlanJsonTest, DialectsKeepTheirLimits) {
  EXPECT_THAT(parse_error_of(with(R"("backward_prefetch": "post")")),
              AllOf(HasSubstr("plan.json#/backward_prefetch"), HasSubstr("fsdp2 has no 'post'")));
  EXPECT_EQ(plan_with(R"("dialect": "fsdp1", "backward_prefetch": "post")").backward_prefetch,
            BackwardPrefetch::kPost);
  EXPECT_THAT(parse_error_of(with(R"("dialect": "fsdp1", "reshard_after_forward": 2)")),
              HasSubstr("#/reshard_after_forward"));
  EXPECT_THAT(
      parse_error_of(
          R"({"version": 1, "dialect": "fsdp1", "units": [{"modules": "", "reshard_after_forward": 2}]})"),
      HasSubstr("plan.json#/units/0/reshard_after_forward"));
  EXPECT_THAT(parse_error_of(with(R"("dialect": "fsdp1", "reshard_after_backward": false)")),
              HasSubstr("#/reshard_after_backward: dialect fsdp1 has no reshard_after_backward; "
                        "expected dialect fsdp2"));
  EXPECT_THAT(parse_error_of(with(R"("dialect": "fsdp1", "requires_all_reduce": false)")),
              HasSubstr("#/requires_all_reduce: dialect fsdp1 has no requires_all_reduce"));
  EXPECT_THAT(
      parse_error_of(
          R"({"version": 1, "dialect": "fsdp1", "units": [{"modules": "", "unshard_in_backward": false}]})"),
      HasSubstr("plan.json#/units/0/unshard_in_backward: dialect fsdp1 has no"));
  EXPECT_THAT(parse_error_of(with(R"("unshard_in_backward": false)")),
              HasSubstr("#/unshard_in_backward: unknown key"));  // not for a whole plan
  EXPECT_THAT(parse_error_of(with(R"("dialect": "fsdp1", "forward_prefetch": 2)")),
              HasSubstr("#/forward_prefetch: expected an integer from 0 to 1, found 2"));
}

TEST(PlanJsonTest, DuplicateKeysAreRejectedWithTheirPlace) {
  EXPECT_THAT(parse_error_of(R"({"version": 1, "version": 1})"),
              HasSubstr("plan.json#/version: key 'version' is given twice"));
  EXPECT_THAT(
      parse_error_of(
          R"({"version": 1, "units": [{"modules": "a"}, {"modules": "b", "modules": ""}]})"),
      HasSubstr("plan.json#/units/1/modules: key 'modules' is given twice"));
}

TEST(PlanJsonTest, BrokenTextIsAnError) {
  for (const std::string text : {"", "{", "nul", "[1,]", "{\"version\": 1} x", "\xff\xfe",
                                 "{\"version\": 01}", "3", "null", "\"x\""}) {
    EXPECT_THAT(parse_error_of(text), HasSubstr("plan.json")) << text;
  }
  EXPECT_THAT(parse_error_of(std::string(100000, '[')), HasSubstr("nested deeper"));
}

class RandomPlan {
 public:
  explicit RandomPlan(uint64_t seed) : engine_(seed) {}

  Plan make() {
    Plan plan;
    plan.source = "plan.json";
    if (coin()) {
      plan.mesh.replicate = pick(1, 8);
    }
    if (coin()) {
      plan.mesh.shard = pick(1, 8);
      plan.mesh.context = pick(1, 3);
    }
    if (coin()) {
      plan.mesh.tensor = pick(1, 4);
      plan.mesh.expert = pick(1, 4);
      for (const std::string& glob : globs(0)) {
        const auto kind = static_cast<TensorStyle::Kind>(pick(0, 5));
        plan.tensor_parallel[glob] = {kind, kind == TensorStyle::Kind::kDimension ? pick(0, 3) : 0};
      }
    }
    plan.dialect = coin() ? Dialect::kFsdp1 : Dialect::kFsdp2;
    const bool fsdp1 = plan.dialect == Dialect::kFsdp1;
    plan.layout = coin() ? Layout::kFlat : Layout::kPerParameter;
    plan.views = coin() ? Views::kFresh : Views::kFrozen;
    for (int64_t i = pick(0, 4); i > 0; --i) {
      plan.units.push_back(unit(fsdp1));
    }
    plan.reshard_after_forward = reshard(fsdp1);
    plan.reshard_after_backward = fsdp1 || coin();
    plan.requires_all_reduce = fsdp1 || coin();
    if (coin()) {
      plan.backward_prefetch_lists = lists();
    } else {
      plan.backward_prefetch = static_cast<BackwardPrefetch>(pick(0, 2));
      if (!fsdp1 && plan.backward_prefetch == BackwardPrefetch::kPost) {
        plan.backward_prefetch = BackwardPrefetch::kNone;
      }
    }
    if (coin()) {
      plan.forward_prefetch_lists = lists();
    } else {
      plan.forward_prefetch = pick(0, fsdp1 ? 1 : 5);
    }
    plan.limit_all_gathers = coin();
    plan.separate_reduce_scatter_group = coin();
    plan.reduce_scatter_unused_params = !fsdp1 && coin();
    plan.reduce_scatter_max_input_buffers = fsdp1 ? 1 : pick(1, 4);
    plan.keep_unsharded_storage = !fsdp1 && coin();
    if (!fsdp1 && plan.requires_all_reduce) {
      plan.backward_finalization = static_cast<Finalization>(pick(0, 2));
    }
    plan.dtype = dtype();
    plan.mixed_precision = mixed();
    plan.activation_checkpointing = globs(0);
    plan.checkpointing_saves.attention = coin();
    plan.checkpointing_saves.products = static_cast<CheckpointSaves::Products>(pick(0, 2));
    plan.cpu_offload = coin();
    plan.optimizer_in_backward = coin();
    plan.ignored_modules = globs(0);
    plan.ignored_parameters = globs(0);
    plan.frozen_parameters = globs(0);
    plan.gradient_divide_factor = maybe(static_cast<double>(pick(1, 64)) / 3);
    plan.bucket_cap_mb = maybe(static_cast<double>(pick(1, 1000)) / 7);
    plan.find_unused_parameters = coin();
    plan.static_graph = coin();
    plan.gradient_as_bucket_view = coin();
    return plan;
  }
  int64_t pick(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  bool coin() { return pick(0, 1) == 1; }

 private:
  template <typename T>
  std::optional<T> maybe(T value) {
    return coin() ? std::optional<T>(value) : std::nullopt;
  }
  std::vector<std::string> globs(int64_t least) {
    static const std::vector<std::string> kGlobs{"",       "a",      "a.b",        "a.*",   "**",
                                                 "a.**.c", "*_proj", "\"quoted\"", "\u00e4"};
    std::vector<std::string> out;
    for (int64_t i = pick(least, 3); i > 0; --i) {
      out.push_back(kGlobs[static_cast<size_t>(pick(0, static_cast<int64_t>(kGlobs.size()) - 1))]);
    }
    return out;
  }
  PrefetchLists lists() {
    PrefetchLists out;
    for (const std::string& key : globs(1)) {
      out[key] = globs(0);
    }
    return out;
  }
  Reshard reshard(bool fsdp1) {
    const auto kind = static_cast<Reshard::Kind>(pick(0, fsdp1 ? 2 : 3));
    return {kind, kind == Reshard::Kind::kSubMesh ? pick(1, 8) : 0};
  }
  std::optional<DType> dtype() { return maybe(static_cast<DType>(pick(0, 2))); }
  MixedPrecision mixed() { return {dtype(), dtype(), dtype(), dtype(), maybe(coin()), coin()}; }
  UnitEntry unit(bool fsdp1) {
    UnitEntry entry;
    entry.globs = globs(1);
    entry.grouped = entry.globs.size() > 1 || coin();
    entry.api = coin() ? Api::kReplicate : Api::kFullyShard;
    if (coin()) {
      entry.mixed_precision = mixed();
    }
    if (entry.api == Api::kReplicate) {
      entry.bucket_cap_mb = maybe(static_cast<double>(pick(1, 9)) / 10);
      entry.find_unused_parameters = maybe(coin());
      entry.static_graph = maybe(coin());
      entry.gradient_as_bucket_view = maybe(coin());
      return entry;
    }
    if (coin()) {
      entry.reshard_after_forward = reshard(fsdp1);
    }
    entry.reshard_after_backward = maybe(fsdp1 || coin());
    entry.requires_all_reduce = maybe(fsdp1 || coin());
    entry.unshard_in_backward = maybe(fsdp1 || coin());
    entry.cpu_offload = maybe(coin());
    entry.optimizer_in_backward = maybe(coin());
    entry.gradient_divide_factor = maybe(static_cast<double>(pick(1, 9)));
    if (coin()) {
      entry.groups.push_back({globs(1), coin(), pick(0, 2)});
    }
    return entry;
  }

  std::mt19937_64 engine_;
};

TEST(PlanJsonTest, AnyPlanSurvivesARoundTrip) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const Plan plan = RandomPlan(seed).make();
    const std::string text = to_json(plan);
    ASSERT_EQ(parse_plan(text, "plan.json"), plan) << text;
    ASSERT_FALSE(nlohmann::json::parse(text).is_discarded());
  }
}

// A damaged file gives an InputError or a plan, and nothing else.
TEST(PlanJsonTest, MutatedTextNeverEscapesAsAnotherError) {
  int accepted = 0;
  int rejected = 0;
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    RandomPlan random(seed);
    std::string text = to_json(random.make());
    for (int64_t i = random.pick(1, 4); i > 0 && !text.empty(); --i) {
      const auto at = static_cast<size_t>(random.pick(0, static_cast<int64_t>(text.size()) - 1));
      static const std::string kBytes = "{}[]\",:0123456789eE.-+truefalsn\\/ \n\x01\xc3";
      switch (random.pick(0, 4)) {
        case 0:
          text[at] =
              kBytes[static_cast<size_t>(random.pick(0, static_cast<int64_t>(kBytes.size()) - 1))];
          break;
        case 1:
          text.erase(at, static_cast<size_t>(random.pick(1, 40)));
          break;
        case 2:
          text.insert(
              at,
              text.substr(
                  static_cast<size_t>(random.pick(0, static_cast<int64_t>(text.size()) - 1)), 30));
          break;
        case 3:
          text.resize(at);
          break;
        default:
          text[at] = static_cast<char>(random.pick(0, 255));
          break;
      }
    }
    try {
      (void)parse_plan(text, "plan.json");
      ++accepted;
    } catch (const InputError&) {
      ++rejected;
    }
  }
  EXPECT_GT(rejected, 2000);
  EXPECT_GT(accepted, 10);
}

}  // namespace
}  // namespace shardlens::plan
