#pragma once

#include <QMainWindow>
#include <QSettings>

#include "gui/model/base/action_registry.h"
#include "gui/model/compare/compare_session.h"
#include "gui/model/run/run_loader.h"
#include "gui/model/run/selection_context.h"
#include "gui/model/what_if/edit_history.h"
#include "gui/model/what_if/plan_proposals.h"
#include "gui/view/panels/panels.h"
#include "gui/view/widgets/messages.h"
#include "gui/view/widgets/recent_files.h"
#include "gui/view/window/opened_run.h"
#include "gui/view/window/window_pages.h"

namespace shardlens::gui {

// The parts of the main window that its controllers and commands work on. The window owns them.
struct WindowParts {
  QMainWindow& window;
  QSettings& settings;
  ActionRegistry& actions;
  SelectionContext& context;
  RunLoader& loader;
  PlanSession& session;
  PlanProposals& proposals;
  CompareSession& compare;
  OpenedRun& opened;
  Messages& messages;
  RecentFiles& recent;
  WindowPages& pages;
  Panels& panels;

  [[nodiscard]] TimelineView& timeline() const { return pages.timeline(); }
  [[nodiscard]] bool hasRun() const { return context.run() != nullptr; }
};

}  // namespace shardlens::gui
