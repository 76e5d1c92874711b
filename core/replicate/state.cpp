#include <atomic>
#include <limits>
#include <sstream>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <torch/nn/module.h>

#include "core/base/error.h"
#include "core/dist/process_group.h"
#include "core/dist/same_device.h"
#include "core/dist/world.h"
#include "core/replicate/output_sink.h"
#include "core/replicate/replicate.h"
#include "core/replicate/verify.h"

namespace shardlens::replicate {
namespace {

std::atomic<int64_t> live_states{0};

// Size of the chunks in which values are broadcast, as in DDP.
constexpr size_t kBroadcastBytes = size_t{250} << 20;

constexpr size_t kNoLaunch = std::numeric_limits<size_t>::max();

}  // namespace

struct ReplicateState::Impl : std::enable_shared_from_this<ReplicateState::Impl> {
  Options options;
  std::weak_ptr<torch::nn::Module> root;
  std::function<std::vector<NamedParameter>()> collect;

  std::vector<NamedParameter> parameters;
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  std::shared_ptr<c10d::Reducer> reducer;
  std::vector<std::vector<uint32_t>> buckets;
  std::unique_ptr<c10d::CommHookInterface> queued_hook;
  std::optional<BuiltinHook> queued_builtin;
  bool has_hook = false;

  bool sync = true;
  bool sync_buffers_next = true;   // the last forward has a reduction (DDP's forward param sync)
  bool delay_enqueued = false;     // static graph: the first iteration's reductions are queued
  std::string_view phase;          // what collectives outside of backward are for
  size_t launched = 0;             // number of buckets that this backward has launched
  size_t hook_bucket = kNoLaunch;  // the bucket whose comm hook runs
  std::vector<std::string> bucket_words;  // names of the buckets, used without an observer

  void init();
  void make_reducer(std::vector<at::Tensor> tensors);
  void note_buckets();
  dist::Purpose launch(size_t index);
  dist::Purpose purpose_of(CollectiveKind kind, const at::Tensor& tensor);
  void broadcast_values(std::vector<at::Tensor> tensors, std::string_view what);
  [[nodiscard]] std::vector<at::Tensor> buffers() const;
  void install_hook(std::unique_ptr<c10d::CommHookInterface> hook);
  void install_hook(BuiltinHook hook);
  [[nodiscard]] std::string prefix() const {
    return fmt::format("[rank {}] replicate: ", options.world->rank());
  }
  [[nodiscard]] std::string names_in(const std::string& indices) const;
  template <typename Call>
  auto reworded(Call call);
};

namespace {

// Stores the bucket for which a user's hook runs, so that the hook's collectives are attributed to
// this bucket.
class WatchedHook final : public c10d::CommHookInterface {
 public:
  WatchedHook(std::unique_ptr<c10d::CommHookInterface> hook, size_t& bucket)
      : hook_(std::move(hook)), bucket_(bucket) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    bucket_ = bucket.getIndex();
    auto future = hook_->runHook(bucket);
    bucket_ = kNoLaunch;
    return future;
  }
  at::Tensor parseHookResult(const c10::IValue& result) override {
    return hook_->parseHookResult(result);
  }

 private:
  std::unique_ptr<c10d::CommHookInterface> hook_;
  size_t& bucket_;
};

}  // namespace

// The names of the parameters with these indices, which a message of the Reducer lists.
std::string ReplicateState::Impl::names_in(const std::string& indices) const {
  std::istringstream in(indices);
  std::string names;
  for (size_t index = 0; in >> index;) {
    if (index < parameters.size()) {
      names += (names.empty() ? "'" : ", '") + parameters[index].name + "'";
    }
  }
  return names;
}

template <typename Call>
auto ReplicateState::Impl::reworded(Call call) {
  try {
    return call();
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    constexpr std::string_view kUnused = "Parameter indices which did not receive grad for rank ";
    if (const size_t at = message.find(kUnused); at != std::string::npos) {
      const size_t colon = message.find(':', at);
      const size_t end = std::min(message.find('\n', at), message.size());
      throw UsageError(
          prefix() +
          "Expected to have finished reduction in the prior iteration before starting a new one: "
          "no gradient came for " +
          names_in(message.substr(colon + 1, end - colon - 1)) +
          "; set find_unused_parameters if the loss does not depend on them");
    }
    throw RuntimeFault(prefix() + message);
  }
}

std::vector<at::Tensor> ReplicateState::Impl::buffers() const {
  std::vector<at::Tensor> out;
  if (const auto module = root.lock()) {
    for (const at::Tensor& buffer : module->buffers()) {
      out.push_back(buffer.detach());
    }
  }
  return out;
}

void ReplicateState::Impl::broadcast_values(std::vector<at::Tensor> tensors,
                                            std::string_view what) {
  if (tensors.empty()) {
    return;
  }
  const at::NoGradGuard no_grad;
  phase = what;
  c10d::broadcast_coalesced(group, tensors, kBroadcastBytes, 0);
}

