#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shardlens::cli {

enum class PartState : uint8_t {
  kOk,
  kMissing,  // not installed, which matters only for what uses it
  kBroken,   // installed, and does not work
};

// "ok", "missing", "broken"
[[nodiscard]] std::string_view name_of(PartState state);

// One thing on this machine that Shardlens uses.
struct Part {
  std::string name;  // "compiler"
  std::string
      need;  // what cannot be done without it: "build", "capture", "gpu", "app"; "": anything
  PartState state = PartState::kOk;
  std::string seen;    // what was found, or why it does not work
  std::string advice;  // what to do about it; "" if it is ok
};

// The words that Part::need has.
[[nodiscard]] const std::vector<std::string>& needs();

// Looks at this machine: programs on PATH and next to this one, the engine, driver and GPUs, the
// app and its display, directories and limits. Starts the programs that it finds, each for at most
// ten seconds.
[[nodiscard]] std::vector<Part> inspect_installation();

}  // namespace shardlens::cli
