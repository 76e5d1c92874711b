#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <ranges>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>
#include <c10/util/SmallVector.h>

// The tensors within a value: in structs with public members (up to 12), containers, maps, tuples,
// optionals, variants, smart pointers, and any nesting of these. A class with private members
// declares next to it
//
//   void for_each_tensor(Cache& cache, auto visit) { visit(cache.keys); visit(cache.values); }
//
// where `visit` takes tensors and any type above.
namespace shardlens::module {

// The tensors in a forward's arguments or result, in order. A hook may assign through the pointers.
using TensorRefs = c10::SmallVector<at::Tensor*, 4>;

namespace detail {

inline constexpr size_t kMaxMembers = 12;

struct AnyVisitor {
  template <typename T>
  void operator()(T& value) const;
};
template <typename T>
concept Declared = requires(T& value, AnyVisitor visit) {
  for_each_tensor(value, visit);
};

template <typename T>
concept OptionalLike = requires(T& value) {
  { value.has_value() } -> std::convertible_to<bool>;
  *value;
};
template <typename T>
concept SmartPointer = !std::is_pointer_v<T> && requires(T & value) {
  value.get();
  *value;
};
template <typename T>
concept DictionaryItem = requires(T& value) {  // of torch::OrderedDict
  value.key();
  value.value();
};
// Containers; not a type that is a range of itself, such as std::filesystem::path.
template <typename T>
concept Container = std::ranges::range<T> && !std::same_as<std::ranges::range_value_t<T>, T>;
template <typename T>
concept TupleLike = requires {
  std::tuple_size<T>::value;
};
template <typename T>
concept Variant = requires {
  std::variant_size<T>::value;
};

// The number of members of a struct. kMaxMembers + 1: too many, or they cannot be counted. An empty
// list initializes one member, whatever its type, also an array.
template <typename T>
consteval size_t member_count() {
  // clang-format off
  if constexpr (std::is_empty_v<T>) { return 0; }
  else if constexpr (requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; }) { return kMaxMembers + 1; }
  else if constexpr (requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; }) { return 12; }
  else if constexpr (requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; }) { return 11; }
  else if constexpr (requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; }) { return 10; }
  else if constexpr (requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}}; }) { return 9; }
  else if constexpr (requires { T{{}, {}, {}, {}, {}, {}, {}, {}}; }) { return 8; }
  else if constexpr (requires { T{{}, {}, {}, {}, {}, {}, {}}; }) { return 7; }
  else if constexpr (requires { T{{}, {}, {}, {}, {}, {}}; }) { return 6; }
  else if constexpr (requires { T{{}, {}, {}, {}, {}}; }) { return 5; }
  else if constexpr (requires { T{{}, {}, {}, {}}; }) { return 4; }
  else if constexpr (requires { T{{}, {}, {}}; }) { return 3; }
  else if constexpr (requires { T{{}, {}}; }) { return 2; }
  else if constexpr (requires { T{{}}; }) { return 1; }
  else { return kMaxMembers + 1; }
  // clang-format on
}

template <typename T>
concept Struct = std::is_class_v<T> && std::is_aggregate_v<T> && member_count<T>()
<= kMaxMembers;

// References to the members of a struct.
template <typename T>
auto members_of(T& value) {
  constexpr size_t kCount = member_count<std::remove_const_t<T>>();
  // clang-format off
  if constexpr (kCount == 0) { return std::tie(); }
  else if constexpr (kCount == 1) { auto& [a] = value; return std::tie(a); }
  else if constexpr (kCount == 2) { auto& [a, b] = value; return std::tie(a, b); }
  else if constexpr (kCount == 3) { auto& [a, b, c] = value; return std::tie(a, b, c); }
  else if constexpr (kCount == 4) { auto& [a, b, c, d] = value; return std::tie(a, b, c, d); }
  else if constexpr (kCount == 5) { auto& [a, b, c, d, e] = value; return std::tie(a, b, c, d, e); }
  else if constexpr (kCount == 6) { auto& [a, b, c, d, e, f] = value; return std::tie(a, b, c, d, e, f); }
  else if constexpr (kCount == 7) { auto& [a, b, c, d, e, f, g] = value; return std::tie(a, b, c, d, e, f, g); }
  else if constexpr (kCount == 8) { auto& [a, b, c, d, e, f, g, h] = value; return std::tie(a, b, c, d, e, f, g, h); }
  else if constexpr (kCount == 9) { auto& [a, b, c, d, e, f, g, h, i] = value; return std::tie(a, b, c, d, e, f, g, h, i); }
  else if constexpr (kCount == 10) { auto& [a, b, c, d, e, f, g, h, i, j] = value; return std::tie(a, b, c, d, e, f, g, h, i, j); }
  else if constexpr (kCount == 11) { auto& [a, b, c, d, e, f, g, h, i, j, k] = value; return std::tie(a, b, c, d, e, f, g, h, i, j, k); }
  else { auto& [a, b, c, d, e, f, g, h, i, j, k, l] = value; return std::tie(a, b, c, d, e, f, g, h, i, j, k, l); }
  // clang-format on
}

