#include "tests/gui/view/monkey.h"

#include <algorithm>
#include <cstdio>

#include <QAbstractItemView>
#include <QApplication>
#include <QComboBox>
#include <QContextMenuEvent>
#include <QDockWidget>
#include <QFileDialog>
#include <QMenu>
#include <QMenuBar>
#include <QPointer>
#include <QRegularExpression>
#include <QTest>
#include <QTreeView>
#include <QWheelEvent>
#include <QWindow>

#include "core/plan/parameter_groups.h"
#include "gui/model/details/launch_ends.h"
#include "gui/model/tables/event_groups.h"
#include "gui/model/tables/event_table.h"
#include "gui/model/tables/exposed_groups.h"
#include "gui/model/tables/exposed_table.h"
#include "gui/model/tables/ownership_table.h"
#include "gui/model/tables/unit_tree.h"
#include "gui/view/panels/compare_panel.h"
#include "gui/view/timeline/timeline_view.h"
#include "gui/view/widgets/capture_dialog.h"
#include "gui/view/widgets/headline_strip.h"

namespace shardlens::gui {
namespace {

constexpr int kMostResizes = 100'000;  // of widgets, in one action
constexpr int kWatchMilliseconds = 40;
constexpr int kPatience = 5;       // ticks before a nested event loop is answered
constexpr int kMostTicks = 1'500;  // of one action: it is answered again and again, without effect
constexpr qsizetype kLogged = 30;

QString name_of(const QWidget& widget) {
  const QString name =
      widget.accessibleName().isEmpty() ? widget.objectName() : widget.accessibleName();
  return QString::fromUtf8(widget.metaObject()->className()).section(u':', -1) + u' ' + name;
}

// Every number of the headline in microseconds, the sum first.
std::vector<int64_t> numbers_of(const QString& headline) {
  static const QRegularExpression kNumber(QStringLiteral("(-?[0-9]+)\\.([0-9]{3}) (ms|s)\\b"));
  std::vector<int64_t> out;
  auto found = kNumber.globalMatch(headline);
  while (found.hasNext()) {
    const auto match = found.next();
    const int64_t value = match.captured(1).toLongLong() * 1000 + match.captured(2).toLongLong();
    out.push_back(match.captured(3) == QStringLiteral("s") ? value * 1000 : value);
  }
  return out;
}

// The microseconds of a time as the headline writes it: from 10 s on only milliseconds.
int64_t rounded(Nanoseconds time) {
  const int64_t micro = (time + 500) / 1000;
  return micro < 10'000'000 ? micro : (micro + 500) / 1000 * 1000;
}

// Whether the widget is hidden or completely covered.
bool hidden(const QWidget& widget) {
  return !widget.isVisible() || widget.visibleRegion().isEmpty();
}

QPoint held_within(const QWindow& window, const QPoint& at) {
  return {std::clamp(at.x(), 0, std::max(0, window.width() - 1)),
          std::clamp(at.y(), 0, std::max(0, window.height() - 1))};
}

}  // namespace

Monkey::Monkey(MainWindow& window, uint32_t seed) : window_(window), random_(seed) {
  watch_.setInterval(kWatchMilliseconds);
  connect(&watch_, &QTimer::timeout, this, &Monkey::answer);
  watch_.start();
  QCoreApplication::instance()->installEventFilter(this);
}

// Scroll bars that make one another necessary are shown and hidden without end, and no event is
// processed after that.
bool Monkey::eventFilter(QObject* watched, QEvent* event) {
  if (event->type() == QEvent::Resize && ++resizes_ > kMostResizes) {
    qFatal("widgets are resized without end, after:\n  %s", qPrintable(log_.join("\n  ")));
  }
  return QObject::eventFilter(watched, event);
}

int Monkey::below(int count) {
  return count <= 1 ? 0 : static_cast<int>(random_() % static_cast<uint32_t>(count));
}

bool Monkey::chance(double probability) {
  return static_cast<double>(random_()) < probability * 4294967296.0;
}

void Monkey::say(const QString& what) {
  log_.append(what);
  if (log_.size() > kLogged) {
    log_.removeFirst();
  }
  if (qEnvironmentVariableIsSet("SHARDLENS_MONKEY_LOG")) {
    std::fprintf(stderr, "%s\n", qPrintable(what));
  }
}

QWidget* Monkey::top() {
  if (QWidget* popup = QApplication::activePopupWidget()) {
    return popup;
  }
  if (QWidget* dialog = QApplication::activeModalWidget()) {
    return dialog;
  }
  QList<QWidget*> floating;
  for (const Panels::Docked& panel : window_.panels().all()) {
    if (panel.dock->isFloating() && panel.dock->isVisible() && panel.dock->isWindow()) {
      floating.append(panel.dock);
    }
  }
  return !floating.isEmpty() && chance(0.3) ? floating[below(static_cast<int>(floating.size()))]
                                            : &window_;
}

QWidget* Monkey::someWidget(QWidget& within_top) {
  QList<QWidget*> all{&within_top};
  for (QWidget* widget : within_top.findChildren<QWidget*>()) {
    if (widget->window() == &within_top && !hidden(*widget)) {
      all.append(widget);
    }
  }
  QWidget* timeline = window_.timeline().viewport();
  return &within_top == &window_ && !hidden(*timeline) && chance(0.25)
             ? timeline
             : all[below(static_cast<int>(all.size()))];
}

QPoint Monkey::within(const QWidget& widget) {
  const QRect seen = widget.visibleRegion().boundingRect().intersected(widget.rect());
  return {seen.left() + below(seen.width()), seen.top() + below(seen.height())};
}

Qt::KeyboardModifiers Monkey::modifiers() {
  Qt::KeyboardModifiers out;
  for (const auto key : {Qt::ShiftModifier, Qt::ControlModifier, Qt::AltModifier}) {
    out |= chance(0.1) ? Qt::KeyboardModifiers(key) : Qt::KeyboardModifiers();
  }
  return out;
}

void Monkey::click() {
  QWidget* window = top();
  QWidget* widget = someWidget(*window);
  const QPoint at = widget->mapTo(window, within(*widget));
  const Qt::MouseButton button = chance(0.7)   ? Qt::LeftButton
                                 : chance(0.7) ? Qt::RightButton
                                               : Qt::MiddleButton;
  const bool twice = chance(0.2);
  say(QStringLiteral("%1 %2 at %3,%4 of %5")
          .arg(twice ? "double click" : "click")
          .arg(static_cast<int>(button))
          .arg(at.x())
          .arg(at.y())
          .arg(name_of(*widget)));
  const QPointer<QWidget> alive(window);
  const QPointer<QWindow> handle(window->windowHandle());
  const Qt::KeyboardModifiers keys = modifiers();
  if (handle) {
    QTest::mouseMove(handle, held_within(*handle, at));
  }
  if (handle) {
    twice ? QTest::mouseDClick(handle, button, keys, held_within(*handle, at))
          : QTest::mouseClick(handle, button, keys, held_within(*handle, at));
  }
  if (button == Qt::RightButton && QApplication::activePopupWidget() == nullptr && alive &&
      handle) {
    if (QWidget* under = window->childAt(at)) {
      QContextMenuEvent event(QContextMenuEvent::Mouse, under->mapFrom(window, at),
                              window->mapToGlobal(at));
      QApplication::sendEvent(under, &event);
    }
  }
}

void Monkey::drag() {
  QWidget* window = top();
  QWidget* widget = someWidget(*window);
  const QPoint from = widget->mapTo(window, within(*widget));
  QPoint to = chance(0.6) ? widget->mapTo(window, within(*widget))
                          : QPoint(below(window->width()), below(window->height()));
  const Qt::KeyboardModifiers keys = modifiers();
  const Qt::MouseButton button = chance(0.85) ? Qt::LeftButton : Qt::MiddleButton;
  say(QStringLiteral("drag %1,%2 to %3,%4 from %5")
          .arg(from.x())
          .arg(from.y())
          .arg(to.x())
          .arg(to.y())
          .arg(name_of(*widget)));
  // The window may shrink or close during the drag; then the button is released in the main window.
  const QPointer<QWindow> handle(window->windowHandle());
  if (handle) {
    QTest::mousePress(handle, button, keys, held_within(*handle, from));
  }
  for (int i = 1; i <= 3 && handle; ++i) {
    QTest::mouseMove(handle, held_within(*handle, from + (to - from) * i / 3));
  }
  QWindow* last = handle ? handle.data() : window_.windowHandle();
  QTest::mouseRelease(last, button, keys, held_within(*last, to));
}

void Monkey::wheel() {
  QWidget* window = top();
  QWidget* widget = someWidget(*window);
  const QPoint at = within(*widget);
  const QPoint delta =
      chance(0.8) ? QPoint(0, 120 * (below(7) - 3)) : QPoint(120 * (below(5) - 2), 0);
  say(QStringLiteral("wheel %1,%2 on %3").arg(delta.x()).arg(delta.y()).arg(name_of(*widget)));
  QWheelEvent event(at, widget->mapToGlobal(QPointF(at)), {}, delta, Qt::NoButton, modifiers(),
                    Qt::NoScrollPhase, false);
  QApplication::sendEvent(widget, &event);
}

void Monkey::type() {
  QWidget* window = top();
  QWidget* widget = window->focusWidget() != nullptr ? window->focusWidget() : window;
  static const std::vector<Qt::Key> kKeys{
      Qt::Key_Up,     Qt::Key_Down, Qt::Key_Left,   Qt::Key_Right,     Qt::Key_Return,
      Qt::Key_Tab,    Qt::Key_Home, Qt::Key_End,    Qt::Key_A,         Qt::Key_S,
      Qt::Key_D,      Qt::Key_W,    Qt::Key_E,      Qt::Key_M,         Qt::Key_F,
      Qt::Key_0,      Qt::Key_G,    Qt::Key_Period, Qt::Key_Menu,      Qt::Key_Escape,
      Qt::Key_Z,      Qt::Key_Y,    Qt::Key_Space,  Qt::Key_Backspace, Qt::Key_Plus,
      Qt::Key_PageUp, Qt::Key_F6,   Qt::Key_K,      Qt::Key_1,         Qt::Key_9,
      Qt::Key_L,      Qt::Key_R,    Qt::Key_T,      Qt::Key_F3,        Qt::Key_BracketLeft};
  const Qt::Key key = kKeys[static_cast<size_t>(below(static_cast<int>(kKeys.size())))];
  const Qt::KeyboardModifiers keys = modifiers();
  say(QStringLiteral("key %1 with %2 to %3")
          .arg(QKeySequence(key).toString())
          .arg(keys.toInt())
          .arg(name_of(*widget)));
  QTest::keyClick(widget, key, keys);
}

void Monkey::command() {
  const std::vector<Command>& all = window_.actions().commands();
  const QString id = all[static_cast<size_t>(below(static_cast<int>(all.size())))].id;
  if (id == QStringLiteral("file.quit") || QApplication::activeModalWidget() != nullptr) {
    return;
  }
  say(QStringLiteral("command ") + id);
  window_.actions().trigger(id);
}

void Monkey::resize() {
  const QSize size(640 + below(1600), 420 + below(900));
  say(QStringLiteral("resize to %1x%2").arg(size.width()).arg(size.height()));
  window_.resize(size);
}

void Monkey::menu() {
  const QList<QAction*> menus = window_.menuBar()->actions();
  QMenu* menu = menus[below(static_cast<int>(menus.size()))]->menu();
  say(QStringLiteral("menu ") + menu->title());
  if (QApplication::activeModalWidget() == nullptr &&
      QApplication::activePopupWidget() == nullptr) {
    menu->popup(window_.mapToGlobal(QPoint(20, 30)));
  }
}

void Monkey::panel() {
  const auto& all = window_.panels().all();
  QDockWidget* dock = all[static_cast<size_t>(below(static_cast<int>(all.size())))].dock;
  const int what = below(6);
  say(QStringLiteral("panel %1: %2").arg(dock->objectName()).arg(what));
  if (what == 0) {
    dock->setFloating(!dock->isFloating());
  } else if (what == 1) {
    dock->close();
  } else if (window_.context().run() != nullptr) {
    window_.panels().raise(dock->objectName());
  }
}

void Monkey::rank() {
  const RunPointer& run = window_.context().run();
  if (run == nullptr) {
    return;
  }
  for (const TimelineLayout::Band& band : window_.timeline().scene().layout().bands) {
    if (band.kind == TimelineLayout::Band::Kind::kRank && chance(0.4)) {
      const QPoint at(20 + below(80), static_cast<int>(TimelineScene::kHeader + band.top + 8 -
                                                       window_.timeline().scene().scroll));
      say(QStringLiteral("rank's name at %1,%2").arg(at.x()).arg(at.y()));
      QTest::mouseClick(window_.timeline().viewport(), Qt::LeftButton, {}, at);
      return;
    }
  }
}

// Called by a timer. If an action is in progress, it is waiting in a nested event loop.
void Monkey::answer() {
  if (!acting_) {
    return;
  }
  closeAway();
  if (++waited_ < kPatience) {
    return;
  }
  if (waited_ > kMostTicks) {
    qFatal("an action does not end:\n  %s", qPrintable(log_.join("\n  ")));
  }
  if (QWidget* popup = QApplication::activePopupWidget();
      popup != nullptr && popup->windowHandle() != nullptr) {
    switch (waited_ % 3) {
      case 0:
        QTest::keyClick(popup->windowHandle(), Qt::Key_Down);
        break;
      case 1:
        QTest::keyClick(popup->windowHandle(), Qt::Key_Return);
        break;
      default:  // with the menus that it is a submenu of, which would open another one
        while (popup != nullptr && popup->close()) {
          popup = QApplication::activePopupWidget();
        }
    }
  } else if (window_.windowHandle() != nullptr) {
    QTest::keyClick(window_.windowHandle(), Qt::Key_Escape);  // ends a text drag
  }
}

void Monkey::closeAway() {
  for (QWidget* widget : QApplication::topLevelWidgets()) {
    auto* dialog = qobject_cast<QDialog*>(widget);
    if (dialog != nullptr && dialog->isVisible() &&
        (qobject_cast<QFileDialog*>(dialog) != nullptr ||
         qobject_cast<CaptureDialog*>(dialog) != nullptr)) {
      dialog->reject();
    }
  }
}

void Monkey::act() {
  acting_ = true;
  waited_ = resizes_ = 0;
  const int what = below(100);
  what < 36   ? click()
  : what < 50 ? drag()
  : what < 60 ? wheel()
  : what < 76 ? type()
  : what < 84 ? command()
  : what < 87 ? resize()
  : what < 91 ? menu()
  : what < 96 ? panel()
              : rank();
  closeAway();
  QApplication::processEvents();
  closeAway();
  if (QApplication::activePopupWidget() != nullptr && chance(0.3)) {
    QApplication::activePopupWidget()->close();
  }
  if (QWidget* dialog = QApplication::activeModalWidget(); dialog != nullptr && chance(0.3)) {
    say(QStringLiteral("close ") + name_of(*dialog));
    dialog->close();
  }
  if (!window_.isVisible() || window_.isMinimized()) {
    window_.showNormal();
  }
  acting_ = false;
  QApplication::processEvents();
  QApplication::sendPostedEvents(nullptr, QEvent::DeferredDelete);
  window_.panels().flush();
}

QStringList Monkey::brokenNumbers() {
  QStringList out;
  const RankData* rank = window_.context().rank();
  const std::vector<int64_t> said = numbers_of(window_.headline().bar().text());
  if (rank == nullptr || said.size() != 5) {
    return rank == nullptr ? out : QStringList{window_.headline().bar().text()};
  }
  const analysis::WindowFigures exact = rank->partition.figures(window_.context().window());
  const Nanoseconds shown[] = {exact.duration(), exact.compute, exact.exposed_comm,
                               exact.exposed_copy, exact.idle};
  for (size_t i = 0; i < said.size(); ++i) {
    if (said[i] != rounded(shown[i])) {
      out.append(QStringLiteral("the headline is not of %1 ns: ").arg(shown[i]) +
                 window_.headline().bar().text());
    }
  }
  if (exact.duration() != length_of(window_.context().window())) {
    out.append(QStringLiteral("the figures do not sum to their span"));
  }
  if (window_.panels().model<ExposedTable>().total() != exact.exposed_comm) {
    out.append(QStringLiteral("the exposed list does not sum to the headline"));
  }
  const UnitTree& tree = window_.panels().model<UnitTree>();
  Nanoseconds top = 0;
  for (int row = 0; row < tree.rowCount(); ++row) {
    top += tree.exposedAt(tree.index(row, 0));
  }
  if (top != exact.exposed_comm) {
    out.append(QStringLiteral("the tree's rows sum to %1 ns, the headline shows %2 in %3 of %4")
                   .arg(top)
                   .arg(exact.exposed_comm)
                   .arg(window_.headline().bar().text(), window_.windowTitle()));
  }
  return out;
}

QStringList Monkey::brokenSelection() {
  QStringList out;
  const SelectionContext& context = window_.context();
  const Selection& held = context.current();
  if (context.run() == nullptr) {
    return out;
  }
  const auto expect = [&out](bool holds, const char* what) {
    if (!holds) {
      out.append(QString::fromUtf8(what));
    }
  };
  expect(held.rank < context.run()->ranks.size(), "a rank is selected that the run does not have");
  expect(window_.timeline().scene().selection() == held, "the timeline shows another selection");
  const auto boxes = window_.headline().findChildren<QComboBox*>();
  expect(boxes.size() == 2 && boxes[0]->currentIndex() == static_cast<int>(held.rank) &&
             boxes[1]->currentIndex() == (held.step ? static_cast<int>(*held.step) + 1 : 0),
         "the headline's boxes show another rank or step");
  for (const Panels::Docked& panel : window_.panels().all()) {
    const QString id = panel.dock->objectName();
    const QAbstractItemView* view = panel.panel->view();
    const QModelIndexList rows =
        view == nullptr ? QModelIndexList() : view->selectionModel()->selectedRows();
    if (rows.size() > 1) {
      continue;  // several rows are selected to be copied
    }
    if (id == QStringLiteral("modules")) {
      const UnitTree& tree = window_.panels().model<UnitTree>();
      const QModelIndex wanted = held.unit ? tree.indexOf(*held.unit) : QModelIndex();
      // A unit whose parameters are in two groups has one row.
      const auto shows = [&](const std::string& unit) {
        return !rows.isEmpty() && tree.unitAt(rows.front()) == plan::unit_of_group(unit);
      };
      expect(!wanted.isValid() || shows(*held.unit), "Modules does not show the selected unit");
      expect(held.unit || rows.isEmpty() || !tree.unitAt(rows.front()),
             "Modules shows a unit that is not selected");
    } else if (id == QStringLiteral("exposed") && !rows.isEmpty()) {
      const auto* sums = qobject_cast<const ExposedGroups*>(view->model());
      const auto listed = [&](const Selection::Item& wanted) {
        const Selection::Item item = window_.panels().model<ExposedTable>().itemAt(rows.front());
        return wanted.rank == item.rank && wanted.ref == item.ref;
      };
      const bool shown =
          held.item && (sums != nullptr ? sums->indexOf(*held.item).row() == rows.front().row()
                                        : listed(*held.item));
      expect(shown, "Exposed shows a collective that is not selected");
    } else if (id == QStringLiteral("events") && !rows.isEmpty()) {
      const auto* sums = qobject_cast<const EventGroups*>(view->model());
      const bool shown =
          held.item && held.item->source == Lane::Source::kEvents &&
          (sums != nullptr
               ? sums->indexOf(*held.item).row() == rows.front().row()
               : held.item->ref == window_.panels().model<EventTable>().eventAt(rows.front()));
      expect(shown, "Events shows an event that is not selected");
    } else if (id == QStringLiteral("ownership") && !rows.isEmpty()) {
      expect(window_.panels().model<OwnershipTable>().unitAt(rows.front()) == held.unit,
             "Ownership shows a unit that is not selected");
    } else if (id == QStringLiteral("compare") && !rows.isEmpty()) {
      expect(window_.panels().get<ComparePanel>().tree.unitAt(rows.front()) == held.unit,
             "Compare shows a unit that is not selected");
    }
  }
  return out;
}

QStringList Monkey::broken() {
  QStringList out = brokenNumbers() + brokenSelection();
  for (QMenu* menu : window_.menuBar()->findChildren<QMenu*>()) {
    for (const QAction* action : menu->actions()) {
      const Command* command = window_.actions().find(action->objectName());
      if (command != nullptr && action->isEnabled() != command->enabled()) {
        out.append(QStringLiteral("%1 is %2")
                       .arg(command->id, action->isEnabled() ? "enabled" : "not enabled"));
      }
    }
  }
  if (const auto end = window_.timeline().launchEnd()) {
    const RankData& rank = *window_.context().run()->ranks[end->rank];
    const auto ends = launch_ends(rank, *end);
    if (!ends || (*end != ends->call && *end != ends->launched)) {
      out.append(QStringLiteral("L goes to what belongs to no launch"));
    }
  }
  const PlanVersion* version = window_.session().current();
  if (version != nullptr && version->error.isEmpty() &&
      version->memory.points[version->memory.peak].sum() != version->peak()) {
    out.append(QStringLiteral("the curve of the memory does not have its peak"));
  }
  const TimeAxis& axis = window_.timeline().scene().axis;
  if (axis.view().start < axis.bounds().start || axis.view().end > axis.bounds().end ||
      axis.view().length() <= 0) {
    out.append(QStringLiteral("the view is not within the run"));
  }
  return out;
}

}  // namespace shardlens::gui
