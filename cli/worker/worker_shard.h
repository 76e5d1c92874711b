#pragma once

namespace shardlens::cli {

// `shardlens-worker shard --model M [--plan F | --strategy S] [--mesh RxS] [--world-size W] [--rank
// R]`: shards a model as one rank of a world whose other ranks do not run, without allocating
// memory, as on PyTorch's meta device, and compares the shards with the plan. `shardlens plan
// --engine` runs it. Prints one line to stderr; returns the exit code. `argv`: from "shard" on.
// Errors  every shardlens::Error, and LibTorch's exceptions.
int shard_without_memory(int argc, char** argv);

}  // namespace shardlens::cli
