#include "core/train/run_checkpoints.h"

#include <span>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include "core/base/error.h"
#include "core/checkpoint/checkpoint_reader.h"
#include "core/checkpoint/save_directory.h"
#include "core/dist/world.h"
#include "core/fsdp/apply/fully_shard.h"
#include "core/train/background_save.h"
#include "core/train/grad_scaler.h"
#include "core/train/in_shard.h"
#include "core/train/optimizer.h"

namespace shardlens::train {
namespace {

// Fills `values` [n] fp32 with elements of a stored tensor.
void fill(checkpoint::Reader& reader,
          const checkpoint::SavedTensor& stored,
          int64_t first,
          const at::Tensor& values) {
  SHARDLENS_CHECK(values.scalar_type() == at::kFloat && values.is_contiguous(),
                  "master parameters and optimizer states are contiguous fp32");
  const at::Tensor host =
      values.is_cpu() ? values : at::empty(values.sizes(), values.options().device(at::kCPU));
  reader.read(stored, first,
              {static_cast<float*>(host.data_ptr()), static_cast<size_t>(host.numel())});
  if (!values.is_cpu()) {
    values.copy_(host);
  }
}

std::vector<std::string> names_of(const plan::Parameter& parameter) {
  std::vector<std::string> names{parameter.fqn};
  names.insert(names.end(), parameter.aliases.begin(), parameter.aliases.end());
  return names;
}

}  // namespace

RunCheckpoints::RunCheckpoints(fsdp::ShardedModel& model,
                               dist::World& world,
                               const plan::StepSettings& step,
                               CheckpointOptions options,
                               c10::Device device)
    : model_(model), world_(world), step_(step), options_(std::move(options)), device_(device) {
  const plan::ResolvedPlan& plan = model_.plan();
  holders_.assign(plan.tree.parameters.size(), Holder::kShard);
  for (const plan::Unit& unit : plan.units) {
    for (const uint32_t parameter : unit.parameters) {
      if (unit.api == plan::Api::kReplicate) {
        holders_[parameter] = Holder::kReplica;
      }
    }
  }
  for (const uint32_t parameter : plan.ignored_parameters) {
    holders_[parameter] = Holder::kOwn;
  }
  if (!options_.save.empty()) {
    open_directory();
  }
  start_.seq = step_.seq.value_or(1);
  if (!options_.resume.empty()) {
    reader_ = std::make_unique<checkpoint::Reader>(checkpoint::Reader::open(options_.resume));
    const checkpoint::Position& saved = reader_->index().position;
    start_.step = saved.step;
    // The first sample of this length that begins at or after the position.
    start_.samples = (saved.samples * saved.seq + start_.seq - 1) / start_.seq;
    start_.scaler = saved.scaler;
  }
}

RunCheckpoints::~RunCheckpoints() = default;

// Gradients of ignored parameters are not reduced, so their values differ between the ranks.
bool RunCheckpoints::holds_own(uint32_t parameter) const {
  return holders_[parameter] == Holder::kOwn && world_.rank() > 0 &&
         model_.plan().tree.parameters[parameter].requires_grad;
}

// Of the ranks that store the same, one writes; the choice spreads the parameters over them.
bool RunCheckpoints::writes(uint32_t parameter) const {
  const plan::ResolvedPlan& plan = model_.plan();
  switch (holders_[parameter]) {
    case Holder::kShard:
      return plan.groups[plan::kReplicateGroup].position(world_.rank()) ==
             parameter % plan.replicas();
    case Holder::kReplica:
      return world_.rank() == parameter % plan.world_size;
    case Holder::kOwn:
      return world_.rank() == 0 || holds_own(parameter);
  }
  return false;
}

// The name under which this rank reads and writes a parameter.
std::string RunCheckpoints::stored_name(uint32_t parameter) const {
  const std::string& fqn = model_.plan().tree.parameters[parameter].fqn;
  return holds_own(parameter) ? checkpoint::name_on_rank(world_.rank(), fqn) : fqn;
}

void RunCheckpoints::restore_parameters() {
  const c10::NoGradGuard no_grad;
  const plan::ModuleTree& tree = model_.plan().tree;
  // Every rank checks every parameter: all ranks fail with the same error.
  std::vector<const checkpoint::SavedTensor*> stored;
  for (const plan::Parameter& parameter : tree.parameters) {
    const checkpoint::SavedTensor* found = nullptr;
    for (const std::string& name : names_of(parameter)) {
      found = found == nullptr ? reader_->find(name) : found;
    }
    const bool empty = numel_of(parameter.shape) == 0;  // in no file
    stored.push_back(found == nullptr && !empty ? &reader_->at(parameter.fqn) : found);
    if (!empty && stored.back()->shape != parameter.shape) {
      throw InputError(
          reader_->path().string(),
          fmt::format("parameter '{}' has shape [{}], the model's config needs [{}]", parameter.fqn,
                      fmt::join(stored.back()->shape, ", "), fmt::join(parameter.shape, ", ")));
    }
  }
  for (const fsdp::ParameterSlice& slice : model_.slices()) {
    const checkpoint::SavedTensor* own = reader_->find(stored_name(slice.parameter));
    fill(*reader_, own == nullptr ? *stored[slice.parameter] : *own, slice.offset, slice.values);
  }
}

void RunCheckpoints::restore_state(Optimizer& optimizer, GradScaler* scaler) {
  if (reader_ == nullptr) {
    return;
  }
  const c10::NoGradGuard no_grad;
  restore_optimizer(optimizer);
  if (scaler != nullptr && start_.scaler) {
    scaler->restore(start_.scaler->scale, start_.scaler->good_steps);
  }
  restore_generator();
  reader_.reset();  // unmaps the files
}

void RunCheckpoints::restore_optimizer(Optimizer& optimizer) {
  const std::string& saved = reader_->index().origin.optimizer;
  if (!saved.empty() && saved != plan::name_of(step_.optimizer)) {
    throw InputError(reader_->path().string(),
                     fmt::format("has the optimizer state of {}, this run has --optimizer {}",
                                 saved, plan::name_of(step_.optimizer)));
  }
  if (optimizer.moments().empty()) {
    return;
  }
  const plan::ModuleTree& tree = model_.plan().tree;
  struct Member {
    const fsdp::ParameterSlice* slice;
    int64_t offset;
    std::string name;  // of the parameter in the checkpoint
    double steps;      // 0: no state
  };
  const std::vector<fsdp::ParameterSlice> slices = model_.slices();
  std::vector<std::vector<Member>> members(optimizer.states().size());
  for (const fsdp::ParameterSlice& slice : slices) {
    const auto place = place_in_shard(slice.values, optimizer.states());
    if (!place) {
      continue;
    }
    Member member{&slice, place->offset, "", 0};
    std::vector<std::string> names = names_of(tree.parameters[slice.parameter]);
    names.insert(names.begin(), stored_name(slice.parameter));
    for (const std::string& name : names) {
      if (reader_->find(checkpoint::state_name(name, optimizer.moments().front())) != nullptr) {
        member.name = name;
        member.steps = 1;
        break;
      }
    }
    if (const auto* step = reader_->find(checkpoint::state_name(member.name, "step"))) {
      float steps = 0;
      reader_->read(*step, 0, {&steps, 1});
      member.steps = steps;
    }
    members[place->shard].push_back(std::move(member));
  }
  for (size_t shard = 0; shard < members.size(); ++shard) {
    const std::vector<Member>& all = members[shard];
    for (const Member& member : all) {
      if (member.steps != all.front().steps) {
        throw InputError(
            reader_->path().string(),
            fmt::format("the optimizer has made {} steps with '{}' and {} with '{}', "
                        "which are "
                        "sharded together here; resume with the plan of the checkpoint",
                        all.front().steps, tree.parameters[all.front().slice->parameter].fqn,
                        member.steps, tree.parameters[member.slice->parameter].fqn));
      }
    }
    if (all.empty() || all.front().steps == 0) {
      continue;
    }
    optimizer.create_state(shard, all.front().steps);
    const ShardState& state = optimizer.states()[shard];
    for (const Member& member : all) {
      for (size_t i = 0; i < optimizer.moments().size(); ++i) {
        fill(*reader_, reader_->at(checkpoint::state_name(member.name, optimizer.moments()[i])),
             member.slice->offset,
             state.moment(i).view({-1}).narrow(0, member.offset, member.slice->values.numel()));
      }
    }
  }
}

std::string RunCheckpoints::generator_name() const {
  return device_.is_cpu() ? "rng.cpu" : "rng.cuda";
}

// Ranks that the checkpoint does not have keep the generator of a new process.
void RunCheckpoints::restore_generator() {
  const auto* stored = reader_->find(checkpoint::name_on_rank(world_.rank(), generator_name()));
  if (stored == nullptr) {
    return;
  }
  at::Tensor state = at::empty(stored->shape, at::TensorOptions(at::kByte));
  reader_->read_bytes(*stored, 0, {static_cast<std::byte*>(state.data_ptr()), state.nbytes()});
  at::Generator generator = at::globalContext().defaultGenerator(device_);
  generator.set_state(state);
}

}  // namespace shardlens::train
