#pragma once

#include <string>

#include "core/base/error.h"

namespace shardlens::test {

// What `act` fails with, or "accepted". Other exceptions than `Error` go on.
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
