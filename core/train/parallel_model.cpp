#include "core/train/parallel_model.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <iterator>
#include <unordered_map>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/nn/module.h>

#include "core/base/error.h"
#include "core/dist/world.h"
#include "core/fsdp/run/grad_norm.h"
#include "core/module/activation_checkpoint.h"
#include "core/module/tree_of.h"
#include "core/plan/resolve.h"
#include "core/replicate/replicate.h"
#include "core/schedule/action.h"
#include "core/schedule/buckets.h"

namespace shardlens::train {
namespace {

using ModulePtr = std::shared_ptr<torch::nn::Module>;

// Records the reductions that the Reducers launch. All of them share one list of names, and their
// actions are numbered together with those of the sharded units.
struct Log {
  Recorder* recorder = nullptr;
  std::weak_ptr<fsdp::ShardedModel> sharded;  // numbers the actions if there are sharded units
  std::deque<std::string> names;              // by UnitId: the plan's units, then buckets
  uint32_t sequence = 0;

  uint32_t action(const schedule::Action& action) {
    if (const auto model = sharded.lock()) {
      return model->record_action(action);
    }
    ++sequence;
    if (recorder != nullptr) {
      recorder->action(sequence, action);
    }
    return sequence;
  }
};

class LaunchRecorder final : public replicate::BucketObserver {
 public:
  LaunchRecorder(std::shared_ptr<Log> log,
                 const plan::ResolvedPlan& plan,
                 std::vector<uint32_t> parameters,
                 std::optional<size_t> group)
      : log_(std::move(log)), plan_(plan), parameters_(std::move(parameters)), group_(group) {}

  void rebuilt(const std::vector<std::vector<uint32_t>>& buckets) override {
    first_ = static_cast<UnitId>(log_->names.size());
    launches_.assign(buckets.size(), 0);
    for (size_t index = 0; index < buckets.size(); ++index) {
      std::vector<uint32_t> in_tree;
      for (const uint32_t parameter : buckets[index]) {
        in_tree.push_back(parameters_[parameter]);
      }
      log_->names.push_back(schedule::bucket_name(plan_, in_tree, index, group_));
    }
    if (log_->recorder != nullptr) {
      const std::vector<std::string> names(log_->names.begin(), log_->names.end());
      log_->recorder->units(names);
    }
  }

  dist::Purpose launch(size_t index) override {
    const UnitId unit = first_ + static_cast<UnitId>(index);
    if (log_->recorder != nullptr) {
      log_->recorder->hook({Hook::kGradsReady, unit});
    }
    const uint32_t sequence = log_->action(
        schedule::bucket_launch(unit, launches_.at(index)++, schedule::bucket_group(plan_)));
    static_cast<void>(log_->action(schedule::bucket_event(schedule::Op::kRecord, unit)));
    return {unit, log_->names[unit], sequence};
  }

  void wait() override {
    for (size_t index = 0; index < launches_.size(); ++index) {
      static_cast<void>(log_->action(
          schedule::bucket_event(schedule::Op::kHostWait, first_ + static_cast<UnitId>(index))));
    }
  }

 private:
  std::shared_ptr<Log> log_;
  plan::ResolvedPlan plan_;
  std::vector<uint32_t> parameters_;
  std::optional<size_t> group_;
  UnitId first_ = 0;  // UnitId of the first of the current buckets
  std::vector<uint32_t> launches_;
};

// Allocates the storage of a parameter that was created without it. The caller fills the values.
void give_storage(at::Tensor& parameter) {
  if (parameter.numel() > 0 && parameter.storage().nbytes() == 0) {
    const at::NoGradGuard no_grad;
    parameter.set_data(at::empty(parameter.sizes(), parameter.options().requires_grad(false)));
  }
}

class ParallelModel final : public fsdp::ShardedModel {
 public:
  ParallelModel(const plan::ResolvedPlan& plan,
                std::shared_ptr<fsdp::ShardedModel> sharded,
                std::shared_ptr<Log> log,
                dist::World& world)
      : plan_(plan), sharded_(std::move(sharded)), log_(std::move(log)), world_(world) {
    if (sharded_ != nullptr) {
      shards_.assign(sharded_->flat_shards().begin(), sharded_->flat_shards().end());
    }
  }

