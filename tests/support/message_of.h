#pragma once

#include <string>

#include "core/base/error.h"

namespace shardlens::test {

// The message of the `Error` that `act` throws, or "accepted". Other exceptions propagate.
template <typename Error = UsageError, typename F>
std::string message_of(const F& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace shardlens::test
