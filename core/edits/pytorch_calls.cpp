#include "core/edits/pytorch_calls.h"

#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/error.h"

namespace shardlens::plan {
namespace {

using Lines = PytorchCalls::Lines;

// A name as Python writes it: a ModuleDict's keys may have any character except a dot.
std::string quoted(const std::string& name) {
  std::string out = "\"";
  for (const char c : name) {
    if (c == '"' || c == '\\') {
      out += '\\';
    }
    out += c == '\n' ? "\\n" : c == '\t' ? "\\t" : std::string(1, c);
  }
  return out + "\"";
}

// ("a", "b",) as Python writes it.
std::string tuple_of(const std::vector<std::string>& names) {
  std::string out = "(";
  for (const std::string& name : names) {
    out += quoted(name) + ", ";
  }
  if (names.size() > 1) {
    out.resize(out.size() - 2);
  } else if (!names.empty()) {
    out.pop_back();
  }
  return out + ")";
}

Lines fsdp1(const std::string& argument) {
  return {fmt::format("FullyShardedDataParallel(..., {})", argument)};
}

}  // namespace

std::string PytorchCalls::blocks() const {
  SHARDLENS_CHECK(!tree_.blocks.empty(), "a change of the blocks of a model without any");
  const Module& list = tree_.modules[tree_.modules[tree_.blocks.front()].parent];
  if (list.children == tree_.blocks && !list.fqn.empty()) {
    return fmt::format("blocks = list(model.get_submodule({}).children())", quoted(list.fqn));
  }
  std::vector<std::string> names;
  for (const uint32_t block : tree_.blocks) {
    names.push_back(tree_.modules[block].fqn);
  }
  return fmt::format("blocks = [model.get_submodule(name) for name in {}]", tuple_of(names));
}

Lines PytorchCalls::reshard(bool after_forward) const {
  if (dialect_ == Dialect::kFsdp1) {
    return fsdp1(fmt::format("sharding_strategy=ShardingStrategy.{}",
                             after_forward ? "FULL_SHARD" : "SHARD_GRAD_OP"));
  }
  if (!after_forward) {
    return {"model.set_reshard_after_forward(False)"};
  }
  return {"model.set_reshard_after_forward(True)",
          "model.set_reshard_after_forward(False, recurse=False)"};
}

Lines PytorchCalls::keep(const std::vector<std::string>& modules) const {
  return {fmt::format("for name in {}:", tuple_of(modules)),
          "    model.get_submodule(name).set_reshard_after_forward(False, recurse=False)"};
}

Lines PytorchCalls::no_backward_gather(const std::vector<std::string>& modules) {
  return {fmt::format("for name in {}:", tuple_of(modules)),
          "    model.get_submodule(name).set_unshard_in_backward(False)"};
}

Lines PytorchCalls::forward_prefetch(int64_t depth) const {
  if (dialect_ == Dialect::kFsdp1) {
    return fsdp1(fmt::format("forward_prefetch={}", depth > 0 ? "True" : "False"));
  }
  if (depth == 0) {
    return {"# remove the calls of set_modules_to_forward_prefetch"};
  }
  // Modules that fully_shard was given as a list have one state.
  return {"shared = {m._get_fsdp_state(): m for m in model.modules() if isinstance(m, FSDPModule)}",
          "units = list(shared.values())[1:]", "for i, unit in enumerate(units):",
          fmt::format("    unit.set_modules_to_forward_prefetch(units[i + 1 : i + {}])", depth + 1),
          fmt::format("model.set_modules_to_forward_prefetch(units[:{}])", depth)};
}

Lines PytorchCalls::backward_prefetch() const {
  return dialect_ == Dialect::kFsdp1
             ? fsdp1("backward_prefetch=BackwardPrefetch.BACKWARD_PRE")
             : Lines{"# remove the calls of set_modules_to_backward_prefetch"};
}

Lines PytorchCalls::separate_reduce_scatter_group() {
  return {"model.set_separate_reduce_scatter_group(True)  # PyTorch 2.13 or newer"};
}

Lines PytorchCalls::reduction_inputs(int64_t count) {
  return {fmt::format("model.set_reduce_scatter_max_input_buffers({})  # PyTorch 2.15 or newer",
                      count)};
}

Lines PytorchCalls::units(size_t together) const {
  if (dialect_ == Dialect::kFsdp1) {
    return together == 0 ? Lines{"model = FullyShardedDataParallel(model, ...)"}
           : together == 1
               ? Lines{blocks(), "policy = ModuleWrapPolicy({type(block) for block in blocks})",
                       "model = FullyShardedDataParallel(model, auto_wrap_policy=policy, ...)"}
               : Lines{fmt::format("# put every {} blocks into a container module with a forward "
                                   "of its own, and wrap the containers",
                                   together)};
  }
  Lines out;
  if (together == 1) {
    out = {blocks(), "for block in blocks:", "    fully_shard(block)"};
  } else if (together > 1) {
    out = {blocks(), fmt::format("for i in range(0, len(blocks), {}):", together),
           fmt::format("    fully_shard(blocks[i : i + {}])", together)};
  }
  out.emplace_back("fully_shard(model)");
  return out;
}

Lines PytorchCalls::own_units(const std::vector<std::string>& modules) const {
  if (dialect_ == Dialect::kFsdp1) {
    return {fmt::format("for name in {}:  # before the model is wrapped", tuple_of(modules)),
            "    parent, _, child = name.rpartition(\".\")",
            "    module = FullyShardedDataParallel(model.get_submodule(name), ...)",
            "    setattr(model.get_submodule(parent), child, module)"};
  }
  return {fmt::format("for name in {}:  # before fully_shard(model)", tuple_of(modules)),
          "    fully_shard(model.get_submodule(name))"};
}

Lines PytorchCalls::mesh(int64_t replicate, int64_t shard, int64_t tensor, int64_t context) const {
  if (tensor > 1 || context > 1) {
    const std::string_view shards = context > 1 ? "shard_context" : "shard";
    Lines out{
        fmt::format("mesh = init_device_mesh(device, ({}, {}{}{}), "
                    "mesh_dim_names=(\"replicate\", \"shard\"{}{}))",
                    replicate, shard, context > 1 ? fmt::format(", {}", context) : "",
                    tensor > 1 ? fmt::format(", {}", tensor) : "",
                    context > 1 ? ", \"context\"" : "", tensor > 1 ? ", \"tensor\"" : "")};
    if (tensor > 1) {
      out.emplace_back("parallelize_module(..., device_mesh=mesh[\"tensor\"])");
    }
    if (context > 1) {
      out.emplace_back("mesh[\"shard\", \"context\"]._flatten(\"shard_context\")");
    }
    out.push_back(
        dialect_ == Dialect::kFsdp1
            ? fmt::format("FullyShardedDataParallel(..., device_mesh=mesh[\"replicate\", \"{}\"], "
                          "sharding_strategy=ShardingStrategy.HYBRID_SHARD)",
                          shards)
            : fmt::format("fully_shard(..., mesh=mesh[\"replicate\", \"{}\"])  # every call",
                          shards));
    return out;
  }
  Lines out{
      fmt::format("mesh = init_device_mesh(device, ({}, {}), "
                  "mesh_dim_names=(\"replicate\", \"shard\"))",
                  replicate, shard)};
  out.emplace_back(dialect_ == Dialect::kFsdp1 ? "FullyShardedDataParallel(..., device_mesh=mesh, "
                                                 "sharding_strategy=ShardingStrategy.HYBRID_SHARD)"
                                               : "fully_shard(..., mesh=mesh)  # every call");
  return out;
}

Lines PytorchCalls::replicate() const {
  return {"model = DistributedDataParallel(model)"};
}

Lines PytorchCalls::checkpoints(size_t every) const {
  if (every == 0) {
    return {"# remove checkpoint_wrapper from the blocks"};
  }
  return {blocks() + "  # before the model is sharded",
          every == 1 ? "chosen = set(blocks)" : fmt::format("chosen = set(blocks[::{}])", every),
          "apply_activation_checkpointing(model, check_fn=lambda module: module in chosen)"};
}

Lines PytorchCalls::microbatches(int64_t batch, int64_t accumulate) const {
  return {fmt::format("# microbatches of {} samples, {} a step", batch, accumulate)};
}

Lines PytorchCalls::sync_last_microbatch() const {
  return dialect_ == Dialect::kFsdp1
             ? Lines{"with model.no_sync():  # all microbatches of a step except the last"}
             : Lines{"model.set_requires_gradient_sync(last)  # before each microbatch's backward"};
}

Lines PytorchCalls::buckets(double megabytes) const {
  return {fmt::format("DistributedDataParallel(model, bucket_cap_mb={})", megabytes)};
}

}  // namespace shardlens::plan
