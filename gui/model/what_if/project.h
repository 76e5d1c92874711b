#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <QString>

#include "gui/model/lanes/lane_arrangement.h"
#include "gui/model/what_if/plan_state.h"

namespace shardlens::gui {

struct Bookmark {
  Nanoseconds time = 0;  // display time
  QString note;
  friend bool operator==(const Bookmark&, const Bookmark&) = default;
};

// The state of a user's work: which runs were open, which plans were tried, and notes. Traces are
// stored by path, not copied. Figures are not stored; the plans are simulated again.
//
// Layout  a JSON object, version 1, see docs/use/window.md. Paths below the file's directory are
//         relative to it.
struct Project {
  std::vector<std::filesystem::path> traces, compared;  // absolute
  std::filesystem::path model;   // config.json of a project without traces; "" otherwise
  std::vector<PlanState> plans;  // the first is the run's own plan
  std::vector<QString> titles;   // of the plans
  size_t current = 0;            // into plans
  std::vector<Bookmark> bookmarks;
  QString notes;
  std::optional<LaneArrangement> lanes;  // of the timeline; nullopt: as the window has them
  friend bool operator==(const Project&, const Project&) = default;
};

[[nodiscard]] std::string to_json(const Project& project, const std::filesystem::path& file);
// Errors: InputError with file and JSON pointer if the text is not a project, has another version,
// an unknown key or a plan that cannot be read.
[[nodiscard]] Project parse_project(std::string_view json, const std::filesystem::path& file);
[[nodiscard]] Project load_project(const std::filesystem::path& file);
// Writes to a temporary file first, then renames it. Errors: RuntimeFault.
void save_project(const Project& project, const std::filesystem::path& file);

[[nodiscard]] bool is_project_file(const QString& path);  // by its extension, .shardlens

}  // namespace shardlens::gui
