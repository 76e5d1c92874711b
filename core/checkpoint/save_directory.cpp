#include "core/checkpoint/save_directory.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <iterator>
#include <system_error>
#include <unordered_map>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/checkpoint/checkpoint_reader.h"
#include "core/checkpoint/rank_part.h"
#include "core/checkpoint/unfinished_folder.h"
#include "core/files/input_file.h"
#include "core/files/output_file.h"

namespace shardlens::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStep = "step-";
constexpr std::string_view kUnfinished = ".tmp";
constexpr std::string_view kRemoved = ".old";  // of version 0.2, when it removed a checkpoint
constexpr std::string_view kTrial = "trial";   // written before the first save

std::string folder_name(int64_t step) {
  return fmt::format("{}{:08}", kStep, step);
}

// The step of "step-00000010".
std::optional<int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kStep)) {
    return std::nullopt;
  }
  const std::string_view digits = name.substr(kStep.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc() || end != digits.data() + digits.size() ||
      folder_name(step).size() != kStep.size() + digits.size()) {
    return std::nullopt;
  }
  return step;
}

// The step of a save that has not ended. Version 0.2 had no identifier in the name.
std::optional<int64_t> unfinished_step_of(std::string_view name) {
  if (const auto step = name_of_temporary(name)) {
    return step_of(*step);
  }
  return name.ends_with(kUnfinished) ? step_of(name.substr(0, name.size() - kUnfinished.size()))
                                     : std::nullopt;
}

// Calls `visit` with each entry of a directory; not at all if it does not exist.
template <typename Visit>
void for_entries(const fs::path& root, Visit visit) {
  std::error_code error;
  if (!fs::exists(root, error)) {
    return;
  }
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
    visit(*it, it->path().filename().string());
  }
  if (error) {
    throw RuntimeFault(fmt::format("cannot read {}: {}", root.string(), error.message()));
  }
}

std::string text_of(const OutputFolder& folder, const std::string& name) {
  Descriptor file;
  try {
    file = folder.open_file(name, O_RDONLY);
  } catch (const WriteFault& fault) {
    throw InputError((folder.path() / name).string(), "cannot be read: " + fault.reason());
  }
  std::string text;
  std::array<char, size_t{1} << 14> block{};
  ssize_t size = 0;
  while ((size = ::read(file.get(), block.data(), block.size())) > 0) {
    text.append(block.data(), static_cast<size_t>(size));
  }
  if (size < 0) {
    throw InputError((folder.path() / name).string(),
                     fmt::format("cannot be read: {}", std::strerror(errno)));
  }
  return text;
}

// Appends a rank's files and pieces to the index.
void merge_part(Index part, Index& index, std::unordered_map<std::string, size_t>& places) {
  const auto first = static_cast<uint32_t>(index.files.size());
  index.files.insert(index.files.end(), part.files.begin(), part.files.end());
  for (SavedTensor& tensor : part.tensors) {
    for (Piece& piece : tensor.pieces) {
      piece.file += first;
    }
    const auto [place, is_new] = places.emplace(tensor.name, index.tensors.size());
    if (is_new) {
      index.tensors.push_back(std::move(tensor));
      continue;
    }
    SavedTensor& whole = index.tensors[place->second];
    SHARDLENS_CHECK(whole.shape == tensor.shape && whole.dtype == tensor.dtype,
                    "ranks disagree about tensor " + tensor.name);
    std::ranges::move(tensor.pieces, std::back_inserter(whole.pieces));
  }
}

}  // namespace

std::vector<SavedStep> saved_steps(const fs::path& root) {
  std::vector<SavedStep> out;
  for_entries(root, [&](const fs::directory_entry& entry, const std::string& name) {
    const auto step = step_of(name);
    std::error_code ignored;
    if (step && entry.is_directory(ignored)) {
      out.push_back({*step, entry.path()});
    }
  });
  std::ranges::sort(out, {}, &SavedStep::step);
  return out;
}

std::vector<fs::path> unfinished_saves(const fs::path& root) {
  std::vector<fs::path> out;
  for_entries(root, [&](const fs::directory_entry& entry, const std::string& name) {
    std::error_code ignored;
    if (unfinished_step_of(name) && fs::is_directory(entry.symlink_status(ignored))) {
      out.push_back(entry.path());
    }
  });
  std::ranges::sort(out);
  return out;
}

