#include "cli/capture/capture_directory.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/input_file.h"
#include "core/base/standard_output.h"
#include "core/plan/json_reader.h"
#include "profiler/record/rank_now.h"

#include "cli/capture/capture_lock.h"

namespace shardlens::cli {
namespace {

bool is_number(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// `name` without the ending that AtomicFile gives to unfinished files: "plan.json" for
// "plan.json.tmp4711.0".
std::string without_temporary_ending(const std::string& name) {
  const size_t at = name.rfind(".tmp");
  if (at == std::string::npos) {
    return name;
  }
  const std::string_view ending = std::string_view(name).substr(at + 4);
  const size_t dot = ending.find('.');
  return dot != std::string_view::npos && is_number(ending.substr(0, dot)) &&
                 is_number(ending.substr(dot + 1))
             ? name.substr(0, at)
             : name;
}

// Whether the file belongs to a capture: metrics.jsonl, plan.json, workload.json, run.json,
// rank<r>.{pt.trace.json.gz,spool,now}, unfinished ones of these, and the lock. config.json only
// next to a run.json, since otherwise it may be the user's model.
bool is_ours(const std::filesystem::path& directory, const std::string& file) {
  const std::string name = without_temporary_ending(file);
  std::error_code ignored;
  if (name == "config.json") {
    return std::filesystem::exists(directory / "run.json", ignored);
  }
  constexpr std::array<std::string_view, 5> kNames{"metrics.jsonl", "plan.json", "workload.json",
                                                   "run.json", kCaptureLock};
  if (std::find(kNames.begin(), kNames.end(), name) != kNames.end()) {
    return true;
  }
  const std::string_view view = name;
  const size_t dot = view.find('.');
  if (!view.starts_with("rank") || dot == std::string_view::npos ||
      !is_number(view.substr(4, dot - 4))) {
    return false;
  }
  const std::string_view ending = view.substr(dot);
  return ending == ".pt.trace.json.gz" || ending == ".spool" || ending == ".now";
}

std::filesystem::directory_iterator open(const std::filesystem::path& directory) {
  std::error_code error;
  std::filesystem::directory_iterator entries(directory, error);
  if (error) {
    throw UsageError(fmt::format("--out {}: {}", directory.string(), error.message()));
  }
  return entries;
}

}  // namespace

void check_capture_directory(const std::filesystem::path& directory) {
  std::error_code ignored;
  if (!std::filesystem::exists(directory, ignored)) {
    return;
  }
  if (!std::filesystem::is_directory(directory, ignored)) {
    throw UsageError(
        fmt::format("--out {}: is a file; choose another directory", directory.string()));
  }
  DirectoryLock::check(capture_place(directory));
  for (const auto& entry : open(directory)) {
    const std::string name = entry.path().filename().string();
    if (!is_ours(directory, name) || entry.is_directory(ignored)) {
      throw UsageError(fmt::format(
          "--out {}: contains '{}', which is no part of a capture; choose another directory or "
          "remove the file",
          directory.string(), name));
    }
  }
}

DirectoryLock prepare_capture_directory(const std::filesystem::path& directory) {
  check_capture_directory(directory);
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    throw UsageError(
        fmt::format("--out {}: cannot be created: {}", directory.string(), error.message()));
  }
  DirectoryLock lock(capture_place(directory));
  for (const auto& entry : open(directory)) {
    if (entry.path().filename() == kCaptureLock) {
      continue;
    }
    std::filesystem::remove(entry.path(), error);
    if (error) {
      throw UsageError(fmt::format("--out {}: cannot replace {}: {}", directory.string(),
                                   entry.path().filename().string(), error.message()));
    }
  }
  return lock;
}

std::string copied_config(const std::filesystem::path& config) {
  if (config.empty()) {
    return "";
  }
  if (leads_out_of_directory(config)) {
    write_stderr(
        "{} is a link that leads out of its directory: the run gets no copy of it, and needs it "
        "where it is\n",
        config.string());
    return "";
  }
  return plan::read_text_file(config);
}

namespace {

// What a process that was killed had not finished writing.
void remove_unfinished(const std::filesystem::path& directory, int rank) {
  std::vector<std::filesystem::path> unfinished;
  std::error_code error;
  const std::string prefix = fmt::format("rank{}.", rank);
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with(prefix) && without_temporary_ending(name) != name) {
      unfinished.push_back(entry->path());
    }
  }
  for (const std::filesystem::path& path : unfinished) {
    std::filesystem::remove(path, error);
  }
}

}  // namespace

std::string tidy_capture_directory(const std::filesystem::path& directory,
                                   int first_rank,
                                   int processes) {
  std::string spools;
  std::error_code ignored;
  for (int rank = first_rank; rank < first_rank + processes; ++rank) {
    const auto now = record::read_rank_now(record::now_path(directory, rank));
    const std::filesystem::path spool = record::spool_path(directory, rank);
    if ((now && now->step < 0) || std::filesystem::is_empty(spool, ignored)) {
      std::filesystem::remove(spool, ignored);
    }
    std::filesystem::remove(record::now_path(directory, rank), ignored);
    remove_unfinished(directory, rank);
    if (std::filesystem::exists(spool, ignored)) {
      spools += (spools.empty() ? "" : ", ") + spool.string();
    }
  }
  return spools;
}

}  // namespace shardlens::cli
