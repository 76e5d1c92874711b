#pragma once

#include <functional>
#include <optional>

#include <QObject>

#include "gui/model/what_if/project.h"
#include "gui/view/window/comparison_controller.h"
#include "gui/view/window/window_parts.h"

namespace shardlens::gui {

// The open project: its file, whether it has unsaved changes, and what of it is restored once its
// run is loaded.
class ProjectController : public QObject {
  Q_OBJECT
 public:
  ProjectController(const WindowParts& parts, ComparisonController& comparison);
  // The file of the open project; "": none.
  [[nodiscard]] const QString& path() const { return path_; }
  [[nodiscard]] Project contents() const;
  // Returns false and sets the last error if the file cannot be written.
  bool save(const QString& path);
  void save();  // asks for a file if there is none
  // Asks for a file, and runs `then` (if there is one) when it is written.
  void saveAs(const std::function<void()>& then = {});

  // Runs `then`, which may lose notes, versions and bookmarks, after they were saved or discarded;
  // not at all if the user cancels. Without a project, saving asks for its file.
  void whenSaved(const std::function<void()>& then);
  [[nodiscard]] bool mustAsk() const;         // whether whenSaved() asks
  void setUnchanged() { setChanged(false); }  // there is nothing that the user made
  // The open run is no longer the project's; what is saved from now on is a new project.
  void leaveProject();

  // The project's run is being opened: the rest of it is restored when it is loaded.
  void expect(const QString& path, Project project);
  [[nodiscard]] bool isExpected() const { return pending_.has_value(); }
  void forgetExpected();  // another run is opened instead
  void restore();         // a run was loaded; the expected project is restored, if there is one
  void close();           // no run is open

 private:
  void setChanged(bool changed);
  WindowParts parts_;
  ComparisonController& comparison_;
  QString path_;
  QString expected_path_;
  std::optional<Project> pending_;
  [[nodiscard]] QString unsaved() const;  // what would be lost, in words
  bool changed_ = false, restoring_ = false;
  bool discarding_ = false;  // the user agreed to lose the changes
};

// The paths as strings.
[[nodiscard]] QStringList strings_of(const std::vector<std::filesystem::path>& paths);

}  // namespace shardlens::gui
