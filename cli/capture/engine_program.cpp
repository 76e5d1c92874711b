#include "cli/capture/engine_program.h"

#include <regex>
#include <system_error>

#include <fmt/format.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/this_process.h"
#include "core/json/json_reader.h"

namespace shardlens::cli {
namespace {

namespace fs = std::filesystem;

fs::path note_of(const fs::path& worker) {
  return worker.string() + ".torch";
}

}  // namespace

fs::path worker_path() {
  return program_folder() / "shardlens-worker";
}

std::string worker_program(std::string_view command) {
  std::error_code error;
  const fs::path worker = worker_path();
  if (::access(worker.c_str(), X_OK) != 0) {
    const bool is_package = fs::exists(worker.parent_path().parent_path() / "__init__.py", error);
    throw RuntimeFault(fmt::format(
        "{} needs {}, which does not exist: {}", command, worker.string(),
        is_package ? "install the wheel shardlens_engine, which scripts/wheel --engine makes "
                     "in a checkout"
                   : "this build has no engine (-DSHARDLENS_ENGINE=OFF)"));
  }
  check_torch(worker);
  return worker.string();
}

std::string torch_of(const fs::path& worker) {
  if (!fs::exists(note_of(worker))) {
    return SHARDLENS_TORCH_VERSION;
  }
  std::string version = plan::read_text_file(note_of(worker));
  version.erase(version.find_last_not_of(" \n") + 1);
  return version;
}

void check_torch(const fs::path& worker) {
  if (!fs::exists(note_of(worker))) {
    return;
  }
  const std::string wanted = torch_of(worker);
  // site-packages/shardlens/bin/shardlens-worker
  const fs::path packages = worker.parent_path().parent_path().parent_path();
  const fs::path file = packages / "torch" / "version.py";
  if (!fs::exists(file)) {
    throw RuntimeFault(
        fmt::format("the engine needs torch {0}, and {1} has none; pip install torch=={0}", wanted,
                    packages.string()));
  }
  const std::string text = plan::read_text_file(file);
  std::smatch found;  // without what follows a plus, such as cu130
  const bool has_version =
      std::regex_search(text, found, std::regex(R"(__version__ = ['"]([^'"+]*))"));
  if (!has_version || found[1].str() != wanted) {
    throw RuntimeFault(fmt::format(
        "the engine was built for torch {0}, and {1} has {2}; pip install torch=={0}, or build the "
        "engine for the other one with scripts/wheel --engine",
        wanted, packages.string(), has_version ? "torch " + found[1].str() : "another one"));
  }
}

}  // namespace shardlens::cli
