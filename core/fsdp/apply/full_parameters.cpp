#include "core/fsdp/apply/full_parameters.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <torch/nn/module.h>

#include "core/base/error.h"
#include "core/fsdp/apply/traversal.h"
#include "core/fsdp/apply/unit_setup.h"
#include "core/fsdp/run/root.h"

namespace shardlens::fsdp {
namespace {

void require_possible(const SummonOptions& options) {
  if (options.writeback && options.rank0_only) {
    throw UsageError(
        "FullParameters: writeback with rank0_only is not supported: the other ranks have only "
        "their slices; pass writeback = false");
  }
  if (options.with_grads && options.offload_to_cpu) {
    throw UsageError(
        "FullParameters: with_grads with offload_to_cpu is not supported: a parameter and its "
        "gradient are on one device");
  }
}

}  // namespace

FullParameters::FullParameters(const std::shared_ptr<torch::nn::Module>& module,
                               const SummonOptions& options)
    : writeback_(options.writeback) {
  require_possible(options);
  std::vector<std::shared_ptr<FsdpState>> states;
  if (options.recurse) {
    states = fsdp_states(module);
  } else if (is_fully_sharded(*module)) {
    states = {module_fsdp_state(*module)};
  }
  for (const auto& state : states) {
    if (state->application() != nullptr) {
      init_root(*state);  // the first is the outermost: it joins the units below it
    }
    const std::shared_ptr<Root> root = state->root();
    if (root == nullptr) {
      continue;
    }
    const auto same = std::ranges::find(parts_, root, &Part::root);
    Part& part = same == parts_.end() ? parts_.emplace_back(Part{root, {}}) : *same;
    part.units.push_back(state->unit());
  }
  for (size_t i = 0; i < parts_.size(); ++i) {
    try {
      parts_[i].root->summon(parts_[i].units, options);
    } catch (...) {
      parts_.resize(i);
      end(/*writeback=*/false);
      throw;
    }
  }
}

FullParameters::~FullParameters() {
  try {
    close();
  } catch (const std::exception&) {  // close() says what was lost
  }
}

void FullParameters::close() {
  end(writeback_);
}

void FullParameters::end(bool writeback) {
  const std::vector<Part> parts = std::exchange(parts_, {});
  std::exception_ptr failure;
  for (const Part& part : parts) {
    try {
      part.root->end_summon(part.units, writeback);
    } catch (const UsageError&) {
      failure = failure == nullptr ? std::current_exception() : failure;
    }
  }
  if (failure != nullptr) {
    std::rethrow_exception(failure);
  }
}

}  // namespace shardlens::fsdp
