#include "cli/capture/host_info.h"

#include <filesystem>
#include <set>
#include <string_view>
#include <system_error>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <sys/utsname.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/files/input_file.h"

namespace shardlens::cli {
namespace {

constexpr uint64_t kLargestFile = uint64_t{16} << 20;  // of the system, about itself

nlohmann::json cpu_model() {
  try {
    InputLines lines("/proc/cpuinfo", {.most_bytes = kLargestFile});
    for (std::string line; lines.next(line);) {
      const size_t colon = line.find(": ");
      if (line.starts_with("model name") && colon != std::string::npos) {
        return line.substr(colon + 2);
      }
    }
  } catch (const InputError&) {
    // a system without it: the model is not known
  }
  return nullptr;
}

nlohmann::json memory_bytes() {
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long page = ::sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? nlohmann::json(int64_t{pages} * page) : nlohmann::json(nullptr);
}

std::string first_word(const std::filesystem::path& file) {
  try {
    const std::string text = read_input(file, {.most_bytes = kLargestFile});
    return text.substr(0, text.find_first_of(" \n"));
  } catch (const InputError&) {
    return "";  // not known
  }
}

}  // namespace

std::string cpu_clocks(const std::filesystem::path& cpus) {
  std::set<std::string> seen;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(cpus, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::filesystem::path cpufreq = entry->path() / "cpufreq";
    const std::string governor = first_word(cpufreq / "scaling_governor"),
                      khz = first_word(cpufreq / "scaling_max_freq");
    if (governor.empty()) {
      continue;
    }
    const bool known = khz.size() > 3 && khz.find_first_not_of("0123456789") == std::string::npos;
    seen.insert(governor +
                (known ? fmt::format(", at most {} MHz", khz.substr(0, khz.size() - 3)) : ""));
  }
  return fmt::format("{}", fmt::join(seen, "; "));
}

std::string host_info_json(bool with_name) {
  nlohmann::ordered_json out;
  if (utsname system{}; with_name && ::uname(&system) == 0) {
    out["host"] = system.nodename;
    out["system"] = fmt::format("{} {} {}", system.sysname, system.release, system.machine);
  }
  out["cpu"] = cpu_model();
  out["cores"] = std::thread::hardware_concurrency();
  const std::string clocks = cpu_clocks();
  out["clocks"] = clocks.empty() ? nlohmann::json(nullptr) : nlohmann::json(clocks);
  out["memory_bytes"] = memory_bytes();
  out["gpus"] = gpu_count();
  return out.dump();
}

int gpu_count() {
  std::error_code error;
  int count = 0;
  for (std::filesystem::directory_iterator entry("/proc/driver/nvidia/gpus", error), end;
       !error && entry != end; entry.increment(error)) {
    ++count;
  }
  // A container may have the devices, but not that folder.
  while (count < 64 && std::filesystem::exists("/dev/nvidia" + std::to_string(count), error)) {
    ++count;
  }
  return count;
}

}  // namespace shardlens::cli
