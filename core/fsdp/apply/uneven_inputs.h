#pragma once

#include <cstdint>

#include "core/fsdp/apply/fully_shard.h"

namespace shardlens::fsdp {

struct JoinOptions {  // how a rank without data counts
  // True: gradients are divided by all ranks, as if the others had gradients of zero. False: by the
  // ranks that have a batch, so that each batch counts the same.
  bool divide_by_initial_world_size = true;
};

// Training with uneven inputs, like DDP's join: a rank that has no batch left issues the
// collectives of the others with zeros as gradients, and runs no operators. Since each rank keeps a
// part of every parameter, it goes on to step its optimizer, like the others:
//
//   fsdp::Join join(*sharded, *world);
//   while (join.next(batches.has_next())) {
//     if (join.has_batch()) {
//       loss_of(batches.next()).backward();
//     } else {
//       join.shadow();
//     }
//     optimizer.step(); sharded->optimizer_done(); optimizer.zero_grad();
//   }
//
// One join serves one run over the data. With microbatches, call next() before each of them.
//
// Ownership  refers to model and world, which must outlive it.
// Threads    the thread that trains.
// Errors     UsageError on all ranks if a rank has no batch before it has trained with one (with
//            two under fsdp1 with forward_prefetch, whose first iteration differs): the others'
//            collectives are those of its own last microbatch. So every microbatch has to run the
//            same units in the same order. UsageError for replicated units, which c10d's Reducer
//            reduces. RuntimeFault for collectives, all of which end after the world's timeout.
// Source     torch/distributed/algorithms/join.py, DistributedDataParallel.join, torch 2.11; FSDP
//            has none.
class Join {
 public:
  Join(ShardedModel& model, dist::World& world, const JoinOptions& options = {});
  ~Join();  // gradients are divided by all ranks again
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;

  // A collective: all ranks call it before each microbatch, and say whether they have a batch for
  // it. Returns the number of ranks that have one; 0 ends the loop on all of them.
  int64_t next(bool has_batch);
  [[nodiscard]] bool has_batch() const { return has_batch_; }  // as given to next()
  // In the place of forward and backward, on a rank without batch.
  void shadow();

 private:
  ShardedModel& model_;
  dist::World& world_;
  JoinOptions options_;
  bool has_batch_ = false;
};

}  // namespace shardlens::fsdp
