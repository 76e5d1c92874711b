#include "core/checkpoint/unfinished_folder.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <sys/stat.h>

#include "core/base/error.h"
#include "core/checkpoint/checkpoint_index.h"
#include "core/files/output_file.h"

namespace shardlens::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEnding = ".tmp";
constexpr std::string_view kMarker = "unfinished.";

std::string marker_name(std::string_view id) {
  return fmt::format("{}{}", kMarker, id);
}

// Whether the name is rank<digits> and one of the endings.
bool is_file_of_rank(std::string_view name) {
  constexpr std::string_view kPrefix = "rank";
  if (!name.starts_with(kPrefix)) {
    return false;
  }
  const size_t end = std::min(name.find_first_not_of("0123456789-", kPrefix.size()), name.size());
  const std::string_view ending = name.substr(end);
  return end > kPrefix.size() && (ending == ".safetensors" || ending == ".part.json");
}

// Whether checkpoints and merged models have files of this name.
bool is_file_of_checkpoint(std::string_view name) {
  constexpr std::array<std::string_view, 5> kNames{kIndexFile, "config.json",
                                                   "generation_config.json", "model.safetensors",
                                                   "optimizer.safetensors"};
  return std::ranges::find(kNames, name) != kNames.end() || is_file_of_rank(name) ||
         (name.starts_with(kMarker) && is_identifier(name.substr(kMarker.size())));
}

void mark(const OutputFolder& folder, const std::string& id) {
  if (!folder.find(marker_name(id))) {
    OutputFile marker(folder, marker_name(id));
    marker.write(id);
    marker.keep();  // not flushed: a folder whose marker is lost with the power is only not removed
  }
}

bool is_marked(const OutputFolder& folder, const std::string& id) {
  const auto text = folder.small_file(marker_name(id));
  // An interruption may have cut off the text; the name has the identifier too.
  return text && id.starts_with(*text);
}

// The first entry that no checkpoint has.
std::optional<std::string> foreign_entry(const OutputFolder& folder) {
  for (const std::string& name : folder.names()) {
    const auto found = folder.find(name);
    const std::string plain = name_of_temporary(name).value_or(name);
    if (found && (S_ISDIR(found->st_mode) || !is_file_of_checkpoint(plain))) {
      return name;
    }
  }
  return std::nullopt;
}

std::string left(const fs::path& path, const std::string& reason) {
  return fmt::format("{} is left as it is: {}", path.string(), reason);
}

std::string left_with(const fs::path& path, const std::string& foreign) {
  return left(path, fmt::format("it has '{}', which is no file of a checkpoint", foreign));
}

// Why an entry of `parent` is no folder with only files of checkpoints.
std::string why_not_ours(const OutputFolder& parent, const std::string& entry) {
  const auto found = parent.find(entry);
  if (!found || !S_ISDIR(found->st_mode)) {
    return left(parent.path() / entry, "it is no directory");
  }
  const OutputFolder folder = parent.open_folder(entry);
  const auto foreign = foreign_entry(folder);
  return foreign ? left_with(folder.path(), *foreign) : "";
}

// Removes a marked folder, the marker last: after an interruption the rest is still recognised.
std::string remove_marked(const OutputFolder& parent,
                          const std::string& name,
                          const std::string& id) {
  const std::string entry = unfinished_name(name, id);
  const fs::path path = parent.path() / entry;
  if (std::string reason = why_not_ours(parent, entry); !reason.empty()) {
    return reason;
  }
  const OutputFolder folder = parent.open_folder(entry);
  std::vector<std::string> names = folder.names();
  if (!names.empty() && !is_marked(folder, id)) {
    return left(path, "it has no marker of the run that made it");
  }
  std::stable_partition(names.begin(), names.end(),
                        [&](const std::string& each) { return each != marker_name(id); });
  for (const std::string& each : names) {
    const auto found = folder.find(each);
    if (found && (!is_file_of_checkpoint(name_of_temporary(each).value_or(each)) ||
                  !folder.remove(each, FileIdentity(*found)))) {
      return left(path, fmt::format("'{}' cannot be removed", each));
    }
  }
  return parent.remove(entry, folder.identity()) ? "" : left(path, "it cannot be removed");
}