  void add(std::shared_ptr<replicate::ReplicateState> state) {
    states_.push_back(std::move(state));
  }
  // Adds a parameter that is unsharded on every rank: a replicated one, or an ignored one, whose
  // gradient is not reduced.
  void add_whole(uint32_t index, const at::Tensor& parameter) {
    whole_[index] = parameter;
    in_order_.push_back(parameter);
    shards_.push_back(parameter);
  }

  [[nodiscard]] const plan::ResolvedPlan& plan() const override { return plan_; }
  [[nodiscard]] std::span<const at::Tensor> flat_shards() const override { return shards_; }

  [[nodiscard]] std::vector<fsdp::ParameterSlice> slices() const override {
    std::vector<fsdp::ParameterSlice> slices;
    if (sharded_ != nullptr) {
      slices = sharded_->slices();
    }
    for (const auto& [index, tensor] : whole_) {
      slices.push_back({index, 0, tensor.detach().view({-1})});
    }
    return slices;
  }

  void materialize() override {
    if (sharded_ != nullptr) {
      sharded_->materialize();
    }
    for (auto& each : whole_) {
      give_storage(each.second);
    }
  }

  void set_requires_gradient_sync(bool sync) override {
    if (sharded_ != nullptr) {
      sharded_->set_requires_gradient_sync(sync);
    }
    for (const auto& state : states_) {
      state->set_requires_gradient_sync(sync);
    }
  }

  void begin_microbatch(bool last) override {
    if (sharded_ != nullptr) {
      sharded_->begin_microbatch(last);
    }
  }

  // The shards of the sharded part come first in flat_shards().
  void set_optimizer_in_backward(fsdp::OptimizerInBackward optimizer) override {
    if (sharded_ == nullptr) {
      throw UsageError("set_optimizer_in_backward: no unit of the plan has optimizer_in_backward");
    }
    sharded_->set_optimizer_in_backward(std::move(optimizer));
  }

  at::Tensor issue_clip_grad_norm(double max_norm, double norm_type) override {
    // Replicated gradients are equal on all ranks, so they are counted once, without an all-reduce.
    // For ignored parameters this rank's own gradients are counted, as in FSDP1.
    if (plan_.steps_in_backward() && !std::isinf(max_norm)) {
      throw UsageError(
          "clip_grad_norm: optimizer_in_backward has used gradients already; expected no clipping");
    }
    std::vector<at::Tensor> grads = gradients();
    if (!in_order_.empty() && !in_order_.front().is_cpu()) {
      return clip_on_device(std::move(grads), in_order_.front().device(), max_norm, norm_type);
    }
    double total = fsdp::norm_part(grads, norm_type);
    if (sharded_ != nullptr) {
      const double norm =
          sharded_->clip_grad_norm(std::numeric_limits<double>::infinity(), norm_type);
      total = fsdp::add_parts(total, std::isinf(norm_type) ? norm : std::pow(norm, norm_type),
                              norm_type);
    }
    const double norm = fsdp::norm_of_parts(total, norm_type);
    fsdp::clip_to(grads, norm, max_norm);
    if (sharded_ != nullptr) {
      fsdp::clip_to(sharded_gradients(), norm, max_norm);
    }
    return at::scalar_tensor(norm, at::kDouble);
  }

  void zero_grad() override {
    if (sharded_ != nullptr) {
      sharded_->zero_grad();
    }
    for (const at::Tensor& parameter : in_order_) {
      parameter.mutable_grad().reset();
    }
  }

  void optimizer_done() override {
    if (sharded_ != nullptr) {
      sharded_->optimizer_done();
    }
  }

