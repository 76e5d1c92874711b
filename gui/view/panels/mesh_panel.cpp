#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <QBoxLayout>
#include <QComboBox>
#include <QLabel>
#include <QSignalBlocker>
#include <QTableView>

#include "core/plan/ownership.h"
#include "core/plan/parameter_groups.h"
#include "gui/model/tables/mesh_table.h"
#include "gui/view/panel_parts/mesh_bar.h"
#include "gui/view/panel_parts/mesh_map.h"
#include "gui/view/panels/panel.h"
#include "gui/view/panels/panel_table.h"
#include "gui/view/panels/panel_views.h"
#include "gui/view/widgets/text_lines.h"

namespace shardlens::gui {
namespace {

// The ranks of the plan as they are arranged: a drawing, and a table of what each holds.
class MeshPanel final : public Panel {
 public:
  explicit MeshPanel(const PanelContext& context) : Panel(context) {
    setView(*view_);
    onChosen(
        [this](const QModelIndex& index) { choose(static_cast<int64_t>(table_.rowAt(index))); });
    auto* both = new QWidget;
    auto* row = new QHBoxLayout(both);
    row->setContentsMargins(0, 0, 0, 0);
    row->setSpacing(0);
    row->addWidget(map_, 3);
    row->addWidget(view_, 2);
    auto* top = new QWidget;
    auto* line = new QHBoxLayout(top);
    line->setContentsMargins(0, 0, 6, 0);
    line->setSpacing(0);
    line->addWidget(bar_, 1);
    line->addWidget(shown_);
    stack({top, note_, both});
    static_cast<QBoxLayout*>(layout())->setStretchFactor(both, 1);
    shown_->setAccessibleName(tr("What is drawn of each rank"));
    shown_->setToolTip(
        tr("What each rank holds, or which part of a parameter it stores; those of the chosen unit "
           "are listed"));
    constexpr int kNarrowest = 110;  // pixels, where the panel has no room for the whole text
    shown_->setSizeAdjustPolicy(QComboBox::AdjustToMinimumContentsLengthWithIcon);
    shown_->setMinimumContentsLength(16);
    shown_->setMinimumWidth(kNarrowest);
    connect(shown_, &QComboBox::activated, this, [this](int index) {
      parameter_ = index > 0 ? shown_->itemText(index).toStdString() : std::string();
      fill();
    });
    watchWidth();
    connect(map_, &MeshMap::rankChosen, this, &MeshPanel::choose);
    connect(map_, &MeshMap::rankOpened, this, &Panel::goRequested);
    connect(bar_, &MeshBar::axisLit, map_, &MeshMap::lightAxis);
    connect(&session(), &PlanSession::simulatedOne, this, &MeshPanel::refresh);
  }
  void setTheme(const Theme& theme) override {
    map_->setTheme(theme);
    bar_->setTheme(theme);
  }
  void planChanged() override { refresh(); }
  void becameVisible() override { fill(); }

 protected:
  void runChanged() override { refresh(); }
  void selectionChanged() override { refresh(); }
  void fitColumns() override { elided_ = fit_columns(*view_); }
  void widthChanged() override {
    // A place that is cut says little.
    constexpr int kPlace = 1, kWidestPlace = 240;  // a column; pixels
    share_width(*view_, elided_);
    view_->resizeColumnToContents(kPlace);
    view_->setColumnWidth(kPlace, std::min(kWidestPlace, view_->columnWidth(kPlace)));
  }