// Whether the folder has an index, as only complete checkpoints have.
bool has_index(const OutputFolder& folder) {
  const auto found = folder.find(std::string(kIndexFile));
  return found && S_ISREG(found->st_mode);
}

}  // namespace

std::string unfinished_name(std::string_view name, std::string_view id) {
  return fmt::format("{}{}{}", name, kEnding, id);
}

UnfinishedFolder::UnfinishedFolder(Opened /*tag*/,
                                   OutputFolder parent,
                                   std::string name,
                                   std::string id)
    : parent_(std::move(parent)),
      name_(std::move(name)),
      id_(std::move(id)),
      folder_(parent_.open_folder(unfinished_name(name_, id_))) {}

UnfinishedFolder UnfinishedFolder::open(OutputFolder parent, std::string name, std::string id) {
  return {Opened{}, std::move(parent), std::move(name), std::move(id)};
}

namespace {

OutputFolder make_or_open(const OutputFolder& parent,
                          const std::string& entry,
                          const std::string& id) {
  std::optional<OutputFolder> made;
  try {
    made = parent.make_folder(entry);
  } catch (const WriteFault&) {
    if (!parent.find(entry)) {
      throw;
    }
  }
  if (!made) {
    return parent.open_folder(entry);
  }
  mark(*made, id);
  return *made;
}

}  // namespace

UnfinishedFolder::UnfinishedFolder(OutputFolder parent, std::string name, std::string id)
    : parent_(std::move(parent)),
      name_(std::move(name)),
      id_(std::move(id)),
      folder_(make_or_open(parent_, unfinished_name(name_, id_), id_)) {}

fs::path UnfinishedFolder::finish(Existing existing) {
  const std::string entry = unfinished_name(name_, id_);
  const fs::path path = parent_.path() / name_;
  folder_.sync();
  const bool replaces = existing == Existing::kReplace && parent_.find(name_);
  if (!replaces) {
    parent_.rename_to_new(entry, name_);
  } else {
    if (std::string reason = why_not_ours(parent_, name_); !reason.empty()) {
      throw RuntimeFault(fmt::format("{}; a checkpoint of that name was to be written", reason));
    }
    const OutputFolder earlier = parent_.open_folder(name_);
    if (!has_index(earlier)) {
      throw WriteFault(path, "it exists and is no checkpoint");
    }
    mark(earlier, id_);
    parent_.exchange(entry, name_);
  }
  // The folder is complete under its name, even if that cannot be flushed.
  const auto remove_marker = [this] {
    if (const auto marker = folder_.find(marker_name(id_))) {
      folder_.remove(marker_name(id_), FileIdentity(*marker));
    }
  };
  try {
    parent_.sync();
  } catch (const WriteFault&) {
    remove_marker();
    throw;
  }
  if (replaces) {
    (void)remove_marked(parent_, name_, id_);
  }
  remove_marker();
  return path;
}

std::string UnfinishedFolder::remove() const noexcept {
  try {
    return remove_marked(parent_, name_, id_);
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::string remove_complete(const OutputFolder& parent,
                            const std::string& name,
                            const std::string& id) {
  if (std::string reason = why_not_ours(parent, name); !reason.empty()) {
    return reason;
  }
  const OutputFolder folder = parent.open_folder(name);
  if (!has_index(folder)) {
    return left(folder.path(), fmt::format("it has no {}", kIndexFile));
  }
  mark(folder, id);
  parent.rename_to_new(name, unfinished_name(name, id));
  parent.sync();
  return remove_marked(parent, name, id);
}

std::vector<std::string> remove_interrupted(const OutputFolder& parent,
                                            const std::function<bool(std::string_view)>& is_ours) {
  std::vector<std::string> messages;
  for (const std::string& entry : parent.names()) {
    const auto name = name_of_temporary(entry);
    if (!name || !is_ours(*name)) {
      continue;
    }
    std::string message =
        remove_marked(parent, *name, entry.substr(entry.size() - kIdentifierDigits));
    if (!message.empty()) {
      messages.push_back(std::move(message));
    }
  }
  return messages;
}

void write_durably(const OutputFolder& folder, const std::string& name, std::string_view text) {
  OutputFile file(folder, name);
  file.write(text);
  file.sync();
  file.keep();
}

}  // namespace shardlens::checkpoint