  [[nodiscard]] at::Tensor full_parameter(uint32_t parameter) override {
    if (const auto found = whole_.find(parameter); found != whole_.end()) {
      return found->second.detach().clone();
    }
    if (sharded_ != nullptr) {
      return sharded_->full_parameter(parameter);
    }
    throw UsageError("full_parameter: the plan has no parameter with index " +
                     std::to_string(parameter));
  }

  void abort() override {
    if (sharded_ != nullptr) {
      sharded_->abort();
    }
    for (const auto& state : states_) {
      state->abort();
    }
  }

  void remember_microbatches() override { alone("remember_microbatches").remember_microbatches(); }
  [[nodiscard]] bool can_shadow() const override {
    return sharded_ != nullptr && sharded_->can_shadow();
  }
  void shadow_microbatch() override { alone("shadow_microbatch").shadow_microbatch(); }
  void divide_gradients_by(int64_t ranks) override {
    alone("divide_gradients_by").divide_gradients_by(ranks);
  }

  uint32_t record_action(const schedule::Action& action) override { return log_->action(action); }

  void free_finished() override {
    if (sharded_ != nullptr) {
      sharded_->free_finished();
    }
  }
  [[nodiscard]] int64_t unsharded_bytes() const override {
    return sharded_ == nullptr ? 0 : sharded_->unsharded_bytes();
  }

 private:
  [[nodiscard]] dist::World& world() const override { return world_; }

  // The sharded part, if there are no Reducers, which could not follow.
  fsdp::ShardedModel& alone(const char* what) {
    if (!states_.empty() || sharded_ == nullptr) {
      throw UsageError(std::string(what) +
                       R"(: the plan has units with "api": "replicate"; expected "fully_shard", )"
                       R"(which with "mesh": {"shard": 1} replicates too)");
    }
    return *sharded_;
  }

  // The same; all norms stay on the device.
  at::Tensor clip_on_device(std::vector<at::Tensor> grads,
                            c10::Device device,
                            double max_norm,
                            double norm_type) {
    at::Tensor parts = fsdp::norm_parts_on_device(grads, norm_type, device);
    if (sharded_ != nullptr) {
      const at::Tensor norm =
          sharded_->issue_clip_grad_norm(std::numeric_limits<double>::infinity(), norm_type)
              .reshape({1});
      parts = at::cat({parts, std::isinf(norm_type) ? norm : norm.pow(norm_type)});
      const std::vector<at::Tensor> sharded = sharded_gradients();
      grads.insert(grads.end(), sharded.begin(), sharded.end());
    }
    const at::Tensor norm = fsdp::norm_on_device(parts, norm_type);
    if (fsdp::clip_waits(grads, max_norm)) {
      world_.world().wait_for_device();
    }
    fsdp::clip_on_device(grads, norm, max_norm);
    return norm;
  }

  [[nodiscard]] std::vector<at::Tensor> sharded_gradients() const {
    std::vector<at::Tensor> grads;
    for (const at::Tensor& shard : sharded_->flat_shards()) {
      if (shard.grad().defined()) {
        grads.push_back(shard.grad());
      }
    }
    return grads;
  }

  [[nodiscard]] std::vector<at::Tensor> gradients() const {
    std::vector<at::Tensor> grads;
    for (const at::Tensor& parameter : in_order_) {
      if (parameter.grad().defined()) {
        grads.push_back(parameter.grad());
      }
    }
    return grads;
  }

