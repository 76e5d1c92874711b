#pragma once

#include <string>
#include <utility>
#include <variant>

namespace shardlens {

// Either a value or an error message, for code where wrong input is expected and must leave state
// unchanged (core/schedule). Elsewhere errors are exceptions (core/base/error.h).
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value)  // NOLINT(google-explicit-constructor)
      : state_(std::in_place_index<0>, std::move(value)) {}
  static Result error(std::string message) { return Result(ErrorTag{}, std::move(message)); }

  [[nodiscard]] bool ok() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return ok(); }
  T& value() { return std::get<0>(state_); }
  const T& value() const { return std::get<0>(state_); }
  [[nodiscard]] const std::string& message() const { return std::get<1>(state_); }

 private:
  struct ErrorTag {};
  Result(ErrorTag /*tag*/, std::string message)
      : state_(std::in_place_index<1>, std::move(message)) {}
  std::variant<T, std::string> state_;
};

template <>
class [[nodiscard]] Result<void> {  // an operation without a value
 public:
  Result() = default;
  static Result error(std::string message) {
    Result result;
    result.failed_ = true;
    result.message_ = std::move(message);
    return result;
  }
  [[nodiscard]] bool ok() const noexcept { return !failed_; }
  explicit operator bool() const noexcept { return ok(); }
  [[nodiscard]] const std::string& message() const { return message_; }

 private:
  bool failed_ = false;
  std::string message_;
};

}  // namespace shardlens
