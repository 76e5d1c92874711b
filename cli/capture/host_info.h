#pragma once

#include <filesystem>
#include <string>

namespace shardlens::cli {

// What run.json has of the machine: {"cpu", "cores", "clocks", "memory_bytes", "gpus"}; a value
// that the system does not give is null. `with_name`: "host" and "system" (the kernel) too.
[[nodiscard]] std::string host_info_json(bool with_name = false);

// How the cores' frequency is chosen, such as "performance, at most 3500 MHz". `cpus` contains a
// directory cpu<n>/cpufreq for each core (Linux, Documentation/admin-guide/pm/cpufreq.rst). If
// cores differ, all variants are listed. "": unknown, as in most virtual machines.
[[nodiscard]] std::string cpu_clocks(const std::filesystem::path& cpus = "/sys/devices/system/cpu");

// Number of NVIDIA GPUs whose driver is loaded.
[[nodiscard]] int gpu_count();

}  // namespace shardlens::cli