  plan::ResolvedPlan plan_;
  std::shared_ptr<fsdp::ShardedModel> sharded_;  // null: every unit is replicated
  std::shared_ptr<Log> log_;
  dist::World& world_;
  std::vector<std::shared_ptr<replicate::ReplicateState>> states_;
  std::unordered_map<uint32_t, at::Tensor> whole_;  // unsharded parameters, by index in the tree
  std::vector<at::Tensor> in_order_, shards_;
};

bool is_replicated(const plan::Unit& unit) {
  return unit.api == plan::Api::kReplicate;
}

replicate::Options options_of(const schedule::ReplicateGroup& group,
                              const plan::ResolvedPlan& plan,
                              dist::World* world) {
  const plan::Unit& unit = plan.units[group.units.front()];
  replicate::Options options;
  options.world = world;
  options.bucket_cap_mb = unit.bucket_cap_mb;
  options.find_unused_parameters = unit.find_unused_parameters;
  options.static_graph = unit.static_graph;
  options.gradient_as_bucket_view = unit.gradient_as_bucket_view;
  return options;
}

}  // namespace

std::shared_ptr<fsdp::ShardedModel> apply_plan(const ModulePtr& model,
                                               const plan::ResolvedPlan& given,
                                               const fsdp::Options& options) {
  if (given.ignored_parameters.empty() && std::ranges::none_of(given.units, is_replicated)) {
    return fsdp::fully_shard(model, given, options);
  }
  plan::require_engine_support(given);
  std::vector<at::Tensor> parameters = module::checked_parameters(*model, given.tree, "replicate");
  plan::ResolvedPlan plan = given;
  module::share_frozen(plan.tree, parameters);
  const std::vector<schedule::ReplicateGroup> groups = schedule::replicate_groups(plan);
  if (options.deferred && !groups.empty()) {
    throw UsageError("replicate: unit '" + plan.units[groups.front().units.front()].fqn +
                     "' cannot be deferred: its initial values are broadcast from rank 0");
  }
  const auto log = std::make_shared<Log>();
  log->recorder = options.recorder;
  std::shared_ptr<fsdp::ShardedModel> sharded;
  bool shards = false;
  for (const plan::Unit& unit : plan.units) {
    log->names.push_back(unit.fqn);
    shards = shards || (!is_replicated(unit) && !unit.parameters.empty());
  }
  if (shards) {
    sharded = fsdp::fully_shard(model, plan, options);
    log->sharded = sharded;
  } else {
    for (const module::NamedModule& each : module::modules_to_checkpoint(model, plan)) {
      module::checkpoint(each.module, each.fqn);
    }
    if (options.recorder != nullptr) {
      const std::vector<std::string> names(log->names.begin(), log->names.end());
      options.recorder->units(names);
      options.recorder->groups(mesh::names_of(plan.groups));
    }
  }
  auto result = std::make_shared<ParallelModel>(plan, sharded, log, *options.world);
  std::vector<uint32_t> unreduced = plan.ignored_parameters;
  for (const plan::Unit& unit : plan.units) {
    std::ranges::copy_if(unit.parameters, std::back_inserter(unreduced), [&](uint32_t index) {
      return is_replicated(unit) && !plan.tree.parameters[index].requires_grad;
    });
  }
  for (const uint32_t index : unreduced) {
    if (!options.deferred) {
      give_storage(parameters[index]);
    }
    result->add_whole(index, parameters[index]);
  }
  const module::ModulesByFqn modules = module::modules_by_fqn(*model);
  for (size_t g = 0; g < groups.size(); ++g) {
    const schedule::ReplicateGroup& group = groups[g];
    std::vector<replicate::MarkedModule> marked;
    for (const UnitId unit : group.units) {
      for (const uint32_t index : plan.units[unit].modules) {
        const std::string& fqn = plan.tree.modules[index].fqn;
        const auto found = modules.find(fqn);
        if (found == modules.end()) {
          throw UsageError("replicate: the plan has unit '" + fqn +
                           "', but the model has no such module");
        }
        marked.push_back({fqn, found->second});
      }
    }
    std::vector<replicate::NamedParameter> own;
    for (const uint32_t index : group.parameters) {
      give_storage(parameters[index]);
      result->add_whole(index, parameters[index]);
      own.push_back({plan.tree.parameters[index].fqn, parameters[index]});
    }
    replicate::Options each = options_of(group, plan, options.world);
    each.observer = std::make_shared<LaunchRecorder>(
        log, plan, group.parameters, groups.size() > 1 ? std::optional(g) : std::nullopt);
    result->add(replicate::replicate(model, marked, own, each));
  }
  return result;
}

}  // namespace shardlens::train
