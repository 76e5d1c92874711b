#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/composable/module_state.h"
#include "core/fsdp/run/fsdp_options.h"
#include "core/fsdp/unit/flat_param_handle.h"
#include "core/plan/plan.h"

namespace shardlens::fsdp {

class Root;

// The state of one unit, which module_state(module) returns for each of its modules. Modules that
// are sharded together share it.
class FsdpState : public composable::State {
 public:
  // The arguments of fully_shard_unit(), kept until a forward determines the unit's root.
  struct Application {
    std::vector<std::weak_ptr<torch::nn::Module>> modules;
    plan::Plan settings;
    Options options;
    std::vector<at::Tensor> ignored;  // parameters that the settings exclude
  };

  FsdpState() = default;
  explicit FsdpState(UnitId unit) : unit_(unit) {}
  FsdpState(const FsdpState&) = delete;
  FsdpState& operator=(const FsdpState&) = delete;
  ~FsdpState() override;

  [[nodiscard]] UnitId unit() const { return unit_; }  // kNoUnit before its root is known
  [[nodiscard]] bool is_root() const { return unit_ == 0; }
  // Null if the unit owns no parameters.
  [[nodiscard]] FlatParamHandle* handle() const { return handle_.get(); }
  void set_handle(std::shared_ptr<FlatParamHandle> handle);
  // The state whose handle contains the parameter, or null.
  //
  // Threads     any.
  [[nodiscard]] static const FsdpState* owner_of(const at::Tensor& parameter);

  [[nodiscard]] std::shared_ptr<Root> root() const { return root_.lock(); }
  void join(const std::shared_ptr<Root>& root, UnitId unit);
  // Null for a unit of a plan, and after the root is determined.
  [[nodiscard]] const Application* application() const { return application_.get(); }
  void set_application(Application application);

 private:
  UnitId unit_ = kNoUnit;
  std::shared_ptr<FlatParamHandle> handle_;  // shared with queued work
  std::weak_ptr<Root> root_;
  std::unique_ptr<Application> application_;
};

// The state that manages `module` if that is an FSDP state, else null (PyTorch's
// _get_module_fsdp_state). Does not create or change anything.
[[nodiscard]] inline std::shared_ptr<FsdpState> module_fsdp_state(const torch::nn::Module& module) {
  return composable::module_state_as<FsdpState>(module);
}

}  // namespace shardlens::fsdp
