#include "gui/view/panels/panels.h"

#include <algorithm>
#include <utility>

#include <QAbstractItemView>
#include <QLineEdit>
#include <QMainWindow>

namespace shardlens::gui {
namespace {

constexpr int kUpdateMilliseconds = 90;
constexpr int kNarrow = 1700;  // in narrower windows nothing is docked next to the tables

// Gives the keyboard focus to the first widget that accepts it, in Tab order.
void focusFirst(QWidget& content) {
  QWidget* at = &content;
  do {
    if (at->focusPolicy() & Qt::TabFocus && at->isEnabled() && at->isVisibleTo(&content) &&
        (at == &content || content.isAncestorOf(at))) {
      at->setFocus(Qt::ShortcutFocusReason);
      return;
    }
    at = at->nextInFocusChain();
  } while (at != &content);
}

}  // namespace

Panels::Panels(const PanelContext& context, QMainWindow& window)
    : QObject(&window), context_(context), window_(window) {
  later_.setSingleShot(true);
  later_.setInterval(kUpdateMilliseconds);
  connect(&later_, &QTimer::timeout, this, &Panels::showSelection);
  for (const PanelRow& row : panel_table()) {
    add(row, row.make(context_));
  }
  connect(&context_.selection, &SelectionContext::runChanged, this, &Panels::showRun);
  connect(&context_.selection, &SelectionContext::changed, &later_, qOverload<>(&QTimer::start));
  connect(&context_.session, &PlanSession::stateChanged, this, [this] {
    for (const Docked& docked : panels_) {
      docked.panel->planChanged();
    }
  });
  connect(&context_.session, &PlanSession::observed, this, [this] {
    const RunPointer& run = context_.selection.run();
    if (context_.session.recovered(run) != nullptr && plan_of(run) == nullptr) {
      showRun();  // the recovered plan has modules and owners
    }
  });
  arrange();
}

void Panels::add(const PanelRow& row, PanelPointer panel) {
  auto* dock = new QDockWidget(title_of(row), &window_);
  dock->setObjectName(QLatin1String(row.id));
  dock->setAccessibleName(dock->windowTitle());
  Panel* content = panel.release();
  dock->setWidget(content);
  connect(content, &Panel::menuRequested, this, &Panels::menuRequested);
  connect(content, &Panel::goRequested, this, &Panels::goRequested);
  connect(content, &Panel::updateRequested, &later_, qOverload<>(&QTimer::start));
  connect(dock, &QDockWidget::visibilityChanged, content, [content](bool visible) {
    if (visible) {
      content->becameVisible();
    }
  });
  // When another tab is chosen, Qt leaves the keyboard with the panel that is now covered. Which
  // panel covers it is known when all of them were told.
  connect(
      dock, &QDockWidget::visibilityChanged, this, [this] { takeFocusFromCovered(); },
      Qt::QueuedConnection);
  panels_.push_back({&row, dock, content});
}

const Panels::Docked& Panels::find(const QString& id) const {
  for (const Docked& docked : panels_) {
    if (id == QLatin1String(docked.row->id)) {
      return docked;
    }
  }
  throw RuntimeFault("no panel '" + id.toStdString() + "'");
}

QDockWidget* Panels::dockAtLeft() {
  QDockWidget* last = nullptr;
  for (const Docked& docked : panels_) {
    if (docked.row->place == PanelPlace::kLeft) {
      window_.addDockWidget(Qt::LeftDockWidgetArea, docked.dock);
      if (last != nullptr) {
        window_.splitDockWidget(last, docked.dock, Qt::Vertical);
      }
      last = docked.dock;
    }
  }
  return last;
}

std::vector<QDockWidget*> Panels::tabs() const {
  std::vector<QDockWidget*> out;
  for (const PanelRow* row : panels_by_tab()) {
    if (row->place == PanelPlace::kBottom) {
      out.push_back(find(QLatin1String(row->id)).dock);
    }
  }
  return out;
}

std::vector<QDockWidget*> Panels::aside() const {
  std::vector<QDockWidget*> out;
  for (const Docked& docked : panels_) {
    if (docked.row->place == PanelPlace::kAside) {
      out.push_back(docked.dock);
    }
  }
  return out;
}

void Panels::arrange() {
  setLarge(false);
  window_.setCorner(Qt::BottomLeftCorner, Qt::LeftDockWidgetArea);
  for (const Docked& docked : panels_) {
    docked.dock->setFloating(false);
    docked.dock->show();
  }
  const bool narrow = window_.width() < kNarrow;
  QDockWidget* low = dockAtLeft();
  const std::vector<QDockWidget*> tabs = this->tabs();
  QDockWidget* first = tabs.front();
  // Two of them next to each other would make a small window wider.
  for (QDockWidget* dock : tabs) {
    window_.removeDockWidget(dock);
  }
  window_.addDockWidget(Qt::BottomDockWidgetArea, first);
  first->show();
  for (QDockWidget* dock :
       aside()) {  // before the other tabs: a split takes a dock out of its tabs
    if (narrow) {
      window_.tabifyDockWidget(low, dock);
      low->raise();
    } else {
      window_.addDockWidget(Qt::BottomDockWidgetArea, dock);
      window_.splitDockWidget(dock, first, Qt::Horizontal);
    }
  }
  for (size_t i = 1; i < tabs.size(); ++i) {
    window_.tabifyDockWidget(first, tabs[i]);
    tabs[i]->show();
  }
  first->raise();
  // If there is room, the first panel (the tree) is wide enough for all its columns.
  const int width = window_.width(), height = window_.height();
  QDockWidget* tree = panels_.front().dock;
  window_.resizeDocks({tree}, {narrow ? width * 3 / 10 : width * 36 / 100}, Qt::Horizontal);
  window_.resizeDocks({tree, low}, {height * 6 / 10, height * 4 / 10}, Qt::Vertical);
  for (QDockWidget* dock : aside()) {
    if (!narrow) {
      window_.resizeDocks({dock, first}, {width * 17 / 100, width / 2}, Qt::Horizontal);
    }
  }
  window_.resizeDocks({first}, {height * 3 / 10}, Qt::Vertical);
}

void Panels::setLarge(bool large) {
  if (large == isLarge()) {
    return;
  }
  if (large) {
    before_ = window_.saveState();
    for (const Docked& docked : panels_) {
      if (window_.dockWidgetArea(docked.dock) != Qt::BottomDockWidgetArea &&
          !docked.dock->isFloating()) {
        docked.dock->hide();
      }
    }
    window_.centralWidget()->hide();
    return;
  }
  const auto front = std::ranges::find_if(panels_, &Panels::isSeen);
  QDockWidget* seen = front == panels_.end() ? nullptr : front->dock;
  window_.centralWidget()->show();
  window_.restoreState(std::exchange(before_, {}));
  if (seen != nullptr && seen->isVisible()) {
    seen->raise();  // another tab may have been chosen
  }
}

void Panels::hide() {
  setLarge(false);
  for (const Docked& docked : panels_) {
    docked.dock->hide();
  }
}

void Panels::setTheme(const Theme& theme) {
  for (const Docked& docked : panels_) {
    docked.panel->setTheme(theme);
  }
}

void Panels::raise(const QString& id) {
  const Docked& docked = find(id);
  docked.dock->show();
  docked.dock->raise();
  focusFirst(*docked.panel);
}

bool Panels::isSeen(const Docked& docked) {
  return docked.dock->isVisible() && !docked.dock->visibleRegion().isEmpty();
}

// The keyboard goes to the panel that is in front now, otherwise to what the window has for it.
void Panels::takeFocusFromCovered() {
  for (const Docked& docked : panels_) {
    const QWidget* keyboard = window_.focusWidget();
    if (keyboard == nullptr || !docked.dock->isAncestorOf(keyboard) || isSeen(docked)) {
      continue;
    }
    const QList<QDockWidget*> beside = window_.tabifiedDockWidgets(docked.dock);
    const auto front = std::ranges::find_if(panels_, [&beside](const Docked& other) {
      return beside.contains(other.dock) && isSeen(other);
    });
    if (front == panels_.end()) {
      emit focusLost();
    } else if (QAbstractItemView* view = front->panel->view();
               view != nullptr && view->isVisible()) {
      view->setFocus();
    } else {
      focusFirst(*front->panel);
    }
    return;
  }
}

void Panels::focusSearch() {
  for (const Docked& docked : panels_) {
    if (QLineEdit* search = docked.panel->search()) {
      docked.dock->show();
      docked.dock->raise();
      search->setFocus();
      search->selectAll();
      return;
    }
  }
}

void Panels::walkFound(int way) {
  for (const Docked& docked : panels_) {
    if (docked.panel->search() != nullptr) {
      docked.dock->show();
      docked.dock->raise();
      docked.panel->walkFound(way);
      return;
    }
  }
}

void Panels::showCursor(std::optional<Nanoseconds> time) {
  for (const Docked& docked : panels_) {
    docked.panel->showCursor(time);
  }
}

bool Panels::isBusy() const {
  return std::ranges::any_of(panels_, [](const Docked& docked) { return docked.panel->isBusy(); });
}

void Panels::flush() {
  if (later_.isActive()) {
    later_.stop();
    showSelection();
  }
}

void Panels::showRun() {
  for (const Docked& docked : panels_) {
    docked.panel->showRun();
  }
}

void Panels::showSelection() {
  for (const Docked& docked : panels_) {
    docked.panel->showSelection();
  }
}

}  // namespace shardlens::gui
