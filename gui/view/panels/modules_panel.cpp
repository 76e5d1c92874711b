#include <algorithm>

#include <QHeaderView>
#include <QLabel>
#include <QTreeView>

#include "core/base/error.h"
#include "core/plan/resolve.h"
#include "gui/model/details/missing_data.h"
#include "gui/model/tables/unit_tree.h"
#include "gui/view/panel_parts/module_bar.h"
#include "gui/view/panels/panel.h"
#include "gui/view/panels/panel_table.h"
#include "gui/view/panels/panel_views.h"
#include "gui/view/widgets/delegates.h"
#include "gui/view/widgets/row_filter.h"

namespace shardlens::gui {
namespace {

// Computing the figures per unit for a window takes a pass over the trace. On traces with more
// events than this, the figures of all steps are shown for every window.
constexpr int64_t kWindowedUnits = 1'500'000;
constexpr int kIndentation = 14, kNarrowestName = 130, kFittedName = 160, kWidestName = 210;

// The tree of modules with their costs, and buttons that edit the plan of the chosen one.
class ModulesPanel final : public Panel {
 public:
  explicit ModulesPanel(const PanelContext& context);
  void setTheme(const Theme& theme) override { share_->setTheme(theme); }
  void planChanged() override;

 protected:
  void runChanged() override;
  void selectionChanged() override;
  void widthChanged() override;
  void describe(const QModelIndex& index, MenuTarget& target) const override {
    target.unit = tree_.unitAt(index);
  }

 private:
  void showTree();
  void revealUnit();
  UnitTree tree_;
  QTreeView* view_ = new QTreeView;
  QLabel* note_ = make_note();  // hidden if the trace has units
  ModuleBar* bar_;
  ShareDelegate* share_;
  size_t shown_rank_ = 0;
};

ModulesPanel::ModulesPanel(const PanelContext& context)
    : Panel(context),
      bar_(new ModuleBar(session())),
      share_(new ShareDelegate(UnitTree::kShareRole, this)) {
  view_->setModel(&tree_);
  view_->setAccessibleName(tr("Modules and units"));
  view_->setUniformRowHeights(true);
  view_->setIndentation(kIndentation);
  view_->setAlternatingRowColors(true);
  view_->setAllColumnsShowFocus(true);
  view_->setItemDelegate(new CellDelegate(view_));
  view_->setItemDelegateForColumn(UnitTree::kExposed, share_);
  view_->setItemDelegateForColumn(UnitTree::kUnits,
                                  new EmphasisDelegate(view_, UnitTree::kChangedRole));
  view_->header()->setStretchLastSection(false);
  view_->header()->setSectionsMovable(true);
  view_->header()->moveSection(UnitTree::kExposed, 1);  // next to the name, as it is used most
  view_->setExpandsOnDoubleClick(false);                // goes to a unit; unfolds other rows
  setView(*view_);
  connect(view_->selectionModel(), &QItemSelectionModel::currentChanged, this,
          [this](const QModelIndex& index) { bar_->setModules(tree_.modulesAt(index)); });
  onChosen([this](const QModelIndex& index) { selection().selectUnit(tree_.unitAt(index)); });
  connect(view_, &QTreeView::doubleClicked, this, [this](const QModelIndex& index) {
    const QModelIndex row = index.siblingAtColumn(0);
    if (!row.data(UnitTree::kIsUnitRole).toBool()) {
      view_->setExpanded(row, !view_->isExpanded(row));
    }
  });
  stack({new RowFilter(*view_, tr("modules")), note_, view_, bar_});
  watchWidth();
}

void ModulesPanel::showTree() {
  shown_rank_ = selection().current().rank;
  tree_.show(selection().run(), shown_rank_, session().recovered(selection().run()));
  note_->setText(selection().rank() == nullptr ? QString() : why_no_units(*selection().rank()));
  note_->setVisible(!note_->text().isEmpty());
}

void ModulesPanel::runChanged() {
  showTree();
  view_->expandToDepth(1);
  for (int column = 1; column < UnitTree::kColumnCount; ++column) {
    view_->resizeColumnToContents(column);
  }
  widthChanged();
}

void ModulesPanel::selectionChanged() {
  const RankData* rank = selection().rank();
  if (rank != nullptr && selection().current().rank != shown_rank_) {
    showTree();
    planChanged();
    view_->expandToDepth(1);
  }
  if (rank != nullptr && static_cast<int64_t>(rank->trace.events.size()) <= kWindowedUnits) {
    tree_.setWindow(selection().window());
  }
  revealUnit();
}

void ModulesPanel::revealUnit() {
  const std::optional<std::string>& unit = selection().current().unit;
  const QModelIndexList rows = view_->selectionModel()->selectedRows();
  if (unit && !rows.isEmpty() && tree_.unitAt(rows.front()) == unit) {
    return;  // a module within the unit was chosen: its buttons are for that module
  }
  const QModelIndex index = unit ? tree_.indexOf(*unit) : QModelIndex();
  if (index.isValid()) {
    view_->setCurrentIndex(index);
    view_->scrollTo(index);
  } else if (unit == std::nullopt && (tree_.unitAt(view_->currentIndex()) ||
                                      (!rows.isEmpty() && tree_.unitAt(rows.front())))) {
    view_->setCurrentIndex({});  // the selected row need not be the current one
    view_->clearSelection();
  }
}

void ModulesPanel::planChanged() {
  if (!session().isOpen()) {
    tree_.setPlan(nullptr);
    return;
  }
  try {
    const plan::ResolvedPlan edited =
        plan::resolve(session().state().plan, session().tree(), session().state().world_size);
    tree_.setPlan(&edited);
    const int before = view_->columnWidth(UnitTree::kUnits);
    view_->resizeColumnToContents(UnitTree::kUnits);
    if (view_->columnWidth(UnitTree::kUnits) > before) {
      widthChanged();
    } else {  // it only becomes wider, so that an edit moves no column
      view_->setColumnWidth(UnitTree::kUnits, before);
    }
  } catch (const Error&) {
    tree_.setPlan(nullptr);  // the What if panel shows the error
  }
}

// Names take the width that the figures leave, if that is enough for most of their text. Otherwise
// the last figures are scrolled to, and names are only narrowed (within limits) so that the exposed
// time and the plan's text are visible without scrolling. Which of the two does not depend on the
// vertical scroll bar: otherwise it could make the horizontal one necessary, which hides a row and
// so makes the vertical one necessary, and Qt would show and hide them without end.
void ModulesPanel::widthChanged() {
  const int width = view_->viewport()->width();
  int others = 0;
  for (int column = 1; column < UnitTree::kColumnCount; ++column) {
    others += view_->columnWidth(column);
  }
  const int first = view_->columnWidth(UnitTree::kExposed) + view_->columnWidth(UnitTree::kUnits);
  const int wanted = std::min(kFittedName, view()->sizeHintForColumn(UnitTree::kName));
  const int most = view_->maximumViewportSize().width();
  view_->setColumnWidth(UnitTree::kName,
                        most - others >= std::max(kNarrowestName, wanted)
                            ? width - others
                            : std::clamp(width - first, kNarrowestName, kWidestName));
}

}  // namespace

PanelPointer make_modules_panel(const PanelContext& context) {
  return std::make_unique<ModulesPanel>(context);
}

}  // namespace shardlens::gui
