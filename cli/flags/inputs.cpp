#include "cli/flags/inputs.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <system_error>

#include <fmt/format.h>
#include <sys/stat.h>

namespace shardlens::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kMostLinks = 40;  // the limit of Linux

std::optional<struct stat> status_of(const fs::path& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? std::optional(info) : std::nullopt;
}

bool is_same(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

bool is_same(const fs::path& a, const fs::path& b) {
  const auto left = status_of(a), right = status_of(b);
  return left && right && is_same(*left, *right);
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// The file to which the bytes of an output go, after symlinks are followed, also one to a file that
// does not exist.
fs::path destination_of(fs::path path) {
  if (!path.has_filename()) {
    path = path.parent_path();  // "out/"
  }
  std::error_code error;
  for (int links = 0; links < kMostLinks && fs::is_symlink(path, error); ++links) {
    const fs::path link = fs::read_symlink(path, error);
    if (error) {
      break;
    }
    path = path.parent_path() / link;  // an absolute `link` replaces the folder
  }
  return path;
}

bool ends_with_any(std::string_view name, const auto& endings) {
  return std::any_of(endings.begin(), endings.end(),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

// A trace or spool, by an ending that no file of a model has.
bool is_trace(std::string_view name) {
  constexpr std::array<std::string_view, 4> kEndings{".json.gz", ".json.zst", ".spool",
                                                     ".trace.json"};
  return ends_with_any(name, kEndings) || (name.starts_with("rank") && name.ends_with(".json"));
}

// Whether files in the directory are read together, as those of a run. A run made by an earlier
// version, or by shardlens.record, is known by its files; a mistake only refuses an output.
bool holds_a_run(const fs::path& directory) {
  if (is_there(directory / "run.json")) {
    return true;
  }
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    if (is_trace(entry->path().filename().string())) {
      return true;
    }
  }
  return false;
}

bool holds_a_checkpoint(const fs::path& directory) {
  return is_there(directory / "checkpoint.json");
}

bool is_file_of_model(std::string_view name) {
  return name == "config.json" || name == "generation_config.json" || name == "checkpoint.json" ||
         name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
}

// A run reads every file with such a name: as a trace, if it has no other meaning. Files that begin
// with .shardlens- say whose directory it is.
bool is_file_of_run(std::string_view name) {
  constexpr std::array<std::string_view, 7> kEndings{".json",  ".json.gz", ".json.zst", ".jsonl",
                                                     ".spool", ".now",     ".lock"};
  return ends_with_any(name, kEndings) || name.starts_with(".shardlens-");
}

// Whether readers of `directory` read, or would read, the file of this name.
bool is_read_in(const fs::path& directory, const std::string& name) {
  const bool there = is_there(directory / name);
  if (is_file_of_model(name)) {
    return there;
  }
  if (holds_a_run(directory)) {
    return is_file_of_run(name);
  }
  // A directory of a model may have plans in it, which are not read with the model.
  return there && is_file_of_run(name) && !is_there(directory / "config.json");
}

// Whether `outer` is one of the directories that `inner` is in.
bool is_inside(const fs::path& inner, const fs::path& outer) {
  std::error_code error;
  const auto target = status_of(outer);
  fs::path at = fs::canonical(inner, error);
  while (!error && target && at.has_relative_path()) {
    at = at.parent_path();
    if (const auto info = status_of(at); info && is_same(*info, *target)) {
      return true;
    }
  }
  return false;
}

// Whether a file in `folder` is read by those who read `directory`: directly in it, or in one of
// its checkpoints or runs.
bool belongs_to(const fs::path& folder, const fs::path& directory) {
  return is_same(folder, directory) ||
         (is_inside(folder, directory) && (holds_a_run(folder) || holds_a_checkpoint(folder)));
}

// The file of the directory, or of its folders, that `file` is a hard link of.
std::optional<fs::path> link_in(const fs::path& directory, const struct stat& file) {
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const fs::path& path = entry->path();
    const auto info = status_of(path);
    if (info && is_same(*info, file)) {
      return path;
    }
    if (info && S_ISDIR(info->st_mode) && (holds_a_run(path) || holds_a_checkpoint(path))) {
      if (const auto found = link_in(path, file)) {
        return found;
      }
    }
  }
  return std::nullopt;
}

std::string lost_in(const fs::path& directory, const fs::path& target, const std::string& reader) {
  const std::string name = target.filename().string();
  if (is_there(target)) {
    return fmt::format("is {} of {}, which {} reads; it would be replaced", name,
                       directory.string(), reader);
  }
  return fmt::format("would be read as a part of the run in {}, which {} reads", directory.string(),
                     reader);
}

}  // namespace

void Inputs::add(const std::string& flag, const fs::path& path) {
  const auto info = path.empty() ? std::nullopt : status_of(path);
  if (info && (S_ISREG(info->st_mode) || S_ISDIR(info->st_mode))) {
    inputs_.push_back({flag.empty() ? "this command" : flag, path, S_ISDIR(info->st_mode)});
  }
}

void Inputs::add(const Inputs& others) {
  inputs_.insert(inputs_.end(), others.inputs_.begin(), others.inputs_.end());
}

std::string Inputs::lost_by_writing(const fs::path& file) const {
  const auto info = status_of(file);
  if (info && !S_ISREG(info->st_mode)) {
    return "";
  }
  const fs::path target = destination_of(file);
  const fs::path folder = folder_of(target);
  for (const Input& input : inputs_) {
    if (!input.is_directory) {
      if (info && is_same(input.path, file)) {
        return fmt::format("is the file that {} reads; it would be replaced", input.reader);
      }
      // A trace is read with the plan and the other files next to it. A new file there replaces
      // nothing: `convert t.json.gz --out t.json`.
      const fs::path next_to = folder_of(destination_of(input.path));
      if (is_there(target) && is_same(folder, next_to) && holds_a_run(folder) &&
          is_read_in(folder, target.filename().string())) {
        return lost_in(folder, target, input.reader);
      }
      continue;
    }
    if (belongs_to(folder, input.path) && is_read_in(folder, target.filename().string())) {
      return lost_in(folder, target, input.reader);
    }
    if (info && info->st_nlink > 1) {
      if (const auto found = link_in(input.path, *info)) {
        return fmt::format("is another name of {}, which {} reads", found->string(), input.reader);
      }
    }
  }
  return "";
}

std::string Inputs::lost_by_adding_to(const fs::path& directory) const {
  for (const Input& input : inputs_) {
    if (input.is_directory && is_same(directory, input.path)) {
      return fmt::format(
          "is the directory that {} reads; new files in it would be taken for its "
          "own",
          input.reader);
    }
    const fs::path next_to = folder_of(destination_of(input.path));
    if (!input.is_directory && is_same(directory, next_to) && holds_a_run(directory)) {
      return fmt::format(
          "has {}, which {} reads; new files next to it would be taken for those "
          "of its run",
          input.path.filename().string(), input.reader);
    }
  }
  return "";
}

std::string Inputs::lost_by_emptying(const fs::path& directory) const {
  for (const Input& input : inputs_) {
    if (is_same(directory, input.path)) {
      return fmt::format("is what {} reads; it would be replaced", input.reader);
    }
    if (is_inside(input.path, directory)) {
      return fmt::format("contains {}, which {} reads; it would be removed", input.path.string(),
                         input.reader);
    }
  }
  return "";
}

bool same_output(const fs::path& a, const fs::path& b) {
  const auto left = status_of(a), right = status_of(b);
  if (left && right) {
    return is_same(*left, *right) && (S_ISREG(left->st_mode) || S_ISDIR(left->st_mode));
  }
  if (left || right) {
    return false;
  }
  const fs::path to = destination_of(a), other = destination_of(b);
  if (is_same(folder_of(to), folder_of(other))) {
    return to.filename() == other.filename();
  }
  std::error_code error;
  const fs::path one = fs::weakly_canonical(to, error), two = fs::weakly_canonical(other, error);
  return !error && one == two;
}

}  // namespace shardlens::cli
