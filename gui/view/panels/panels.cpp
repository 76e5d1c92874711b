#include "gui/view/panels/panels.h"

#include <algorithm>

#include <QDockWidget>
#include <QHeaderView>
#include <QLabel>
#include <QLineEdit>
#include <QLocale>
#include <QMainWindow>
#include <QPlainTextEdit>
#include <QScopedValueRollback>
#include <QTableView>
#include <QTreeView>
#include <QVBoxLayout>

#include "core/base/error.h"
#include "core/plan/resolve.h"
#include "gui/model/base/time_axis.h"
#include "gui/model/plan/plan_session.h"
#include "gui/view/panels/compare_panel.h"
#include "gui/view/panels/inspector.h"
#include "gui/view/panels/what_if_panel.h"
#include "gui/view/planning/module_bar.h"

namespace shardlens::gui {
namespace {

constexpr int kPauseMilliseconds = 90;
constexpr int kCategoryWidth = 120;
constexpr int kMeasuredRows = 100;  // rows that are measured for the widths of columns
constexpr int kNarrow = 1700;       // in narrower windows the inspector is not next to the tables
// Computing the figures per unit for a window takes a pass over the trace. On traces with more
// events than this, the figures of all steps are shown for every window.
constexpr int64_t kWindowedUnits = 1'500'000;

QLabel* note(QWidget* parent) {
  auto* label = new QLabel(parent);
  label->setWordWrap(true);
  label->setContentsMargins(8, 4, 8, 4);
  label->setTextInteractionFlags(Qt::TextSelectableByMouse);
  return label;
}

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

QWidget* stacked(std::initializer_list<QWidget*> widgets) {
  auto* box = new QWidget;
  auto* column = new QVBoxLayout(box);
  column->setContentsMargins(0, 0, 0, 0);
  column->setSpacing(0);
  for (QWidget* widget : widgets) {
    column->addWidget(widget);
  }
  return box;
}

}  // namespace

Panels::Panels(SelectionContext& context,
               PlanSession& session,
               CompareSession& compare,
               QMainWindow& window)
    : QObject(&window), context_(context), session_(session), window_(window) {
  later_.setSingleShot(true);
  later_.setInterval(kPauseMilliseconds);
  connect(&later_, &QTimer::timeout, this, &Panels::selectionChanged);
  makeTree();
  makeOwnership();
  inspector_ = new Inspector(context_);
  add(QStringLiteral("inspector"), tr("Inspector"), inspector_, nullptr);
  makeTables();
  what_if_ = new WhatIfPanel(session);
  add(QStringLiteral("whatif"), tr("What if"), what_if_, &what_if_->table());
  compare_ = new ComparePanel(compare);
  add(QStringLiteral("compare"), tr("Compare"), compare_, &compare_->view());
  connect(compare_, &ComparePanel::unitChosen, this,
          [this](const QString& unit) { context_.selectUnit(unit.toStdString()); });
  notes_ = new QPlainTextEdit;
  notes_->setAccessibleName(tr("Notes"));
  notes_->setPlaceholderText(tr("Your notes. They are saved with the project (Ctrl+S)."));
  notes_->setTabChangesFocus(true);
  notes_->setFrameShape(QFrame::NoFrame);
  add(QStringLiteral("notes"), tr("Notes"), notes_, nullptr);
  makeMenus();
  connect(&context_, &SelectionContext::runChanged, this, &Panels::runChanged);
  connect(&context_, &SelectionContext::changed, &later_, qOverload<>(&QTimer::start));
  arrange();
}

QDockWidget* Panels::add(const QString& id,
                         const QString& title,
                         QWidget* content,
                         QAbstractItemView* view) {
  auto* dock = new QDockWidget(title, &window_);
  dock->setObjectName(id);
  dock->setWidget(content);
  dock->setAccessibleName(title);
  panels_.push_back({dock, view});
  return dock;
}

void Panels::makeTree() {
  auto* view = tree_view_ = new QTreeView;
  view->setModel(&tree);
  view->setAccessibleName(tr("Modules and units"));
  view->setUniformRowHeights(true);
  view->setAlternatingRowColors(true);
  view->setAllColumnsShowFocus(true);
  share_ = new ShareDelegate(UnitTree::kShareRole, this);
  view->setItemDelegateForColumn(UnitTree::kExposed, share_);
  view->header()->setStretchLastSection(false);
  view->header()->setSectionsMovable(true);
  view->header()->moveSection(UnitTree::kExposed, 1);  // next to the name, as it is used most
  view->setExpandsOnDoubleClick(false);                // goes to a unit; unfolds other rows
  connect(view->selectionModel(), &QItemSelectionModel::currentChanged, this,
          [this](const QModelIndex& index) { module_bar_->setModules(tree.modulesAt(index)); });
  choosing(*view, [this](const QModelIndex& index) { context_.selectUnit(tree.unitAt(index)); });
  connect(view, &QTreeView::doubleClicked, this, [view](const QModelIndex& index) {
    const QModelIndex row = index.siblingAtColumn(0);
    if (!row.data(UnitTree::kIsUnitRole).toBool()) {
      view->setExpanded(row, !view->isExpanded(row));
    }
  });
  view->setItemDelegateForColumn(UnitTree::kUnits,
                                 new EmphasisDelegate(view, UnitTree::kChangedRole));
  module_bar_ = new ModuleBar(session_);
  connect(&session_, &PlanSession::stateChanged, this, &Panels::planChanged);
  connect(&session_, &PlanSession::observed, this, [this] {
    if (session_.recovered(context_.run()) != nullptr && plan_of(context_.run()) == nullptr) {
      runChanged();  // the recovered plan has modules and owners
    }
  });
  add(QStringLiteral("modules"), tr("Modules"), stacked({view, module_bar_}), view);
  view->viewport()->installEventFilter(this);
}

void Panels::makeOwnership() {
  auto* view = ownership_view_ = new QTableView;
  view->setModel(&ownership);
  view->setAccessibleName(tr("Ownership"));
  view->setTabKeyNavigation(false);
  view->setWordWrap(false);
  view->setAlternatingRowColors(true);
  view->verticalHeader()->hide();
  view->verticalHeader()->setDefaultSectionSize(view->fontMetrics().height() + 8);
  slice_ = new SliceDelegate(this);
  view->setItemDelegate(slice_);
  connect(view, &QTableView::activated, this, [this](const QModelIndex& index) {
    if (const auto unit = ownership.unitAt(index)) {
      context_.selectUnit(unit);
      emit goRequested();
    }
  });
  ownership_note_ = note(nullptr);
  add(QStringLiteral("ownership"), tr("Ownership"), stacked({ownership_note_, view}), view);
  view->viewport()->installEventFilter(this);
}

QTableView* Panels::table(ColumnTable& model, const QString& name) {
  auto* view = new QTableView;
  view->setModel(&model);
  view->setAccessibleName(name);
  view->setAlternatingRowColors(true);
  view->setSelectionBehavior(QAbstractItemView::SelectRows);
  view->setSelectionMode(QAbstractItemView::SingleSelection);
  view->setShowGrid(false);
  view->setWordWrap(false);
  view->setSortingEnabled(true);
  view->horizontalHeader()->setSortIndicatorShown(true);
  view->horizontalHeader()->setSortIndicator(-1, Qt::AscendingOrder);
  view->horizontalHeader()->setStretchLastSection(true);
  view->horizontalHeader()->setHighlightSections(false);
  view->horizontalHeader()->setResizeContentsPrecision(kMeasuredRows);
  view->verticalHeader()->hide();
  view->verticalHeader()->setDefaultSectionSize(view->fontMetrics().height() + 7);
  view->setItemDelegate(new EmphasisDelegate(view));
  view->setTabKeyNavigation(false);
  return view;
}

void Panels::makeTables() {
  exposed_view_ = table(exposed, tr("Exposed collectives"));
  exposed_note_ = note(nullptr);
  exposed_view_->horizontalHeader()->moveSection(3, 2);  // exposed time, then its cause
  exposed_view_->horizontalHeader()->moveSection(6, 3);
  choosing(*exposed_view_,
           [this](const QModelIndex& index) { context_.selectItem(exposed.itemAt(index)); });
  add(QStringLiteral("exposed"), tr("Exposed"), stacked({exposed_note_, exposed_view_}),
      exposed_view_);

  order_view_ = table(order, tr("Order of collectives"));
  order_view_->setSortingEnabled(false);
  order_view_->horizontalHeader()->setStretchLastSection(false);
  for (int column = 0; column < order.columnCount(); ++column) {
    const bool named = column >= 1 && column <= 3;  // planned, issued, started
    order_view_->horizontalHeader()->setSectionResizeMode(
        column, named ? QHeaderView::Stretch : QHeaderView::ResizeToContents);
  }
  order_note_ = note(nullptr);
  choosing(*order_view_, [this](const QModelIndex& index) {
    if (const auto item = order.itemAt(index)) {
      context_.selectItem(*item);
    } else {
      context_.selectUnit(order.unitAt(index));
    }
  });
  add(QStringLiteral("order"), tr("Order"), stacked({order_note_, order_view_}), order_view_);

  event_view_ = table(events, tr("Events"));
  search_ = new QLineEdit;
  search_->setPlaceholderText(tr("Name contains … (Ctrl+F)"));
  search_->setAccessibleName(tr("Find events by name"));
  search_->setClearButtonEnabled(true);
  event_note_ = note(nullptr);
  connect(search_, &QLineEdit::textChanged, &later_, qOverload<>(&QTimer::start));
  choosing(*event_view_, [this](const QModelIndex& index) {
    context_.selectItem({shown_rank_, Lane::Source::kEvents, events.eventAt(index)});
  });
  event_dock_ = add(QStringLiteral("events"), tr("Events"),
                    stacked({search_, event_note_, event_view_}), event_view_);
  connect(event_dock_, &QDockWidget::visibilityChanged, this, [this](bool visible) {
    if (visible) {
      later_.start();
    }
  });

  event_view_->horizontalHeader()->setStretchLastSection(false);
  event_view_->horizontalHeader()->setSectionResizeMode(2, QHeaderView::Stretch);  // the name
  event_view_->setColumnWidth(3, kCategoryWidth);

  problem_view_ = table(diagnostics, tr("Diagnostics"));
  problem_note_ = note(nullptr);
  add(QStringLiteral("diagnostics"), tr("Diagnostics"), stacked({problem_note_, problem_view_}),
      problem_view_);
}

void Panels::arrange() {
  const auto dock = [this](const char* id) {
    for (const Panel& panel : panels_) {
      if (panel.dock->objectName() == QLatin1String(id)) {
        return panel.dock;
      }
    }
    return static_cast<QDockWidget*>(nullptr);
  };
  window_.setCorner(Qt::BottomLeftCorner, Qt::LeftDockWidgetArea);
  for (const Panel& panel : panels_) {
    panel.dock->setFloating(false);
    panel.dock->show();
  }
  window_.addDockWidget(Qt::LeftDockWidgetArea, dock("modules"));
  window_.addDockWidget(Qt::LeftDockWidgetArea, dock("ownership"));
  window_.splitDockWidget(dock("modules"), dock("ownership"), Qt::Vertical);
  const bool narrow = window_.width() < kNarrow;
  window_.addDockWidget(Qt::BottomDockWidgetArea, dock("exposed"));
  if (narrow) {
    window_.tabifyDockWidget(dock("ownership"), dock("inspector"));
    dock("ownership")->raise();
  } else {
    window_.addDockWidget(Qt::BottomDockWidgetArea, dock("inspector"));
    window_.splitDockWidget(dock("inspector"), dock("exposed"), Qt::Horizontal);
  }
  for (const char* id : {"order", "whatif", "compare", "events", "diagnostics", "notes"}) {
    window_.addDockWidget(Qt::BottomDockWidgetArea, dock(id));
    window_.tabifyDockWidget(dock("exposed"), dock(id));
  }
  dock("exposed")->raise();
  const int width = window_.width(), height = window_.height();
  // If there is room, the tree is wide enough for all its columns.
  window_.resizeDocks({dock("modules")}, {narrow ? width * 3 / 10 : width * 35 / 100},
                      Qt::Horizontal);
  window_.resizeDocks({dock("modules"), dock("ownership")}, {height * 6 / 10, height * 4 / 10},
                      Qt::Vertical);
  if (!narrow) {
    window_.resizeDocks({dock("inspector"), dock("exposed")}, {width / 4, width / 2},
                        Qt::Horizontal);
  }
  window_.resizeDocks({dock("exposed")}, {height * 3 / 10}, Qt::Vertical);
}

// The current row is not used: a view that gets the keyboard focus makes its first row current
// without selecting it, and a mouse press makes a row current before it is selected.
void Panels::choosing(QAbstractItemView& view, std::function<void(const QModelIndex&)> choose) {
  const auto chosen = [this, choose = std::move(choose)](const QModelIndex& index) {
    if (!updating_ && index.isValid()) {
      choose(index);
    }
  };
  connect(view.selectionModel(), &QItemSelectionModel::selectionChanged, this,
          [this, chosen, &view](const QItemSelection& selected) {
            if (!selected.isEmpty()) {
              chosen(selected.indexes().front());
            } else if (!updating_ && !view.selectionModel()->hasSelection()) {
              context_.selectUnit(std::nullopt);  // the user clicked outside of all rows
            }
          });
  connect(&view, &QAbstractItemView::clicked, this, chosen);
  connect(&view, &QAbstractItemView::activated, this, [this, chosen](const QModelIndex& index) {
    chosen(index);
    emit goRequested();
  });
}

void Panels::setTheme(const Theme& theme) {
  share_->setTheme(theme);
  slice_->setTheme(theme);
  what_if_->setTheme(theme);
  compare_->setTheme(theme);
}

void Panels::raise(const QString& id) {
  for (const Panel& panel : panels_) {
    if (panel.dock->objectName() == id) {
      panel.dock->show();
      panel.dock->raise();
      focusFirst(*panel.dock->widget());
    }
  }
}

void Panels::focusSearch() {
  event_dock_->show();
  event_dock_->raise();
  search_->setFocus();
  search_->selectAll();
}

void Panels::setInstant(Nanoseconds shown) {
  instant_ = shown;
  const RankData* rank = context_.rank();
  if (rank != nullptr) {
    ownership.show(context_.run(), context_.current().rank, context_.current().unit,
                   context_.run()->own(*rank, {shown, shown}).start,
                   session_.recovered(context_.run()));
  }
}

void Panels::flush() {
  if (later_.isActive()) {
    later_.stop();
    selectionChanged();
  }
}

void Panels::runChanged() {
  const QScopedValueRollback guard(updating_, true);
  const RunPointer& run = context_.run();
  shown_rank_ = context_.current().rank;
  instant_ = 0;
  tree.show(run, shown_rank_, session_.recovered(run));
  diagnostics.show(run);
  problem_note_->setText(diagnostics.rowCount() == 0
                             ? tr("No diagnostics: nothing was left out or repaired.")
                             : countText(diagnostics.rowCount(), tr("remark"), tr("remarks")));
  fit(*problem_view_);
  tree_view_->expandToDepth(1);
  for (int column = 1; column < UnitTree::kColumnCount; ++column) {
    tree_view_->resizeColumnToContents(column);
  }
  fitTree();
  selectionChanged();
  fit(*exposed_view_);
  measureOwnership();
}

void Panels::planChanged() {
  if (!session_.isOpen()) {
    tree.setPlan(nullptr);
    return;
  }
  try {
    const plan::ResolvedPlan edited =
        plan::resolve(session_.state().plan, session_.tree(), session_.state().world_size);
    tree.setPlan(&edited);
    tree_view_->resizeColumnToContents(UnitTree::kUnits);
    fitTree();
  } catch (const Error&) {
    tree.setPlan(nullptr);  // the What if panel shows the error
  }
}

void Panels::selectionChanged() {
  const QScopedValueRollback guard(updating_, true);
  const RankData* rank = context_.rank();
  const Selection& chosen = context_.current();
  const analysis::IntervalSet window = context_.window();
  if (rank != nullptr && chosen.rank != shown_rank_) {
    shown_rank_ = chosen.rank;
    tree.show(context_.run(), shown_rank_, session_.recovered(context_.run()));
    planChanged();
    tree_view_->expandToDepth(1);
  }
  if (rank != nullptr && static_cast<int64_t>(rank->trace.events.size()) <= kWindowedUnits) {
    tree.setWindow(window);
  }
  exposed.show(context_.run(), chosen.rank, window);
  exposed_note_->setText(
      rank == nullptr ? QString()
      : exposed.rowCount() == 0
          ? tr("No communication is exposed: all of it overlapped with compute, or there was none.")
          : tr("%1, %2 exposed in total")
                .arg(countText(exposed.rowCount(), tr("collective"), tr("collectives")),
                     durationText(exposed.total())));
  order.show(context_.run(), chosen.rank, chosen.step.value_or(0));
  order_note_->setText(order.verdict());
  setInstant(instant_);
  ownership_note_->setVisible(!ownership.why().isEmpty());
  ownership_note_->setText(ownership.why());
  updateEvents();
  revealUnit();
}

void Panels::updateEvents() {
  if (context_.rank() == nullptr || !event_dock_->isVisible() ||
      event_view_->visibleRegion().isEmpty()) {
    events.show(nullptr, 0, std::nullopt, {});
    return;
  }
  const auto range = context_.current().range;
  std::optional<analysis::Interval> own;
  if (range) {
    own = context_.run()->own(*context_.rank(), *range);
  }
  events.show(context_.run(), context_.current().rank, own, search_->text());
  const auto all = static_cast<qlonglong>(context_.rank()->trace.events.size());
  event_note_->setText(tr("%1 of %2 of rank %3%4")
                           .arg(QLocale().toString(events.rowCount()))
                           .arg(countText(all, tr("event"), tr("events")))
                           .arg(context_.rank()->figures.rank)
                           .arg(range ? tr(", within the dragged range") : QString()));
}

void Panels::revealUnit() {
  const Selection& chosen = context_.current();
  const QModelIndex index = chosen.unit ? tree.indexOf(*chosen.unit) : QModelIndex();
  if (index.isValid()) {
    tree_view_->setCurrentIndex(index);
    tree_view_->scrollTo(index);
  } else if (chosen.unit == std::nullopt && tree_view_->currentIndex().isValid() &&
             tree.unitAt(tree_view_->currentIndex())) {
    tree_view_->setCurrentIndex({});
  }
  // Tables highlight the selected item, or no row if it is not in the table.
  const auto show = [](QTableView& view, const QModelIndex& row) {
    if (!row.isValid()) {
      view.selectionModel()->clearSelection();
    } else if (!view.selectionModel()->isRowSelected(row.row())) {
      view.setCurrentIndex(row);
      view.scrollTo(row);
    }
  };
  const bool collective = chosen.item && chosen.item->source != Lane::Source::kEvents &&
                          chosen.item->source != Lane::Source::kSections;
  const bool event = chosen.item && chosen.item->source == Lane::Source::kEvents;
  show(*exposed_view_, collective ? exposed.indexOfCollective(chosen.item->ref) : QModelIndex());
  show(*event_view_, event ? events.indexOf(chosen.item->ref) : QModelIndex());
  const QModelIndexList ordered = order_view_->selectionModel()->selectedRows();
  if (!ordered.isEmpty()) {
    const auto item = order.itemAt(ordered.front());
    if (item ? item != chosen.item : order.unitAt(ordered.front()) != chosen.unit) {
      show(*order_view_, {});
    }
  }
}

}  // namespace shardlens::gui
