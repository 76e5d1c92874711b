#include "core/base/this_process.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <system_error>

#include <sys/auxv.h>
#include <unistd.h>

namespace shardlens {
namespace {

namespace fs = std::filesystem;

bool may_be_run(const fs::path& program) {
  return ::access(program.c_str(), X_OK) == 0;
}

}  // namespace

fs::path program_folder() {
  std::error_code error;
  fs::path self = fs::read_symlink("/proc/self/exe", error);
  if (error) {
    const auto* const started =
        reinterpret_cast<const char*>(::getauxval(AT_EXECFN));  // NOLINT: what the kernel gives
    self = started == nullptr ? fs::path() : fs::absolute(started, error).lexically_normal();
  }
  return self.parent_path();
}

std::string environment_variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

fs::path program_on_path(const std::string& name) {
  const std::string path = environment_variable("PATH");
  std::string_view rest = path;
  while (!rest.empty()) {
    const std::string_view folder = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(rest.size(), folder.size() + 1));
    fs::path program = fs::path(folder) / name;
    if (!folder.empty() && may_be_run(program)) {
      return program;
    }
  }
  return {};
}

fs::path program_beside_or_on_path(const std::string& name) {
  fs::path beside = program_folder() / name;
  return may_be_run(beside) ? beside : program_on_path(name);
}

}  // namespace shardlens
