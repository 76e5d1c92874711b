#include "cli/worker/worker_environment.h"

#include <array>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "core/base/error.h"

namespace shardlens::cli {
namespace {

struct Launcher {
  const char* rank;
  const char* size;
  const char* local;
};

constexpr std::array<Launcher, 4> kLaunchers{{
    {"RANK", "WORLD_SIZE", "LOCAL_RANK"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
}};

std::optional<int> number(const char* name, int least) {
  const char* text = std::getenv(name);
  if (text == nullptr) {
    return std::nullopt;
  }
  const std::string_view view(text);
  int value = 0;
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), value);
  if (error != std::errc() || end != view.data() + view.size() || value < least) {
    throw UsageError(fmt::format("environment variable {} is '{}', expected an integer from {}",
                                 name, view, least));
  }
  return value;
}

}  // namespace

Placement placement_of(const RunOptions& options) {
  if (backend_of(options) == Backend::kEmulated) {
    return {static_cast<int>(options.rank), 0, static_cast<int>(world_size_of(options))};
  }
  for (const Launcher& launcher : kLaunchers) {
    const auto rank = number(launcher.rank, 0);
    const auto size = number(launcher.size, 1);
    if (rank && size) {
      if (*rank >= *size) {
        throw UsageError(fmt::format("environment variable {} is {}, expected less than {} = {}",
                                     launcher.rank, *rank, launcher.size, *size));
      }
      return {*rank, number(launcher.local, 0).value_or(0), *size};
    }
  }
  return {};
}

}  // namespace shardlens::cli