template <typename T, typename... Seen>
struct Visible;
template <typename Tuple, typename... Seen>
struct AllVisible;
template <template <typename...> typename Tuple, typename... Ts, typename... Seen>
struct AllVisible<Tuple<Ts...>, Seen...>
    : std::bool_constant<(Visible<std::remove_reference_t<Ts>, Seen...>::value && ...)> {};

// `Seen` are the types around T; a type within itself ends the recursion.
template <typename T, typename... Seen>
consteval bool is_visible() {
  using Plain = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<Plain, at::Tensor>) {
    return !std::is_const_v<T>;  // hooks may have to assign
  } else if constexpr ((std::is_same_v<Plain, Seen> || ...) || Declared<T> ||
                       std::is_arithmetic_v<Plain> || std::is_enum_v<Plain> ||
                       std::is_same_v<Plain, std::nullptr_t> ||
                       std::is_same_v<Plain, c10::Scalar>) {
    return true;
  } else if constexpr (OptionalLike<T> || SmartPointer<T>) {
    return Visible<std::remove_reference_t<decltype(*std::declval<T&>())>, Plain, Seen...>::value;
  } else if constexpr (DictionaryItem<T>) {
    return Visible<std::remove_reference_t<decltype(std::declval<T&>().value())>, Plain,
                   Seen...>::value;
  } else if constexpr (Container<T>) {
    using Reference = std::ranges::range_reference_t<T>;
    return Visible<std::remove_reference_t<Reference>, Plain, Seen...>::value ||
           std::is_arithmetic_v<std::ranges::range_value_t<T>>;
  } else if constexpr (Variant<Plain> || TupleLike<Plain>) {
    return AllVisible<Plain, Plain, Seen...>::value;
  } else if constexpr (std::is_pointer_v<Plain> || std::is_union_v<Plain>) {
    return false;
  } else if constexpr (std::is_trivially_copyable_v<Plain>) {
    return true;  // owns no tensor
  } else if constexpr (Struct<Plain>) {
    return AllVisible<decltype(members_of(std::declval<T&>())), Plain, Seen...>::value;
  } else {
    return false;
  }
}
template <typename T, typename... Seen>
struct Visible : std::bool_constant<is_visible<T, Seen...>()> {};

}  // namespace detail

// Whether collect_tensors() finds, and can assign, every tensor that a T owns.
template <typename T>
inline constexpr bool kTensorsVisible = detail::Visible<T>::value;

// Adds the tensors in `value`. Tensors that are const, or of types that it cannot look into, are
// left out.
template <typename T>
void collect_tensors(TensorRefs& refs, T& value) {
  using Plain = std::remove_cv_t<T>;
  const auto collect = [&refs](auto& part) { collect_tensors(refs, part); };
  if constexpr (std::is_same_v<Plain, at::Tensor>) {
    if constexpr (!std::is_const_v<T>) {
      refs.push_back(&value);
    }
  } else if constexpr (detail::Declared<T>) {
    for_each_tensor(value, collect);
  } else if constexpr (std::is_scalar_v<Plain> || std::is_same_v<Plain, c10::Scalar>) {
    return;
  } else if constexpr (detail::OptionalLike<T>) {
    if (value.has_value()) {
      collect(*value);
    }
  } else if constexpr (detail::SmartPointer<T>) {
    if constexpr (!std::is_void_v<std::remove_pointer_t<decltype(value.get())>>) {
      if (value.get() != nullptr) {
        collect(*value);
      }
    }
  } else if constexpr (detail::DictionaryItem<T>) {
    collect(value.value());
  } else if constexpr (detail::Container<T>) {
    if constexpr (std::is_lvalue_reference_v<std::ranges::range_reference_t<T>> &&
                  !std::is_scalar_v<std::ranges::range_value_t<T>>) {
      for (auto& each : value) {
        collect(each);
      }
    }
  } else if constexpr (detail::Variant<Plain>) {
    std::visit(collect, value);
  } else if constexpr (detail::TupleLike<Plain>) {
    std::apply([&](auto&... each) { (collect(each), ...); }, value);
  } else if constexpr (!std::is_trivially_copyable_v<Plain> && detail::Struct<Plain>) {
    std::apply([&](auto&... each) { (collect(each), ...); }, detail::members_of(value));
  }
}

// A tensor that a hook can be registered on for one backward. A leaf lives longer than the graph,
// and hooks of all forwards would pile up on it; it is replaced by a view.
inline at::Tensor hookable_alias(const at::Tensor& tensor) {
  return tensor.is_leaf() ? tensor.view_as(tensor) : tensor;
}

}  // namespace shardlens::module
