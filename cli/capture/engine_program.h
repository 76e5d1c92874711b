#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace shardlens::cli {

// Where the worker program is if this build or package has an engine: next to this executable.
// Empty if the system does not say where that is.
[[nodiscard]] std::filesystem::path worker_path();

// The same, checked.
//
// Errors  RuntimeFault naming `command` in a build or an installed package without the engine;
//         those of check_torch().
[[nodiscard]] std::string worker_program(std::string_view command);

// The engine of the Python package uses the torch that is installed next to it: the file
// `<worker>.torch` names the version that it was built for. Engines without this file were linked
// with a torch at a fixed place.

// The version of torch that a worker program was built for; "none": a build without the engine.
[[nodiscard]] std::string torch_of(const std::filesystem::path& worker);

// Errors  RuntimeFault if the environment of the worker program has no torch, or another one.
void check_torch(const std::filesystem::path& worker);

}  // namespace shardlens::cli
