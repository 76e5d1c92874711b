#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <QString>

#include "gui/model/plan_state.h"

namespace shardlens::gui {

struct Bookmark {
  Nanoseconds time = 0;  // display time
  QString note;
  friend bool operator==(const Bookmark&, const Bookmark&) = default;
};

// What somebody worked on: which runs, which plans were tried, and notes. Traces are named, not
// copied; figures are not kept, plans are simulated again.
//
// Layout  a JSON object, version 1, docs/gui.md; paths in it are relative to the file where they
//         lie below its directory.
struct Project {
  std::vector<std::filesystem::path> traces, compared;  // absolute
  std::filesystem::path model;   // config.json of a project without traces; "" otherwise
  std::vector<PlanState> plans;  // the first is the one that the run had
  std::vector<QString> titles;   // of the plans
  size_t current = 0;            // into plans
  std::vector<Bookmark> bookmarks;
  QString notes;
  friend bool operator==(const Project&, const Project&) = default;
};

[[nodiscard]] std::string to_json(const Project& project, const std::filesystem::path& file);
// Errors: InputError with file and JSON pointer for what is no project, another version, an unknown
// key or a plan that cannot be read.
[[nodiscard]] Project parse_project(std::string_view json, const std::filesystem::path& file);
[[nodiscard]] Project load_project(const std::filesystem::path& file);
// Written under another name first. Errors: RuntimeFault.
void save_project(const Project& project, const std::filesystem::path& file);

[[nodiscard]] bool is_project_file(const QString& path);  // by its ending, .shardlens

}  // namespace shardlens::gui