 private:
  // The rank is shown in all panels if the run has it.
  void choose(int64_t rank) {
    chosen_ = rank;
    const auto index = static_cast<size_t>(rank);
    if (index < table_.picture().ranks.size() && table_.picture().ranks[index].in_run) {
      selection().selectRank(*table_.picture().ranks[index].in_run);
    }
    map_->setChosen(chosen_);
    show_row(*view_, table_.indexOf(index));
  }
  // The drawing costs a resolved plan, so it is only made while it can be seen.
  void refresh() {
    if (isSeen()) {
      fill();
    }
  }
  void fill() {
    const bool empty = table_.rowCount() == 0;
    table_.show(mesh_picture(selection(), session()));
    const MeshPicture& picture = table_.picture();
    map_->show(picture);
    listParameters(picture);
    map_->showBoxes(parameter_.empty() ? RankBoxes() : boxes_by_rank(*picture.plan, parameter_));
    // Another rank was selected elsewhere, unless the chosen one is not in the run.
    const auto ranks = std::ssize(picture.ranks);
    const RankData* rank = selection().rank();
    if (!chosen_ || *chosen_ >= ranks || picture.ranks[static_cast<size_t>(*chosen_)].in_run) {
      chosen_ = rank != nullptr && rank->figures.rank < ranks
                    ? std::optional<int64_t>(rank->figures.rank)
                    : std::nullopt;
    }
    map_->setChosen(chosen_);
    show_row(*view_, chosen_ ? table_.indexOf(static_cast<size_t>(*chosen_)) : QModelIndex());
    note_->setText(text(picture));
    if (empty && table_.rowCount() > 0) {
      fitColumns();
      widthChanged();
    }
  }
  // The parameters of the chosen unit, else of the model; the drawn one stays drawn.
  void listParameters(const MeshPicture& picture) {
    const QSignalBlocker quiet(shown_);
    shown_->clear();
    shown_->addItem(tr("what each rank holds"));
    const std::optional<std::string>& unit = selection().current().unit;
    bool known = false;
    for (const plan::ParameterPlace& place : picture.plan == nullptr
                                                 ? std::vector<plan::ParameterPlace>()
                                                 : plan::parameter_places(*picture.plan)) {
      const std::string& fqn = picture.plan->tree.parameters[place.parameter].fqn;
      const bool of_unit =
          unit && place.unit != kNoUnit &&
          plan::unit_of_group(picture.plan->units[place.unit].fqn) == plan::unit_of_group(*unit);
      known = known || fqn == parameter_;
      if (!unit || of_unit || fqn == parameter_) {
        shown_->addItem(QString::fromStdString(fqn));
      }
    }
    parameter_ = known ? parameter_ : std::string();
    shown_->setCurrentIndex(
        parameter_.empty() ? 0 : shown_->findText(QString::fromStdString(parameter_)));
    shown_->setEnabled(shown_->count() > 1);
  }
  [[nodiscard]] QString text(const MeshPicture& picture) const {
    if (!picture.why.isEmpty()) {
      return with_breaks(picture.why);
    }
    if (!parameter_.empty()) {
      return tr("The part of %1 that each rank stores between steps; of a matrix the rows from top "
                "to bottom.")
          .arg(with_breaks(QString::fromStdString(parameter_)));
    }
    const QString of = picture.title.isEmpty() ? tr("The plan") : picture.title;
    const QString held =
        !picture.peak ? tr("%1: the parameters of each rank. The plan is not simulated.").arg(of)
        : picture.measured
            ? tr("%1: what each rank holds at its simulated peak; how long it waited, measured.")
                  .arg(of)
            : tr("%1, simulated: what each rank holds at its peak, and how long it waits.").arg(of);
    return held + u' ' + links(picture);
  }
  // "2 × 8 GPUs: NVLink 344 GB/s, network 50 GB/s a GPU."
  [[nodiscard]] static QString links(const MeshPicture& picture) {
    if (!picture.spec) {
      return tr("Nodes and links are not known from the run.");
    }
    const sim::FabricSpec& fabric = picture.spec->fabric;
    const QString within = tr("%1 × %2 GPUs: %3 %4 GB/s")
                               .arg(picture.nodes())
                               .arg(picture.gpus)
                               .arg(fabric.link == sim::Link::kNvlink ? tr("NVLink") : tr("PCIe"))
                               .arg(fabric.ring_gbps, 0, 'f', 0);
    return picture.nodes() > 1
               ? tr("%1, network %2 GB/s a GPU.").arg(within).arg(fabric.network_gbps, 0, 'f', 0)
               : within + u'.';
  }

  MeshTable table_;
  QTableView* view_ = make_table(table_, tr("Ranks of the mesh"));
  QLabel* note_ = make_note();
  MeshBar* bar_ = new MeshBar(session());
  MeshMap* map_ = new MeshMap;
  QComboBox* shown_ = new QComboBox;
  std::string parameter_;  // whose boxes are drawn; "": none
  std::optional<int64_t> chosen_;
  std::vector<int> elided_;
};

}  // namespace

PanelPointer make_mesh_panel(const PanelContext& context) {
  return std::make_unique<MeshPanel>(context);
}

}  // namespace shardlens::gui
