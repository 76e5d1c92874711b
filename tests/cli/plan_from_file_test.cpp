#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/shardlens_command.h"

namespace shardlens {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

const std::string kFiles = std::string(SHARDLENS_TEST_DATA) + "/accelerate/";
const std::string kTiny = std::string(SHARDLENS_TEST_DATA) + "/llama-tiny";

json json_at(const std::string& path) {
  json out;
  std::ifstream(path) >> out;
  return out;
}

// "bf16" of accelerate's "bfloat16".
json dtype_of(const json& name) {
  static const std::map<std::string, std::string> kNames{
      {"bfloat16", "bf16"}, {"float16", "fp16"}, {"float32", "fp32"}};
  return name.is_null() ? json() : json(kNames.at(name));
}

class PlanFromFileTest : public ShardlensCommandTest {
 protected:
  std::string file(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name) << text;
    return folder_ + "/" + name;
  }
  // The plan.json that --from writes.
  json plan_of(const std::string& path) {
    const std::string out = folder_ + "/plan";
    const CommandResult result =
        run("plan --model " + kTiny + " --from " + path + " --force --out " + out);
    EXPECT_EQ(result.code, 0) << result.err;
    notes_ = result.err;
    return json_at(out + "/plan.json");
  }
  json resolved(const std::string& arguments) {
    const CommandResult result = run("plan --model " + kTiny + " --json " + arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    return json::parse(result.out);
  }
  void refused(const std::string& text, const std::string& where, const std::string& what) {
    const std::string path = file("wrong.yaml", text);
    const CommandResult result = run("plan --model " + kTiny + " --from " + path);
    EXPECT_EQ(result.code, 3) << text;
    EXPECT_THAT(result.err, AllOf(HasSubstr(path + where), HasSubstr(what)));
    EXPECT_EQ(result.out, "");
  }

  std::string notes_;
};

// What accelerate makes of the same files (tests/tools/accelerate_plans.py).
TEST_F(PlanFromFileTest, PlansAreThoseOfAccelerate) {
  const json expected = json_at(kFiles + "expected.json");
  ASSERT_EQ(expected.size(), 6U);
  for (const auto& [name, theirs] : expected.items()) {
    SCOPED_TRACE(name);
    const json ours = plan_of(kFiles + name);
    if (!theirs["ranks"].is_null()) {
      EXPECT_EQ(resolved("--from " + kFiles + name)["ranks"].size(), theirs["ranks"]);
    }
    if (theirs["fsdp"] == false) {
      EXPECT_EQ(ours["units"][0]["api"], "replicate");
      continue;
    }
    const bool second = theirs["version"] == 2;
    EXPECT_EQ(ours["dialect"], second ? "fsdp2" : "fsdp1");
    EXPECT_EQ(ours["layout"], second ? "per_parameter" : "flat");
    EXPECT_EQ(ours["limit_all_gathers"], theirs["limit_all_gathers"]);
    EXPECT_EQ(ours["cpu_offload"], theirs["offload"]);
    EXPECT_EQ(ours["activation_checkpointing"],
              theirs["activation_checkpointing"] == true ? json{"model.layers.*"} : json::array());
    for (const char* dtype : {"param_dtype", "reduce_dtype", "output_dtype", "buffer_dtype"}) {
      EXPECT_EQ(ours["mixed_precision"].value(dtype, json()), dtype_of(theirs[dtype])) << dtype;
    }
    if (second) {
      EXPECT_EQ(ours["reshard_after_forward"], theirs["reshard_after_forward"] == "True");
      continue;
    }
    const bool keeps = theirs["strategy"] == "SHARD_GRAD_OP";
    EXPECT_EQ(ours["reshard_after_forward"], keeps ? json(false) : json());
    EXPECT_EQ(ours["forward_prefetch"], theirs["forward_prefetch"] == true ? 1 : 0);
    EXPECT_EQ(ours["backward_prefetch"], theirs["backward_prefetch"] == "BACKWARD_PRE"    ? "pre"
                                         : theirs["backward_prefetch"] == "BACKWARD_POST" ? "post"
                                                                                          : "none");
    EXPECT_EQ(ours["units"][0]["modules"], theirs["policy"] == "transformer_auto_wrap_policy"
                                               ? "class:" + theirs["classes"][0].get<std::string>()
                                               : "size:" + theirs["min_num_params"].dump());
  }
}

// The units that accelerate's FSDP2 makes of the model, and which of them are kept after forward.
TEST_F(PlanFromFileTest, UnitsAreThoseOfFsdp2) {
  const json expected = json_at(kFiles + "expected.json");
  for (const std::string name : {"fsdp2.yaml", "fsdp_config.json"}) {
    const json units = resolved("--from " + kFiles + name)["units"];
    std::map<std::string, bool> ours, theirs;
    for (const json& unit : units) {
      ours[unit["fqn"]] = true;
    }
    for (const json& unit : expected[name]["units"]) {
      std::string joined;
      for (const json& module : unit["modules"]) {
        joined += (joined.empty() ? "" : ", ") + module.get<std::string>();
      }
      theirs[joined] = true;
    }
    EXPECT_EQ(ours, theirs) << name;
    const json plan = plan_of(kFiles + name);
    const json& tail = plan["units"][2];
    EXPECT_EQ(tail["modules"], (json{"model.norm", "lm_head"}));
    EXPECT_EQ(tail["reshard_after_forward"], false);
  }
}

TEST_F(PlanFromFileTest, KeysThatChangeNothingAreNamed) {
  (void)plan_of(kFiles + "fsdp1.yaml");
  EXPECT_THAT(notes_, AllOf(HasSubstr("fsdp1.yaml#/: these keys change no plan: "),
                            HasSubstr("rdzv_backend says how processes start"),
                            HasSubstr("fsdp1.yaml#/fsdp_config: these keys change no plan: "),
                            HasSubstr("state_dict_type says how checkpoints are written"),
                            HasSubstr("use_orig_params changes the padding")));
  // Under version 2 the names of version 1 have no effect; accelerate warns of them too.
  (void)plan_of(
      file("a.yaml",
           "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n"
           "  fsdp_backward_prefetch: BACKWARD_POST\n  fsdp_sharding_strategy: NO_SHARD\n"));
  EXPECT_THAT(notes_, AllOf(HasSubstr("fsdp_backward_prefetch changes no plan"),
                            HasSubstr("fsdp_sharding_strategy changes no plan")));
}

TEST_F(PlanFromFileTest, WrongValuesAreNamed) {
  const std::string fsdp = "distributed_type: FSDP\nfsdp_config:\n  ";
  refused("distributed_type: FSPD\n", "#/distributed_type", "did you mean 'FSDP'?");
  refused("distributed_type: DEEPSPEED\n", "#/distributed_type", "expected one of 'FSDP'");
  refused("mixed_precision: bf16\ncompute_environment: LOCAL_MACHINE\n", "",
          "'distributed_type' is missing");
  refused(fsdp + "fsdp_sharding_stragety: FULL_SHARD\n", "#/fsdp_config/fsdp_sharding_stragety",
          "did you mean 'sharding_strategy'?");
  refused(fsdp + "fsdp_sharding_strategy: FULLSHARD\n", "#/fsdp_config/fsdp_sharding_strategy",
          "did you mean 'FULL_SHARD'?");
  refused(fsdp + "fsdp_sharding_strategy: 6\n", "#/fsdp_config/fsdp_sharding_strategy",
          "its number from 1 to 5");
  refused(fsdp +
              "fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
              "  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayr\n",
          "#/fsdp_config/fsdp_transformer_layer_cls_to_wrap", "did you mean 'LlamaDecoderLayer'?");
  refused(fsdp + "fsdp_offload_params: maybe\n", "#/fsdp_config/fsdp_offload_params",
          "expected true or false");
  refused(fsdp + "fsdp_version: 3\n", "#/fsdp_config/fsdp_version", "1");
  for (const char* wrong :
       {"'('", "'(?P<name>a)'", "'(a)\\1'", "'a{2,1}'", "'(?i)lm_head'", "'[z-a]'"}) {
    refused(fsdp + "fsdp_ignored_modules: " + wrong + "\n", "#/fsdp_config/fsdp_ignored_modules",
            "regular expression");
  }
  refused(fsdp + "fsdp_ignored_modules: .*\n", "#/fsdp_config/fsdp_ignored_modules",
          "matches the model itself");
  refused(fsdp + "fsdp_ignored_modules: [lm_head]\n", "#/fsdp_config/fsdp_ignored_modules",
          "expected a string");
  refused(fsdp + "fsdp_activation_checkpointing: true\n",
          "#/fsdp_config/fsdp_activation_checkpointing", "TRANSFORMER_BASED_WRAP");
  refused(fsdp +
              "fsdp_version: 2\n  fsdp_auto_wrap_policy: SIZE_BASED_WRAP\n"
              "  fsdp_min_num_params: 1000\n",
          "#/fsdp_config", "model.layers is a ModuleList");
  refused("distributed_type: FSDP\nnum_processes: 0\n", "#/num_processes", "1");
  refused("distributed_type: FSDP\nmixed_precision: bf61\n", "#/mixed_precision",
          "did you mean 'bf16'?");
  refused("distributed_type: FSDP\ndeepspeed_config: {zero_stage: 3}\n", "#/deepspeed_config",
          "expected none");
}

// Python's re.fullmatch of these expressions with the names of the model's modules.
TEST_F(PlanFromFileTest, IgnoredModulesAreThoseOfTheExpression) {
  const std::string fsdp = "distributed_type: FSDP\nfsdp_config:\n  fsdp_ignored_modules: ";
  const auto ignored = [&](const std::string& pattern) {
    return plan_of(file("ignored.yaml", fsdp + "'" + pattern + "'\n"))["ignored_modules"];
  };
  EXPECT_EQ(ignored("lm_head"), json{"lm_head"});
  EXPECT_EQ(ignored("lm_h"), json::array());
  EXPECT_THAT(notes_, HasSubstr("fsdp_ignored_modules matches no module"));
  EXPECT_EQ(ignored(R"(model\.layers\.[01]\.mlp|model.norm)"),
            (json{"model.layers.0.mlp", "model.layers.1.mlp", "model.norm"}));
  EXPECT_EQ(ignored(R"(.*\.\d\.(mlp|self_attn)\.(up|q)_proj)").size(), 8U);
  // Modules inside one that is ignored need no entry.
  EXPECT_EQ(ignored(R"(model\.layers\.2.*)"), json{"model.layers.2"});
  EXPECT_EQ(ignored(R"(model\.(?!layers).+)"),
            (json{"model.embed_tokens", "model.norm", "model.rotary_emb"}));
}

TEST_F(PlanFromFileTest, DamagedYamlIsAnErrorWithItsLine) {
  refused("distributed_type: FSDP\n  fsdp_config: {\n", "", "not valid YAML at line");
  refused("distributed_type: FSDP\ndistributed_type: FSDP\n", ": line 2", "given twice");
  refused("a: &x 1\n", ": line 1", "anchors");
  refused("a: 1\nb: *x\n", "", "line 2");
  refused("---\na: 1\n---\nb: 2\n", "", "one document");
  refused("", "", "expected");
  std::string deep = "a: ";
  for (int i = 0; i < 100; ++i) {
    deep += "[";
  }
  refused(deep, "", "");
  refused("a: " + std::string(70, '[') + std::string(70, ']') + "\n", "", "deeper than 64");
}

TEST_F(PlanFromFileTest, MachinesAreReplicasOfHybridShard) {
  const std::string path = file("hybrid.yaml",
                                "distributed_type: FSDP\nnum_machines: 2\nnum_processes: 8\n"
                                "fsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD}\n");
  const json mesh = resolved("--from " + path)["mesh"];
  EXPECT_EQ(mesh["replicate"], 2);
  EXPECT_EQ(mesh["shard"], 4);
  const json second = resolved("--from " + kFiles + "fsdp2.yaml")["mesh"];
  EXPECT_EQ(second["replicate"], 2);
  EXPECT_EQ(second["shard"], 2);
}

// A file that --to writes is read by --from as the same plan.
TEST_F(PlanFromFileTest, PlansBecomeFilesAgain) {
  for (const std::string name : {"fsdp1.yaml", "fsdp2.yaml", "ddp.yaml", "fsdp_config.json"}) {
    SCOPED_TRACE(name);
    const std::string again = folder_ + "/again" + std::filesystem::path(name).extension().string();
    const CommandResult result =
        run("plan --model " + kTiny + " --from " + kFiles + name + " --force --to " + again);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(plan_of(again), plan_of(kFiles + name)) << text(again);
    EXPECT_EQ(resolved("--from " + again), resolved("--from " + kFiles + name));
  }
}

TEST_F(PlanFromFileTest, WhatAFileCannotSayIsNamed) {
  const auto to = [&](const std::string& plan, const std::string& name) {
    return run("plan --model " + kTiny + " --plan " + file("plan.json", plan) + " --force --to " +
               folder_ + "/" + name);
  };
  // The units of a strategy: accelerate has two more.
  const CommandResult usual = to(R"({"version": 1})", "usual.yaml");
  EXPECT_EQ(usual.code, 0);
  EXPECT_THAT(usual.err, AllOf(HasSubstr("accelerate makes a unit of 'model.embed_tokens'"),
                               HasSubstr("FSDP2 shards each parameter")));
  EXPECT_THAT(text(folder_ + "/usual.yaml"),
              AllOf(HasSubstr("fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer\n"),
                    HasSubstr("num_processes: 2\n")));
  for (const auto& [plan, what] : std::vector<std::pair<std::string, std::string>>{
           {R"({"version": 1, "forward_prefetch": 2})", "'forward_prefetch'"},
           {R"({"version": 1, "views": "frozen"})", "'views'"},
           {R"({"version": 1, "reshard_after_forward": 2, "mesh": {"shard": 4}})",
            "reshard_after_forward"},
           {R"({"version": 1, "activation_checkpointing": ["model.layers.1"]})", "checkpointed"},
           {R"({"version": 1, "frozen_parameters": ["**.bias", "model.norm.weight"]})", ""},
           {R"({"version": 1, "mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32"}})",
            "different dtypes"}}) {
    const CommandResult result = to(plan, "none.yaml");
    EXPECT_EQ(result.code, 3) << plan;
    EXPECT_THAT(result.err, HasSubstr(what)) << plan;
    EXPECT_FALSE(std::filesystem::exists(folder_ + "/none.yaml"));
  }
  EXPECT_EQ(to(R"({"version": 1, "mesh": {"replicate": 2, "shard": 2}})", "none.json").code, 3);
}

}  // namespace
}  // namespace shardlens
