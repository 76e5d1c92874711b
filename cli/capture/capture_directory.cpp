#include "cli/capture/capture_directory.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include "core/base/error.h"
#include "core/base/standard_output.h"
#include "core/files/input_file.h"
#include "core/files/output_file.h"
#include "core/files/output_folder.h"
#include "core/json/json_reader.h"
#include "profiler/record/host/rank_now.h"

#include "cli/capture/capture_lock.h"

namespace shardlens::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMarkText = "capture of shardlens ";
constexpr const char* kRunJson = "run.json";

bool is_number(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// Whether a capture has a file of this name: metrics.jsonl, plan.json, workload.json, run.json,
// config.json, rank<r>.{pt.trace.json.gz,spool,now}, unfinished ones of these, the lock, the mark.
bool is_name_of_capture(const std::string& file) {
  const std::string name = name_of_temporary(file).value_or(file);
  constexpr std::array<std::string_view, 7> kNames{
      "metrics.jsonl", "plan.json",  "workload.json",        kRunJson,
      "config.json",   kCaptureLock, CaptureDirectory::kMark};
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

std::string mark_of(const std::string& identifier) {
  return fmt::format("{}{}\n", kMarkText, identifier);
}

// Whether a capture of this program, finished or not, is all that a directory was made for.
bool is_marked(const OutputFolder& folder) {
  const auto mark = folder.small_file(CaptureDirectory::kMark);
  if (!mark || !mark->starts_with(kMarkText)) {
    return false;
  }
  if (!folder.find(kRunJson)) {  // a capture that ended before it wrote the file
    return true;
  }
  const auto run = nlohmann::json::parse(folder.small_file(kRunJson).value_or(""), nullptr,
                                         /*allow_exceptions=*/false);
  const auto found = run.is_object() ? run.find("capture") : run.end();
  return found != run.end() && found->is_string() &&
         *mark == mark_of(found->get_ref<const std::string&>());
}

using Entries = std::map<std::string, struct stat>;

Entries entries_of(const OutputFolder& folder) {
  Entries out;
  for (std::string& name : folder.names()) {
    if (const auto info = folder.find(name)) {
      out.emplace(std::move(name), *info);
    }
  }
  return out;
}

[[noreturn]] void refuse_unmarked(const fs::path& directory, const Entries& entries) {
  constexpr size_t kShown = 4;
  std::vector<std::string_view> names;
  for (const auto& [name, info] : entries) {
    if (name != kCaptureLock) {
      names.push_back(name);
    }
  }
  const size_t count = names.size();
  names.resize(std::min(count, kShown));
  throw UsageError(fmt::format(
      "--out {}: contains {}{}, without the mark of a capture that this program made there; choose "
      "another directory, or --force to lose {}",
      directory.string(), fmt::join(names, ", "),
      count > kShown ? fmt::format(" and {} more", count - kShown) : "",
      count == 1 ? "this file" : fmt::format("these {} files", count)));
}

// Of one that has no mark: another rank may just be writing the mark.
bool has_file_of_capture(const Entries& entries) {
  return std::any_of(entries.begin(), entries.end(), [](const auto& entry) {
    return entry.first != kCaptureLock && is_name_of_capture(entry.first) &&
           name_of_temporary(entry.first).value_or(entry.first) != CaptureDirectory::kMark;
  });
}

// The files that an earlier capture left in the directory. Throws if there is anything else.
Entries earlier_capture(const fs::path& directory, const OutputFolder& folder, bool force) {
  Entries entries = entries_of(folder);
  // Without a run.json next to it, config.json may be the user's model.
  const bool model = entries.contains("config.json") && !entries.contains(kRunJson) &&
                     !entries.contains(CaptureDirectory::kMark);
  for (const auto& [name, info] : entries) {
    if (!is_name_of_capture(name) || !S_ISREG(info.st_mode) || (model && name == "config.json")) {
      throw UsageError(fmt::format(
          "--out {}: contains '{}', which is no part of a capture; choose another directory or "
          "remove {}",
          directory.string(), name,
          S_ISREG(info.st_mode)   ? "the file"
          : S_ISDIR(info.st_mode) ? "the directory"
                                  : "it"));
    }
  }
  const bool only_lock =
      entries.empty() || (entries.size() == 1 && entries.contains(std::string(kCaptureLock)));
  if (!force && !only_lock && !is_marked(folder)) {
    refuse_unmarked(directory, entries);
  }
  return entries;
}

// Marks the directory before anything is written to it, so that a capture that is killed can be
// replaced too.
std::string mark(const OutputFolder& folder) {
  std::string identifier = random_identifier();
  OutputFile file = OutputFile::temporary(folder, CaptureDirectory::kMark);
  file.write(mark_of(identifier));
  file.replace(CaptureDirectory::kMark);
  return identifier;
}

[[noreturn]] void fail_to_write(const fs::path& directory,
                                std::string_view what,
                                const WriteFault& fault) {
  throw RuntimeFault(
      fmt::format("--out {}: cannot be {}: {}", directory.string(), what, fault.reason()));
}

// No rank writes before it has seen the mark. So a rank that sees files but still no mark after
// that knows that they are from before.
void share(const fs::path& directory, const OutputFolder& folder, bool force) {
  if (is_marked(folder)) {
    return;
  }
  const Entries entries = entries_of(folder);
  if (is_marked(folder)) {
    return;
  }
  if (!force && has_file_of_capture(entries)) {
    refuse_unmarked(directory, entries);
  }
  (void)mark(folder);
}

}  // namespace

void check_capture_directory(const fs::path& directory, bool force) {
  std::error_code ignored;
  if (!fs::exists(directory, ignored)) {
    return;
  }
  if (!fs::is_directory(directory, ignored)) {
    throw UsageError(
        fmt::format("--out {}: is a file; choose another directory", directory.string()));
  }
  DirectoryLock::check(capture_place(directory));
  try {
    (void)earlier_capture(directory, OutputFolder(directory), force);
  } catch (const WriteFault& fault) {
    throw RuntimeFault(fmt::format("--out {}: {}", directory.string(), fault.reason()));
  }
}

CaptureDirectory prepare_capture_directory(const fs::path& directory, bool force) {
  check_capture_directory(directory, force);
  std::optional<OutputFolder> folder;
  try {
    folder.emplace(OutputFolder::make(directory));
  } catch (const WriteFault& fault) {
    fail_to_write(directory, "created", fault);
  }
  DirectoryLock lock(capture_place(directory));
  // Again, now that no other capture begins meanwhile.
  for (const auto& [name, info] : earlier_capture(directory, *folder, force)) {
    if (name == kCaptureLock || name == CaptureDirectory::kMark) {
      continue;
    }
    if (!folder->remove(name, FileIdentity(info))) {
      throw RuntimeFault(fmt::format("--out {}: cannot replace {}: {}", directory.string(), name,
                                     std::strerror(errno)));
    }
  }
  try {
    return {std::move(lock), mark(*folder)};
  } catch (const WriteFault& fault) {
    fail_to_write(directory, "written", fault);
  }
}

void share_capture_directory(const fs::path& directory, bool force) {
  try {
    share(directory, OutputFolder::make(directory), force);
  } catch (const WriteFault& fault) {
    fail_to_write(directory, "created", fault);
  }
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

// Removes a regular file of the capture that this process has locked.
void remove_file(const OutputFolder& folder, const std::string& name) {
  const auto info = folder.find(name);
  if (info && S_ISREG(info->st_mode)) {
    folder.remove(name, FileIdentity(*info));
  }
}

}  // namespace

std::string tidy_capture_directory(const fs::path& directory, int first_rank, int processes) {
  std::string spools;
  std::optional<OutputFolder> folder;
  try {
    folder.emplace(directory);
    for (int rank = first_rank; rank < first_rank + processes; ++rank) {
      const auto now = record::read_rank_now(record::now_path(directory, rank));
      const fs::path spool = record::spool_path(directory, rank);
      const auto found = folder->find(spool.filename().string());
      if ((now && now->step < 0) || (found && found->st_size == 0)) {
        remove_file(*folder, spool.filename().string());
      }
      remove_file(*folder, record::now_path(directory, rank).filename().string());
      // A killed process had not finished writing it.
      for (const std::string& name : folder->names()) {
        if (name.starts_with(fmt::format("rank{}.", rank)) && name_of_temporary(name)) {
          remove_file(*folder, name);
        }
      }
      if (folder->find(spool.filename().string())) {
        spools += (spools.empty() ? "" : ", ") + spool.string();
      }
    }
  } catch (const WriteFault&) {  // the directory was removed meanwhile; the supervisor says so
  }
  return spools;
}

}  // namespace shardlens::cli
