#pragma once

#include <filesystem>
#include <string>

namespace shardlens {

// The folder of the running program's file. Where /proc is missing, that of the path by which the
// program was started.
[[nodiscard]] std::filesystem::path program_folder();

// The value of an environment variable; "" if it is not set.
[[nodiscard]] std::string environment_variable(const char* name);

// The first file called `name` in a folder of PATH that may be run; "" if there is none.
[[nodiscard]] std::filesystem::path program_on_path(const std::string& name);
// The same, but first in the folder of this program.
[[nodiscard]] std::filesystem::path program_beside_or_on_path(const std::string& name);

}  // namespace shardlens
