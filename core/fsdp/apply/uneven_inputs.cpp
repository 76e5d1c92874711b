#include "core/fsdp/apply/uneven_inputs.h"

#include <string>

#include <fmt/format.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include "core/base/error.h"
#include "core/dist/world.h"

namespace shardlens::fsdp {
namespace {

// The state that a rank reports: it has a batch, it can shadow those that have, or neither.
enum Answer : uint8_t { kHasBatch = 1, kShadows = 2, kHasNothing = 3 };

}  // namespace

Join::Join(ShardedModel& model, dist::World& world, const JoinOptions& options)
    : model_(model), world_(world), options_(options) {
  model_.remember_microbatches();
}

Join::~Join() {
  try {
    model_.divide_gradients_by(world_.size());
  } catch (const std::exception&) {  // it failed before, which was reported
  }
}

int64_t Join::next(bool has_batch) {
  has_batch_ = has_batch;
  if (world_.emulated()) {
    return has_batch ? world_.size() : 0;
  }
  const at::NoGradGuard no_grad;
  dist::Communicator& all = world_.world();
  const at::Tensor answers =
      at::zeros({world_.size()}, at::TensorOptions(at::kDouble).device(all.device()));
  answers.narrow(0, world_.rank(), 1)
      .fill_(has_batch             ? kHasBatch
             : model_.can_shadow() ? kShadows
                                   : kHasNothing);
  all.wait(all.all_reduce(answers, dist::ReduceOp::kSum, {kNoUnit, "whether ranks have data"}));
  all.wait_for_device();
  const at::Tensor on_host = answers.cpu();
  int64_t ranks = 0;
  std::string without;
  for (int rank = 0; rank < world_.size(); ++rank) {
    const auto answer = static_cast<int>(on_host.const_data_ptr<double>()[rank]);
    ranks += answer == kHasBatch ? 1 : 0;
    if (answer == kHasNothing) {
      without += (without.empty() ? "" : ", ") + std::to_string(rank);
    }
  }
  if (ranks > 0 && !without.empty()) {
    throw UsageError(fmt::format(
        "[rank {}] join: {} of {} ranks have a batch; no batch, and none before (with fsdp1 and "
        "forward_prefetch: two), on rank {}",
        world_.rank(), ranks, world_.size(), without));
  }
  if (ranks > 0) {
    model_.divide_gradients_by(options_.divide_by_initial_world_size ? world_.size() : ranks);
  }
  return ranks;
}

void Join::shadow() {
  if (has_batch_) {
    throw UsageError(
        fmt::format("[rank {}] join: shadow() on a rank that has a batch", world_.rank()));
  }
  model_.shadow_microbatch();
}

}  // namespace shardlens::fsdp