void ReplicateState::Impl::init() {
  parameters = collect();
  if (parameters.empty()) {
    throw UsageError(prefix() +
                     "no parameter to replicate: no parameter of the modules requires a gradient, "
                     "or all are ignored or managed by fully_shard");
  }
  const c10::Device device = options.world->world().device();
  for (const NamedParameter& each : parameters) {
    if (!dist::same_device(each.tensor.device(), device)) {
      throw UsageError(fmt::format(
          "{}parameter '{}' is on {}, and the ranks communicate on {}; move the model there first",
          prefix(), each.name, each.tensor.device().str(), device.str()));
    }
  }
  collect = nullptr;
  const std::weak_ptr<Impl> weak = weak_from_this();
  group = dist::make_process_group(
      options.world->world(), [weak](CollectiveKind kind, const at::Tensor& tensor) {
        const auto self = weak.lock();
        return self == nullptr ? dist::Purpose{} : self->purpose_of(kind, tensor);
      });
  phase = "the check of replicated parameters";
  verify_parameters(group, parameters);
  std::vector<at::Tensor> tensors, values;
  for (const NamedParameter& each : parameters) {
    tensors.push_back(each.tensor);
    values.push_back(each.tensor.detach());
  }
  const std::vector<at::Tensor> more = buffers();
  values.insert(values.end(), more.begin(), more.end());
  broadcast_values(std::move(values), "the initial values of replicated parameters");
  make_reducer(std::move(tensors));
  note_buckets();
  if (queued_hook != nullptr) {
    install_hook(std::move(queued_hook));
  } else if (queued_builtin) {
    install_hook(*queued_builtin);
  }
}

// Same as DDP's _ddp_init_helper.
void ReplicateState::Impl::make_reducer(std::vector<at::Tensor> tensors) {
  const std::vector<bool> sparse(tensors.size(), false);
  const int64_t cap = options.bucket_cap_mb
                          ? static_cast<int64_t>(*options.bucket_cap_mb * 1024 * 1024)
                          : c10d::kDefaultBucketBytesCap;
  const int64_t first = options.bucket_cap_mb ? cap : c10d::kDefaultFirstBucketBytes;
  std::vector<size_t> limits{static_cast<size_t>(std::numeric_limits<int64_t>::max())};
  if (options.find_unused_parameters && !options.static_graph) {
    limits = options.bucket_cap_mb
                 ? std::vector{static_cast<size_t>(cap)}
                 : std::vector{static_cast<size_t>(first), static_cast<size_t>(cap)};
  }
  auto [assignment, per_bucket_limits] =
      c10d::compute_bucket_assignment_by_size(tensors, limits, sparse);
  std::reverse(assignment.begin(), assignment.end());
  std::unordered_map<size_t, std::string> names;
  for (size_t i = 0; i < parameters.size(); ++i) {
    names[i] = parameters[i].name;
  }
  reducer = std::make_shared<c10d::Reducer>(
      std::move(tensors), std::move(assignment), group, sparse, cap, options.find_unused_parameters,
      options.gradient_as_bucket_view, std::move(names), first,
      /*skip_all_reduce_unused_params=*/false,
      /*use_python_reducer=*/false, /*bucket_bytes_cap_list=*/std::vector<int64_t>{});
  if (options.static_graph) {
    reducer->set_static_graph();
  }
}

void ReplicateState::Impl::note_buckets() {
  std::unordered_map<const c10::TensorImpl*, uint32_t> index_of;
  for (uint32_t i = 0; i < parameters.size(); ++i) {
    index_of[parameters[i].tensor.unsafeGetTensorImpl()] = i;
  }
  buckets.clear();
  for (const c10d::GradBucket& bucket : reducer->get_grad_buckets(/*return_zero_tensors=*/false)) {
    std::vector<uint32_t>& indices = buckets.emplace_back();
    for (const at::Tensor& parameter : bucket.getParameters()) {
      indices.push_back(index_of.at(parameter.unsafeGetTensorImpl()));
    }
  }
  bucket_words.clear();
  for (const auto& bucket : buckets) {
    bucket_words.push_back(fmt::format("a bucket of {} gradients from '{}' on", bucket.size(),
                                       parameters[bucket.front()].name));
  }
  if (options.observer != nullptr) {
    options.observer->rebuilt(buckets);
  }
}

dist::Purpose ReplicateState::Impl::launch(size_t index) {
  if (index + 1 == buckets.size() && options.observer != nullptr) {
    // The Reducer's own callback, which waits, is queued after this one.
    torch::autograd::Engine::get_default_engine().queue_callback(
        [observer = std::weak_ptr(options.observer)] {
          if (const auto alive = observer.lock()) {
            alive->wait();
          }
        });
  }
  return options.observer != nullptr ? options.observer->launch(index)
                                     : dist::Purpose{kNoUnit, bucket_words.at(index)};
}