std::vector<fs::path> obstacles_after(const fs::path& root, int64_t step) {
  std::vector<fs::path> out;
  for_entries(root, [&](const fs::directory_entry& entry, const std::string& name) {
    std::error_code ignored;
    if (step_of(name).value_or(step) > step && !entry.is_directory(ignored)) {
      out.push_back(entry.path());
    }
  });
  std::ranges::sort(out);
  return out;
}

std::optional<fs::path> latest_checkpoint(const fs::path& path) {
  if (is_checkpoint(path)) {
    return path;
  }
  const std::vector<SavedStep> saved = saved_steps(path);
  return saved.empty() ? std::nullopt : std::optional(saved.back().path);
}

LockedPlace save_place(const fs::path& root, std::string_view flag) {
  return {root / "save.lock", fmt::format("{} {}", flag, root.string()), "is saving a run there"};
}

void write_index(const OutputFolder& folder, const Position& position, const Origin& origin) {
  Index index{position, origin, {}, {}};
  std::unordered_map<std::string, size_t> places;
  for (int64_t rank = 0; rank < origin.world_size; ++rank) {
    const std::string name = part_file(rank);
    merge_part(parse_part(text_of(folder, name), (folder.path() / name).string()), index, places);
  }
  const std::string text = to_json(index);
  const std::string name(kIndexFile);
  (void)parse_index(text, (folder.path() / name).string());  // all pieces are there
  write_durably(folder, name, text);
  for (int64_t rank = 0; rank < origin.world_size; ++rank) {
    if (const auto part = folder.find(part_file(rank))) {
      folder.remove(part_file(rank), FileIdentity(*part));
    }
  }
}

SaveDirectory::SaveDirectory(const fs::path& root, std::string run)
    : root_(OutputFolder::make(root)), run_(std::move(run)) {}

void SaveDirectory::try_writing(int64_t rank) const {
  const std::string name(kTrial);
  if (rank > 0 && !root_.find(unfinished_name(name, run_))) {
    throw RuntimeFault(fmt::format(
        "{} does not have what rank 0 has just written; all ranks need the same directory",
        root_.path().string()));
  }
  const UnfinishedFolder trial =
      rank == 0 ? UnfinishedFolder(root_, name, run_) : UnfinishedFolder::open(root_, name, run_);
  OutputFile file(trial.folder(), part_file(rank));  // removed at once
  file.write(run_);
}

void SaveDirectory::end_trial() const noexcept {
  try {
    UnfinishedFolder::open(root_, std::string(kTrial), run_).remove();
  } catch (const std::exception&) {  // the next run removes it
  }
}

OutputFolder SaveDirectory::begin(int64_t step) const {
  return UnfinishedFolder(root_, folder_name(step), run_).folder();
}

fs::path SaveDirectory::commit(const Position& position,
                               const Origin& origin,
                               std::span<const CompanionFile> extra) const {
  UnfinishedFolder save = UnfinishedFolder::open(root_, folder_name(position.step), run_);
  write_index(save.folder(), position, origin);
  for (const CompanionFile& file : extra) {
    write_durably(save.folder(), file.name, file.text);
  }
  return save.finish(UnfinishedFolder::Existing::kReplace);
}

std::vector<std::string> SaveDirectory::remove_old(std::optional<int64_t> keep) const {
  std::vector<std::string> messages;
  if (!keep) {
    return messages;
  }
  std::vector<std::pair<int64_t, std::string>> saved;
  for (std::string& name : root_.names()) {
    const auto found = root_.find(name);
    const auto step = step_of(name);
    if (step && found && (S_ISDIR(found->st_mode) || S_ISLNK(found->st_mode))) {
      saved.emplace_back(*step, std::move(name));
    }
  }
  std::ranges::sort(saved);
  for (size_t i = 0; i + static_cast<size_t>(*keep) < saved.size(); ++i) {
    std::string message = remove_complete(root_, saved[i].second, run_);
    if (!message.empty()) {
      messages.push_back(std::move(message));
    }
  }
  return messages;
}

std::vector<std::string> SaveDirectory::remove_interrupted() const {
  std::vector<std::string> messages = checkpoint::remove_interrupted(
      root_, [](std::string_view name) { return name == kTrial || step_of(name); });
  for (const std::string& name : root_.names()) {
    for (const std::string_view ending : {kUnfinished, kRemoved}) {
      if (name.ends_with(ending) && step_of(name.substr(0, name.size() - ending.size()))) {
        messages.push_back(
            fmt::format("{} is left as it is: it has no marker of the run that made it",
                        (root_.path() / name).string()));
      }
    }
  }
  return messages;
}

}  // namespace shardlens::checkpoint
