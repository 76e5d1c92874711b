#pragma once

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

// The signature of a module class's forward: overloads, default arguments, what it accepts.
namespace shardlens::module::detail {

template <typename Impl, typename... Args>
concept ForwardTakes = requires(Impl& impl, Args&&... args) {
  impl.forward(std::forward<Args>(args)...);
};

// Whether forward, called with Args, would also accept a temporary object as argument I: then it
// does not change the caller's object.
template <typename Impl, size_t I, typename Args, typename Indices>
inline constexpr bool kTakesTemporary = false;
template <typename Impl, size_t I, typename... Args, size_t... Is>
inline constexpr bool kTakesTemporary<Impl, I, std::tuple<Args...>, std::index_sequence<Is...>> =
    ForwardTakes<Impl, std::conditional_t<I == Is, std::decay_t<Args>, Args>...>;

template <typename Impl>
concept HasOneForward = requires {
  &Impl::forward;
};

// The name is ambiguous, and so has no address, if Impl has any member of that name.
struct NoForward {
  int forward;
};
template <typename Impl>
struct WithNoForward : Impl, NoForward {};
template <typename Impl>
concept HasForward = !requires {
  &WithNoForward<Impl>::forward;
};

// A class that uses FORWARD_HAS_DEFAULT_ARGS is meant for Sequential, which needs the signature.
template <typename Impl>
concept DeclaresDefaults = requires {
  &Impl::_forward_has_default_args;
};

template <typename Impl, typename Args, typename Indices>
inline constexpr bool kTakesFirst = false;
template <typename Impl, typename Args, size_t... Is>
inline constexpr bool kTakesFirst<Impl, Args, std::index_sequence<Is...>> =
    ForwardTakes<Impl, std::tuple_element_t<Is, Args>...>;

// Whether the last argument of a forward with one signature has a default.
template <typename Impl, typename Forward>
inline constexpr bool kHasDefaults = false;
template <typename Impl, typename Class, typename R, typename... Args>
requires(sizeof...(Args) > 0) inline constexpr bool kHasDefaults<Impl, R (Class::*)(Args...)> =
    kTakesFirst<Impl, std::tuple<Args...>, std::make_index_sequence<sizeof...(Args) - 1>>;
template <typename Impl, typename Class, typename R, typename... Args>
requires(sizeof...(Args) >
         0) inline constexpr bool kHasDefaults<Impl, R (Class::*)(Args...) const> =
    kTakesFirst<Impl, std::tuple<Args...>, std::make_index_sequence<sizeof...(Args) - 1>>;

}  // namespace shardlens::module::detail
