#include "core/checkpoint/save_directory.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>
#include <set>
#include <system_error>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/input_file.h"
#include "core/checkpoint/checkpoint_reader.h"
#include "core/checkpoint/durable_file.h"
#include "core/checkpoint/rank_part.h"
#include "core/plan/json_reader.h"

namespace shardlens::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStep = "step-";
constexpr std::string_view kUnfinished = ".tmp";
constexpr std::string_view kRemoved = ".old";  // is being removed

std::string folder_name(int64_t step) {
  return fmt::format("{}{:08}", kStep, step);
}

// The step of "step-00000010", with `ending` after it.
std::optional<int64_t> step_of(std::string_view name, std::string_view ending) {
  if (!name.starts_with(kStep) || !name.ends_with(ending)) {
    return std::nullopt;
  }
  const std::string_view digits =
      name.substr(kStep.size(), name.size() - kStep.size() - ending.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc() || end != digits.data() + digits.size() ||
      folder_name(step).size() != kStep.size() + digits.size()) {
    return std::nullopt;
  }
  return step;
}

std::vector<SavedStep> folders_with(const fs::path& root, std::string_view ending) {
  std::vector<SavedStep> out;
  std::error_code error;
  if (!fs::exists(root, error)) {
    return out;
  }
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
    const auto step = step_of(it->path().filename().string(), ending);
    if (step && it->is_directory()) {
      out.push_back({*step, it->path()});
    }
  }
  if (error) {
    throw RuntimeFault(fmt::format("cannot read {}: {}", root.string(), error.message()));
  }
  std::ranges::sort(out, {}, &SavedStep::step);
  return out;
}

void remove_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) {
    throw RuntimeFault(fmt::format("cannot remove {}: {}", path.string(), error.message()));
  }
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

void copy_durably(const fs::path& from, const fs::path& to) {
  if (has_file(from)) {
    write_durably(to, plan::read_text_file(from));
  }
}

}  // namespace

std::vector<SavedStep> saved_steps(const fs::path& root) {
  return folders_with(root, "");
}

std::vector<fs::path> unfinished_saves(const fs::path& root) {
  std::vector<fs::path> out;
  for (SavedStep& each : folders_with(root, kUnfinished)) {
    out.push_back(std::move(each.path));
  }
  return out;
}

std::optional<fs::path> latest_checkpoint(const fs::path& path) {
  if (is_checkpoint(path)) {
    return path;
  }
  const std::vector<SavedStep> saved = saved_steps(path);
  return saved.empty() ? std::nullopt : std::optional(saved.back().path);
}

fs::path begin_save(const fs::path& root, int64_t step) {
  fs::path folder = root / (folder_name(step) + std::string(kUnfinished));
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    throw RuntimeFault(fmt::format("cannot create {}: {}", folder.string(), error.message()));
  }
  return folder;
}

void write_index(const fs::path& folder, const Position& position, const Origin& origin) {
  Index index{position, origin, {}, {}};
  std::unordered_map<std::string, size_t> places;
  for (int64_t rank = 0; rank < origin.world_size; ++rank) {
    const fs::path path = folder / part_file(rank);
    merge_part(parse_part(plan::read_text_file(path), path.string()), index, places);
  }
  const std::string text = to_json(index);
  (void)parse_index(text, (folder / kIndexFile).string());  // all pieces are there
  write_durably(folder / kIndexFile, text);
  for (int64_t rank = 0; rank < origin.world_size; ++rank) {
    remove_tree(folder / part_file(rank));
  }
}

fs::path commit_save(const fs::path& root,
                     const Position& position,
                     const Origin& origin,
                     std::span<const fs::path> extra) {
  const fs::path folder = begin_save(root, position.step);
  write_index(folder, position, origin);
  std::set<std::string> expected{std::string(kIndexFile)};
  for (const SavedFile& file : load_index(folder).files) {
    expected.insert(file.name);
  }
  for (const fs::path& file : extra) {
    expected.insert(file.filename().string());
    copy_durably(file, folder / file.filename());
  }
  std::vector<fs::path> left;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!expected.contains(entry.path().filename().string())) {
      left.push_back(entry.path());
    }
  }
  for (const fs::path& path : left) {
    remove_tree(path);
  }
  sync_directory(folder);
  fs::path complete = root / folder_name(position.step);
  rename_durably(folder, complete);
  return complete;
}

void remove_old(const fs::path& root, std::optional<int64_t> keep) {
  const std::vector<SavedStep> saved = saved_steps(root);
  const auto kept = static_cast<size_t>(keep.value_or(static_cast<int64_t>(saved.size())));
  for (size_t i = 0; i + kept < saved.size(); ++i) {
    // A name that is not a checkpoint's, before the first file is missing.
    fs::path removed = saved[i].path;
    removed += kRemoved;
    rename_durably(saved[i].path, removed);
  }
  for (const std::string_view ending : {kRemoved, kUnfinished}) {
    for (const SavedStep& each : folders_with(root, ending)) {
      remove_tree(each.path);
    }
  }
}

}  // namespace shardlens::checkpoint