// In backward the Reducer reduces its buckets in order, with one all-reduce each, unless a user's
// hook reduces them in another way. The map of used parameters has integers.
dist::Purpose ReplicateState::Impl::purpose_of(CollectiveKind kind, const at::Tensor& tensor) {
  if (hook_bucket != kNoLaunch) {
    return launch(hook_bucket);
  }
  if (!phase.empty()) {
    return {kNoUnit, phase};
  }
  if (kind == CollectiveKind::kAllReduce && tensor.is_floating_point() &&
      launched < buckets.size()) {
    return launch(launched++);
  }
  return {kNoUnit, "the map of used parameters"};
}

void ReplicateState::Impl::install_hook(std::unique_ptr<c10d::CommHookInterface> hook) {
  reworded([&] {
    reducer->register_comm_hook(std::make_unique<WatchedHook>(std::move(hook), hook_bucket));
  });
}

void ReplicateState::Impl::install_hook(BuiltinHook hook) {
  reworded([&] {
    reducer->register_builtin_comm_hook(hook == BuiltinHook::kFp16Compress
                                            ? c10d::BuiltinCommHookType::FP16_COMPRESS
                                            : c10d::BuiltinCommHookType::ALLREDUCE);
  });
}

ReplicateState::ReplicateState(Options options,
                               std::weak_ptr<torch::nn::Module> root,
                               std::function<std::vector<NamedParameter>()> collect)
    : impl_(std::make_shared<Impl>()) {
  impl_->options = std::move(options);
  impl_->root = std::move(root);
  impl_->collect = std::move(collect);
  ++live_states;
}

ReplicateState::~ReplicateState() {
  --live_states;
}

int64_t ReplicateState::live() {
  return live_states;
}

void ReplicateState::set_requires_gradient_sync(bool sync) {
  impl_->sync = sync;
}

void ReplicateState::register_comm_hook(std::unique_ptr<c10d::CommHookInterface> hook) {
  if (std::exchange(impl_->has_hook, true)) {
    throw UsageError(impl_->prefix() + "a comm hook has been registered already; expected one");
  }
  if (impl_->reducer != nullptr) {
    impl_->install_hook(std::move(hook));
  } else {
    impl_->queued_hook = std::move(hook);
  }
}

void ReplicateState::register_comm_hook(BuiltinHook hook) {
  if (std::exchange(impl_->has_hook, true)) {
    throw UsageError(impl_->prefix() + "a comm hook has been registered already; expected one");
  }
  if (impl_->reducer != nullptr) {
    impl_->install_hook(hook);
  } else {
    impl_->queued_builtin = hook;
  }
}

const std::vector<NamedParameter>& ReplicateState::parameters() const {
  return impl_->parameters;
}

const std::vector<std::vector<uint32_t>>& ReplicateState::buckets() const {
  return impl_->buckets;
}

void ReplicateState::abort() {
  impl_->hook_bucket = kNoLaunch;
  if (impl_->reducer != nullptr) {
    impl_->reducer->reset_state();
  }
}

void ReplicateState::pre_forward() {
  Impl& self = *impl_;
  if (self.reducer == nullptr) {
    self.init();
  }
  const bool grad = at::GradMode::is_enabled();
  self.reworded([&] {
    if (grad && self.sync) {
      self.reducer->prepare_for_forward();
    }
    self.phase = "the order of rebuilt buckets";
    if (grad && self.reducer->rebuild_buckets()) {
      self.note_buckets();
    }
    if (self.sync_buffers_next && self.options.broadcast_buffers) {
      self.broadcast_values(self.buffers(), "the buffers of replicated modules");
    }
  });
  self.phase = {};
}

void ReplicateState::post_forward(module::TensorRefs& outputs) {
  Impl& self = *impl_;
  const bool reduces = at::GradMode::is_enabled() && self.sync;
  self.sync_buffers_next = reduces;
  const bool searches = self.options.find_unused_parameters && !self.options.static_graph;
  if (reduces) {
    std::vector<at::Tensor> tensors;
    for (const at::Tensor* output : outputs) {
      if (searches && output->defined()) {
        tensors.push_back(*output);
      }
    }
    self.launched = 0;
    self.reworded([&] { self.reducer->prepare_for_backward(tensors); });
  }
  if (!at::GradMode::is_enabled()) {
    return;
  }
  if (searches) {
    pass_through_sink(outputs, nullptr);
  } else if (self.options.static_graph && !self.delay_enqueued) {
    pass_through_sink(outputs, [weak = std::weak_ptr(impl_)] {
      const auto state = weak.lock();
      if (state == nullptr || std::exchange(state->delay_enqueued, true)) {
        return;
      }
      torch::autograd::Engine::get_default_engine().queue_callback([weak] {
        if (const auto alive = weak.lock()) {
          alive->reducer->delay_all_reduce();
        }
      });
    });
  }
}

}  // namespace shardlens::replicate
