#include "core/edits/pytorch_program.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/edits/pytorch_calls.h"
#include "core/model/model_config.h"
#include "core/plan/resolve.h"

namespace shardlens::plan {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsSupersetOf;

std::vector<std::string> program(const std::string& keys, int64_t ranks) {
  const ModelConfig config = parse_model_config(R"({"model_type": "llama", "hidden_size": 64,
      "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
      "num_key_value_heads": 4, "vocab_size": 256, "max_position_embeddings": 256})",
                                                "config.json");
  return pytorch_program(resolve(parse_plan(R"({"version": 1, )" + keys + "}", "plan.json"),
                                 module_tree(config), ranks));
}

// tests/python/test_printed_program.py runs such lines over four ranks.
TEST(PytorchProgram, ShardsUnitsWithTheirSettings) {
  EXPECT_THAT(
      program(R"("units": [{"modules": "model.layers.*"}, {"modules": ["model.norm", "lm_head"],
                 "reshard_after_forward": false}, {"modules": ""}],
              "mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32"})",
              4),
      ElementsAre(
          R"(mesh = init_device_mesh(device, (4,), mesh_dim_names=("shard",)))",
          R"(fully_shard([model.get_submodule(name) for name in ("model.norm", "lm_head")], mesh=mesh["shard"], reshard_after_forward=False, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)))",
          R"(for name in ("model.layers.0", "model.layers.1"):)",
          R"(    fully_shard(model.get_submodule(name), mesh=mesh["shard"], mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)))",
          R"(fully_shard(model, mesh=mesh["shard"], mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)))",
          "# torchtitan: --parallelism.data_parallel_replicate_degree 1 "
          "--parallelism.data_parallel_shard_degree 4 --parallelism.context_parallel_degree 1 "
          "--parallelism.tensor_parallel_degree 1"));
}

TEST(PytorchProgram, SetsWhatLaterVersionsHave) {
  EXPECT_THAT(
      program(R"("units": [{"modules": "model.layers.0", "keep_unsharded_storage": true},
                           {"modules": ""}],
              "separate_reduce_scatter_group": true, "reduce_scatter_unused_params": true,
              "reduce_scatter_max_input_buffers": 2, "backward_finalization": "reduces")",
              2),
      IsSupersetOf({
          "model.set_separate_reduce_scatter_group(True)  # PyTorch 2.13 or newer",
          "model.set_reduce_scatter_unused_params(True)  # PyTorch 2.13 or newer",
          "model.set_reduce_scatter_max_input_buffers(2)  # PyTorch 2.15 or newer",
          "model.get_submodule(\"model.layers.0\").set_keep_unsharded_storage(True, recurse=False)"
          "  # PyTorch 2.15 or newer",
          "model.set_manual_backward_finalization(True)  # PyTorch 2.15 or newer",
          "# after the last one: model.set_requires_gradient_sync(True); model.finalize_backward()",
      }));
  EXPECT_THAT(program(R"("keep_unsharded_storage": true)", 2),
              Contains("model.set_keep_unsharded_storage(True)  # PyTorch 2.15 or newer"));
}

TEST(PytorchProgram, DividesLayersAndLosses) {
  const auto lines =
      program(R"("mesh": {"replicate": 2, "shard": 2, "tensor": 2}, "loss_parallel": true)", 8);
  EXPECT_EQ(
      lines.front(),
      R"(mesh = init_device_mesh(device, (2, 2, 2), mesh_dim_names=("replicate", "shard", "tensor")))");
  EXPECT_THAT(lines, Contains(R"(    "self_attn.q_proj": ColwiseParallel(),)"));
  EXPECT_THAT(lines, Contains(R"(    "mlp.down_proj": RowwiseParallel(output_layouts=Shard(1)),)"));
  EXPECT_THAT(lines,
              Contains(AllOf(HasSubstr("\"lm_head\": ColwiseParallel"),
                             HasSubstr("output_layouts=Shard(-1), use_local_output=False"))));
  EXPECT_THAT(lines, Contains(HasSubstr(R"(fully_shard(model, mesh=mesh["replicate", "shard"])")));
  EXPECT_THAT(lines, Contains("# loss and backward: with loss_parallel():"));
  const auto whole = program(R"("mesh": {"tensor": 2}, "sequence_parallel": false)", 2);
  EXPECT_THAT(whole, Contains(R"(    "self_attn.o_proj": RowwiseParallel(),)"));
  EXPECT_THAT(whole, Not(Contains(HasSubstr("SequenceParallel"))));
}

// A change of the mesh leaves the other axes; FSDP shards over `shard` and `context` together.
TEST(PytorchCalls, MeshesKeepTheirOtherAxes) {
  const ModuleTree tree;
  const PytorchCalls calls(tree, Dialect::kFsdp2);
  EXPECT_THAT(
      calls.mesh(2, 2, 1, 2),
      ElementsAre(
          R"(mesh = init_device_mesh(device, (2, 2, 2), mesh_dim_names=("replicate", "shard", "context")))",
          R"(mesh["shard", "context"]._flatten("shard_context"))",
          R"(fully_shard(..., mesh=mesh["replicate", "shard_context"])  # every call)"));
  EXPECT_THAT(
      calls.mesh(1, 4, 2),
      ElementsAre(
          R"(mesh = init_device_mesh(device, (1, 4, 2), mesh_dim_names=("replicate", "shard", "tensor")))",
          R"(parallelize_module(..., device_mesh=mesh["tensor"]))",
          R"(fully_shard(..., mesh=mesh["replicate", "shard"])  # every call)"));
}

TEST(PytorchProgram, RefusesOtherApis) {
  EXPECT_THROW((void)program(R"("dialect": "fsdp1")", 2), UsageError);
  EXPECT_THROW((void)program(R"("units": [{"modules": "", "api": "replicate"}])", 2), UsageError);
}

}  // namespace
}  // namespace shardlens::plan
