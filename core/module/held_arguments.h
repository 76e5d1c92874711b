#pragma once

#include <tuple>
#include <type_traits>
#include <utility>

#include "core/composable/autograd_node.h"
#include "core/module/tensors_in.h"

// The arguments of a forward while its hooks run. Hooks may replace tensors: they get copies of
// what the forward only reads. What the forward takes by non-const reference is the caller's own
// object.
namespace shardlens::module::detail {

// An argument that is copied or moved in. Param is T, T&&, const T&; or T&, if the forward would
// also accept a temporary object.
template <typename Param>
class CopiedArgument {
 public:
  template <typename Arg>
  requires(!std::is_same_v<std::decay_t<Arg>, CopiedArgument>) explicit CopiedArgument(Arg&& arg)
      : value_(std::forward<Arg>(arg)) {}
  [[nodiscard]] Param&& pass() { return static_cast<Param&&>(value_); }
  void collect_inputs(TensorRefs& refs) { collect_tensors(refs, value_); }
  void collect_outputs(TensorRefs& /*refs*/) {}
  void give_back() {}

  static constexpr bool kRepeatable = std::is_copy_constructible_v<std::decay_t<Param>>;
  [[nodiscard]] CopiedArgument for_later() const { return *this; }

 private:
  std::decay_t<Param> value_;
};

// A caller's object that is not copied: the forward may change it, or it cannot contain tensors for
// the hooks. Of the tensors that the forward puts into it, those with a new place in autograd's
// graph are outputs.
template <typename Param>
class BorrowedArgument {
 public:
  explicit BorrowedArgument(std::remove_reference_t<Param>& arg) : value_(&arg) {}
  [[nodiscard]] Param&& pass() { return static_cast<Param&&>(*value_); }
  void collect_inputs(TensorRefs& /*refs*/) {
    for (const Place& place : places()) {
      before_.push_back({place.tensor, place.node});
    }
  }
  void collect_outputs(TensorRefs& refs) {
    for (const Place& place : places()) {
      bool known = false;
      for (const auto& [tensor, node] : before_) {
        known = known || (tensor == place.tensor && node == place.node);
      }
      if (!known) {
        refs.push_back(place.ref);
      }
    }
  }
  void give_back() {}

  static constexpr bool kRepeatable = std::is_const_v<std::remove_reference_t<Param>> &&
                                      !std::is_array_v<std::remove_reference_t<Param>> &&
                                      std::is_copy_constructible_v<std::decay_t<Param>>;
  [[nodiscard]] CopiedArgument<Param> for_later() const { return CopiedArgument<Param>(*value_); }

 private:
  struct Place {
    at::Tensor* ref;
    const c10::TensorImpl* tensor;
    const torch::autograd::Node* node;
  };
  [[nodiscard]] c10::SmallVector<Place, 4> places() {
    TensorRefs refs;
    collect_tensors(refs, *value_);
    c10::SmallVector<Place, 4> out;
    for (at::Tensor* ref : refs) {
      if (ref->defined()) {
        out.push_back({ref, ref->unsafeGetTensorImpl(), ref->grad_fn().get()});
      }
    }
    return out;
  }

  std::remove_reference_t<Param>* value_;
  c10::SmallVector<std::pair<const c10::TensorImpl*, const torch::autograd::Node*>, 4> before_;
};

// A Tensor& argument. Hooks get a copy of the handle; if the forward assigns another tensor, the
// caller gets it.
class AssignedTensor {
 public:
  explicit AssignedTensor(at::Tensor& arg) : caller_(&arg), value_(arg) {}
  [[nodiscard]] at::Tensor& pass() {
    before_ = value_;
    node_ = value_.defined() ? value_.grad_fn() : nullptr;
    return value_;
  }
  void collect_inputs(TensorRefs& refs) { refs.push_back(&value_); }
  void collect_outputs(TensorRefs& refs) {
    if (value_.defined() && (!value_.is_same(before_) || value_.grad_fn() != node_)) {
      refs.push_back(&value_);
    }
  }
  void give_back() {
    if (caller_ != nullptr && !value_.is_same(before_)) {
      *caller_ = value_;
    }
  }

  static constexpr bool kRepeatable = true;
  [[nodiscard]] AssignedTensor for_later() const {
    AssignedTensor copy = *this;
    copy.caller_ = nullptr;
    return copy;
  }

 private:
  at::Tensor* caller_;
  at::Tensor value_, before_;
  composable::NodePointer node_;
};

// Whether values of the type may contain tensors for hooks, or are cheap to copy.
template <typename T>
inline constexpr bool kWorthACopy = std::is_copy_constructible_v<T> &&
                                    (std::is_trivially_copyable_v<T> || Declared<T> ||
                                     OptionalLike<T> || SmartPointer<T> || Container<T> ||
                                     Variant<T> || TupleLike<T> || Struct<T> ||
                                     std::is_same_v<T, at::Tensor>);

// `kReadOnly`: the forward does not keep a T& to change the object.
template <typename Param, bool kReadOnly>
struct HeldArgument {
  using Object = std::remove_reference_t<Param>;
  using Plain = std::decay_t<Param>;
  static constexpr bool kLvalue = std::is_lvalue_reference_v<Param>;
  static constexpr bool kConst = std::is_const_v<Object>;
  static constexpr bool kCopied =
      (kConst || kReadOnly) && !std::is_array_v<Object> && kWorthACopy<Plain>;
  using Lvalue = std::conditional_t<kCopied, CopiedArgument<Param>, BorrowedArgument<Param>>;
  using type = std::conditional_t<
      kLvalue && !kConst && std::is_same_v<Plain, at::Tensor>,
      AssignedTensor,
      typename std::conditional_t<kLvalue,
                                  std::type_identity<Lvalue>,
                                  std::type_identity<CopiedArgument<Param>>>::type>;
};

template <typename... Helds>
class HeldArguments {
 public:
  template <typename... Args>
  explicit HeldArguments(std::in_place_t /*tag*/, Args&&... args)
      : held_(std::forward<Args>(args)...) {}

  void collect_inputs(TensorRefs& refs) {
    std::apply([&](auto&... each) { (each.collect_inputs(refs), ...); }, held_);
  }
  // The outputs other than the result.
  void collect_outputs(TensorRefs& refs) {
    std::apply([&](auto&... each) { (each.collect_outputs(refs), ...); }, held_);
  }
  void give_back() {
    std::apply([](auto&... each) { (each.give_back(), ...); }, held_);
  }
  template <typename Call>
  decltype(auto) pass_to(const Call& call) {
    return std::apply([&](auto&... each) -> decltype(auto) { return call(each.pass()...); }, held_);
  }

  // Whether the forward can be repeated later with copies of the arguments.
  static constexpr bool kRepeatable = (Helds::kRepeatable && ...);
  [[nodiscard]] auto for_later() const {
    return std::apply(
        [](const auto&... each) {
          return HeldArguments<std::decay_t<decltype(each.for_later())>...>(std::in_place,
                                                                            each.for_later()...);
        },
        held_);
  }

 private:
  std::tuple<Helds...> held_;
};

}  // namespace shardlens::module::detail
