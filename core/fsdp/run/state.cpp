#include "core/fsdp/run/state.h"

#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "core/fsdp/run/module_save.h"

namespace shardlens::fsdp {
namespace {

// The state of each parameter. Handles keep their tensors alive, so an address is unique as long as
// its entry exists.
struct Owners {
  std::mutex mutex;
  std::unordered_map<const c10::TensorImpl*, const FsdpState*> of;  // guarded by mutex
};
Owners& owners() {
  static auto& instance = *new Owners;  // never destroyed: models in static variables use it
  return instance;
}

}  // namespace

FsdpState::~FsdpState() {
  const std::lock_guard lock(owners().mutex);
  for (size_t i = 0; handle_ != nullptr && i < handle_->slots().size(); ++i) {
    owners().of.erase(handle_->slots()[i].parameter.unsafeGetTensorImpl());
  }
}

void FsdpState::set_handle(std::shared_ptr<FlatParamHandle> handle) {
  use_checked_save();
  const std::lock_guard lock(owners().mutex);
  handle_ = std::move(handle);
  for (size_t i = 0; handle_ != nullptr && i < handle_->slots().size(); ++i) {
    owners().of[handle_->slots()[i].parameter.unsafeGetTensorImpl()] = this;
  }
}

const FsdpState* FsdpState::owner_of(const at::Tensor& parameter) {
  const std::lock_guard lock(owners().mutex);
  const auto found = owners().of.find(parameter.unsafeGetTensorImpl());
  return found == owners().of.end() ? nullptr : found->second;
}

void FsdpState::join(const std::shared_ptr<Root>& root, UnitId unit) {
  root_ = root;
  unit_ = unit;
  application_.reset();
}

void FsdpState::set_application(Application application) {
  application_ = std::make_unique<Application>(std::move(application));
}

}  // namespace shardlens::fsdp
