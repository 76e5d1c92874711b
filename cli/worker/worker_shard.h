#pragma once

namespace shardlens::cli {

// `shardlens-worker shard --model M [--plan F | --strategy S] [--mesh RxS] [--world-size W] [--rank
// R]`: shards a model as one rank of a world whose other ranks are not there, before it has any
// memory, as on PyTorch's meta device, and holds the shards against the plan. What `shardlens plan
// --engine` runs. One line on stderr; returns the exit code. `argv`: from "shard" on.
// Errors  every shardlens::Error, and what LibTorch throws.
int shard_without_memory(int argc, char** argv);

}  // namespace shardlens::cli
