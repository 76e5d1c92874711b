#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/ordered_dict.h>

#include "core/fsdp/unit/flat_param_handle.h"
#include "core/module/forward_shape.h"

namespace shardlens::fsdp {

// The part of FlattenParamsWrapper<M> that does not depend on the wrapped module's type.
//
// The wrapped module is the submodule "_fpw_module". Flattened parameters are registered only as
// part of "flat_param"; their tensors in the modules are views of it.
class FlattenedModule : public torch::nn::Module {
 public:
  static constexpr const char* kFlatParam = "flat_param";
  static constexpr const char* kModule = "_fpw_module";

  // `params`: parameters in `module`'s tree. They are flattened in the tree's order; a tensor that
  // several modules share occurs once. Empty: nothing is flattened, and the wrapper only removes
  // its prefix from state-dict keys. Errors: UsageError for a tensor that is not a parameter of the
  // tree, and those of FlatParamHandle.
  FlattenedModule(std::shared_ptr<torch::nn::Module> module, const std::vector<at::Tensor>& params);

  [[nodiscard]] bool has_params() const { return handle_ != nullptr; }
  // Errors: UsageError if the wrapper manages no parameters.
  [[nodiscard]] FlatParamHandle& handle() const;
  // Undefined if the wrapper manages no parameters, and while they are unflattened.
  [[nodiscard]] at::Tensor flat_param() const;
  // All registered names but the first of tensors that several modules share.
  [[nodiscard]] const std::vector<std::string>& shared_names() const { return shared_names_; }

  // While this object exists, the original parameters are registered as leaves that share the flat
  // parameter's storage, and the flat parameter is not registered. Its destructor flattens again,
  // also after an exception.
  class Unflattened {
   public:
    explicit Unflattened(FlattenedModule* module) : module_(module) {}
    Unflattened(Unflattened&& other) noexcept : module_(std::exchange(other.module_, nullptr)) {}
    Unflattened& operator=(Unflattened&&) = delete;
    ~Unflattened() {
      if (module_ != nullptr) {
        module_->flatten();
      }
    }

   private:
    FlattenedModule* module_;  // null: nothing to restore
  };
  // Does nothing if nothing is flattened, for example inside another such scope. The wrapper must
  // outlive the result.
  [[nodiscard]] Unflattened unflatten_as_params();

  // Keys in the archive are those of the wrapped module without "_fpw_module", and "flat_param".
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 protected:
  // Makes new views of the flat parameter; called at the start of every forward.
  void make_views();

 private:
  using Parameters = torch::OrderedDict<std::string, at::Tensor>;
  struct Owner {  // a module that a flattened parameter is registered in
    std::shared_ptr<torch::nn::Module> module;
    Parameters all, kept;  // its own parameters with and without the flattened ones
  };

  void flatten();

  std::shared_ptr<torch::nn::Module> wrapped_;
  std::vector<Owner> owners_;
  std::vector<std::string> shared_names_;
  std::unique_ptr<FlatParamHandle> handle_;
};

namespace detail {

template <typename M>
class Wraps : public FlattenedModule {
 public:
  Wraps(const std::shared_ptr<M>& module, const std::vector<at::Tensor>& params)
      : FlattenedModule(module, params), typed_(module.get()) {}

 protected:
  M* typed_;  // owned as the submodule
};

// forward() with M's signature, so that Sequential, AnyModule and Hookable accept the wrapper.
template <typename M, typename Signature>
class Signed;
template <typename M, typename Class, typename R, typename... Args>
class Signed<M, R (Class::*)(Args...)> : public Wraps<M> {
 public:
  using Wraps<M>::Wraps;
  R forward(Args... args) {
    this->make_views();
    return this->typed_->forward(std::forward<Args>(args)...);
  }
};
template <typename M, typename Class, typename R, typename... Args>
class Signed<M, R (Class::*)(Args...) const> : public Signed<M, R (Class::*)(Args...)> {
 public:
  using Signed<M, R (Class::*)(Args...)>::Signed;
};

// If M's forward is a template (or overloaded), forward() is a template.
template <typename M, typename = void>
class Forwards : public Wraps<M> {
 public:
  using Wraps<M>::Wraps;
  template <typename... Args>
  requires module::detail::ForwardTakes<M, Args...>
  auto forward(Args&&... args) {
    this->make_views();
    return this->typed_->forward(std::forward<Args>(args)...);
  }
};
template <typename M>
class Forwards<M, std::void_t<decltype(&M::forward)>> : public Signed<M, decltype(&M::forward)> {
 public:
  using Signed<M, decltype(&M::forward)>::Signed;
};

}  // namespace detail

// Flattens parameters in a module's subtree into one parameter; PyTorch's FSDP first used it for
// recursive wrapping. The optimizer gets `flat_param` and the parameters that are not flattened.
// Results are equal to those of the plain module.
//
// `wrapper->member` and `wrapper[i]` access the wrapped module; `wrapper.member` accesses the
// wrapper itself.
//
// Layout      parameters one after the other, without padding.
// Shapes      flat_param [sum of numels].
// Threads     not thread-safe.
// Errors      UsageError if the flat parameter was replaced by one of another size.
// Source      torch/distributed/fsdp/flatten_params_wrapper.py, torch 1.12 to 2.0, after
//             https://github.com/SsnL/PyTorch-Reparam-Module.
template <typename M>
class FlattenParamsWrapper : public detail::Forwards<M> {
 public:
  FlattenParamsWrapper(const std::shared_ptr<M>& module, const std::vector<at::Tensor>& params)
      : detail::Forwards<M>(module, params) {}

  [[nodiscard]] M& module() const { return *this->typed_; }
  [[nodiscard]] M* operator->() const { return this->typed_; }
  template <typename Index>
  [[nodiscard]] auto operator[](Index index) const -> decltype(std::declval<M&>()[index]) {
    return (*this->typed_)[index];
  }
};

template <typename M>
[[nodiscard]] std::shared_ptr<FlattenParamsWrapper<M>> flatten_params(
    const std::shared_ptr<M>& module, const std::vector<at::Tensor>& params) {
  return std::make_shared<FlattenParamsWrapper<M>>(module, params);
}

}  // namespace shardlens::fsdp
