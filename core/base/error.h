#pragma once

#include <stdexcept>
#include <string>

#include "core/base/shown.h"

namespace shardlens {

// Exit codes of every executable (docs/reference/cli.md).
enum class ExitCode : int {
  kOk = 0,
  kCheckFailed = 1,
  kUsage = 2,
  kBadInput = 3,
  kRuntime = 4,
  kInconclusive = 5,
};

// 128 + number, as shells say of a program that a signal ended: 130 after Ctrl-C.
[[nodiscard]] constexpr ExitCode ended_by_signal(int number) {
  return static_cast<ExitCode>(128 + number);
}

// Base of every error that Shardlens throws deliberately. what() is one message that a user can act
// on: what is wrong, the value seen, the value expected, and where; no trailing newline. A message
// that is a string is escaped as a whole, since names in it may be untrusted; Shown may have
// several lines.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : Error(code, as_shown(message)) {}
  Error(ExitCode code, const Shown& message) : std::runtime_error(message.text()), code_(code) {}
  [[nodiscard]] ExitCode code() const noexcept { return code_; }
  [[nodiscard]] Shown shown() const { return {Shown::Escaped(), what()}; }

 private:
  ExitCode code_;
};

// The caller's mistake on the command line or in an API call.
class UsageError : public Error {
 public:
  explicit UsageError(const std::string& message) : Error(ExitCode::kUsage, message) {}
  explicit UsageError(const Shown& message) : Error(ExitCode::kUsage, message) {}
};

// A file or value that cannot be used. `where` is a path, with a JSON pointer
// ("plan.json#/units/0") or byte offset if known.
class InputError : public Error {
 public:
  InputError(const std::string& where, const std::string& message)
      : Error(ExitCode::kBadInput, where.empty() ? message : where + ": " + message) {}
};

// A collective failed, timed out or lost its peer, or another fault occurred at run time.
class RuntimeFault : public Error {
 public:
  explicit RuntimeFault(const std::string& message) : Error(ExitCode::kRuntime, message) {}
};

// Throws if an invariant of Shardlens itself is broken. Enabled in every build type.
#define SHARDLENS_CHECK(condition, message)                                         \
  do {                                                                              \
    if (!(condition)) {                                                             \
      throw ::shardlens::RuntimeFault(std::string("internal error: ") + (message) + \
                                      " [" #condition "]");                         \
    }                                                                               \
  } while (false)

}  // namespace shardlens
