#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <QCheckBox>
#include <QComboBox>
#include <QHBoxLayout>
#include <QHeaderView>
#include <QTableView>
#include <QToolButton>

#include "gui/model/base/in_window.h"
#include "gui/model/base/time_axis.h"
#include "gui/model/tables/table_text.h"
#include "gui/model/what_if/fit_text.h"
#include "gui/view/panel_parts/space_plot.h"
#include "gui/view/panels/panel.h"
#include "gui/view/panels/panel_table.h"
#include "gui/view/panels/panel_views.h"
#include "gui/view/widgets/elided_label.h"

namespace shardlens::gui {
namespace {

constexpr int kFirstKnob = 3;  // columns before them: step, interval, peak

std::vector<ColumnTable::Column> point_columns(const PlanProposals& proposals) {
  const auto of = [&proposals](size_t r) -> const SpacePoint& {
    return proposals.space().points[r];
  };
  std::vector<ColumnTable::Column> out{
      {QObject::tr("Step"),
       [of](size_t r) { return of(r).fits ? durationText(of(r).step()) : QStringLiteral("–"); },
       [of](size_t r) { return of(r).fits ? static_cast<double>(of(r).step()) : 1e300; }, true,
       QObject::tr("Predicted; none for a plan that does not fit")},
      {QObject::tr("90 % interval"),
       [of](size_t r) {
         const auto share = [&](Nanoseconds end) {
           return signedPercent(static_cast<double>(end) / static_cast<double>(of(r).step()) - 1);
         };
         return of(r).interval ? QObject::tr("%1 to %2 %")
                                     .arg(share(of(r).interval->low), share(of(r).interval->high))
                               : QStringLiteral("–");
       },
       nullptr, true, QObject::tr("Of the step; estimated for plans of the front")},
      {QObject::tr("Peak"),
       [of, &proposals](size_t r) {
         return of(r).fits ? bytesText(of(r).peak)
                           : needText(of(r).peak, of(r).reserved, proposals.space().available);
       },
       [of](size_t r) { return static_cast<double>(of(r).peak); }, true,
       QObject::tr("Allocated on the rank that needs the most"), ColumnTable::Scale::kNone, true}};
  for (const SpaceKnob& knob : space_knobs()) {
    std::function<double(size_t)> key;
    if (knob.key) {
      key = [of, &knob](size_t r) { return knob.key(of(r).candidate); };
    }
    out.push_back({knob.title,
                   [of, &knob, &proposals](size_t r) {
                     return knob.value(of(r).candidate, proposals.space().base.world_size);
                   },
                   key, false, knob.help});
  }
  return out;
}

// All plans that a search predicted: a plot, and a table of what they differ in.
class PlanSpacePanel final : public Panel {
 public:
  explicit PlanSpacePanel(const PanelContext& context);
  void setTheme(const Theme& theme) override { plot_->setTheme(theme); }

 protected:
  void fitColumns() override;
  void widthChanged() override { share_width(*table_, elided_); }

 private:
  QWidget* makeBar();
  void showSpace();
  void showRows();  // the brushed points, else all
  void showVersions();
  void showNote();
  void take(size_t point) { proposals().takePoint(point); }
  [[nodiscard]] std::optional<size_t> selected() const;

  ColumnTable model_;
  QTableView* table_ = make_table(model_, tr("Plans of the search"));
  SpacePlot* plot_ = new SpacePlot;
  QComboBox* knob_ = new QComboBox;
  QCheckBox* meshes_ = new QCheckBox(tr("every mesh"));
  QToolButton* version_ = new QToolButton;
  ElidedLabel* note_ = new ElidedLabel;  // a second line would take the plot's room
  std::vector<int> elided_;
  size_t shown_ = 0;          // points
  const void* of_ = nullptr;  // what they were of
  bool was_busy_ = false;
};

PlanSpacePanel::PlanSpacePanel(const PanelContext& context)
    : Panel(context), model_(point_columns(proposals())) {
  model_.setEmphasis([this](size_t r) { return proposals().space().points[r].front; });
  model_.setErrors([this](size_t r) { return !proposals().space().points[r].fits; });
  model_.setTooltip([this](size_t r) {
    return tr("%1\nA double click makes it a version in What if.")
        .arg(table_text(proposals().space().title_of(r).toStdString()));
  });
  setView(*table_);
  table_->setSelectionMode(QAbstractItemView::SingleSelection);
  connect(table_, &QTableView::activated, this,
          [this](const QModelIndex& index) { take(model_.rowAt(index)); });
  connect(table_->selectionModel(), &QItemSelectionModel::selectionChanged, this, [this] {
    plot_->setChosen(selected());
    version_->setEnabled(selected().has_value());
  });
  connect(plot_, &SpacePlot::pointChosen, this,
          [this](size_t point) { show_row(*table_, model_.indexOf(point)); });
  connect(plot_, &SpacePlot::pointOpened, this, &PlanSpacePanel::take);
  connect(plot_, &SpacePlot::brushChanged, this, &PlanSpacePanel::showRows);
  auto* both = new QWidget;
  auto* row = new QHBoxLayout(both);
  row->setContentsMargins(0, 0, 0, 0);
  row->setSpacing(0);
  row->addWidget(plot_, 1);
  row->addWidget(table_, 1);
  stack({makeBar(), both});
  static_cast<QBoxLayout*>(layout())->setStretchFactor(both, 1);
  watchWidth();
  connect(&proposals(), &PlanProposals::changed, this, &PlanSpacePanel::showSpace);
  connect(&session(), &PlanSession::simulatedOne, this, &PlanSpacePanel::showVersions);
  connect(&session(), &PlanSession::stateChanged, this, &PlanSpacePanel::showNote);
  showSpace();
}

QWidget* PlanSpacePanel::makeBar() {
  for (const SpaceKnob& knob : space_knobs()) {
    knob_->addItem(knob.title);
    knob_->setItemData(knob_->count() - 1, knob.help, Qt::ToolTipRole);
  }
  knob_->setAccessibleName(tr("Colour by"));
  knob_->setToolTip(tr("What the colours of the points are"));
  knob_->setSizeAdjustPolicy(QComboBox::AdjustToMinimumContentsLengthWithIcon);
  knob_->setMinimumContentsLength(8);  // a window of 1000 pixels has the panel beside the modules
  connect(knob_, &QComboBox::currentIndexChanged, this,
          [this](int knob) { plot_->setKnob(static_cast<size_t>(knob)); });
  meshes_->setToolTip(tr("The search tries tensor, context and expert parallelism too"));
  connect(meshes_, &QCheckBox::toggled, this,
          [this](bool every) { proposals().setEveryMesh(every); });
  version_->setText(tr("Make it a version"));
  version_->setToolTip(tr("Edits the plan of What if to the selected one"));
  version_->setEnabled(false);
  connect(version_, &QToolButton::clicked, this, [this] {
    if (const auto point = selected()) {
      take(*point);
    }
  });
  auto* bar = new QWidget;
  auto* row = new QHBoxLayout(bar);
  row->setContentsMargins(8, 2, 8, 2);
  row->addWidget(commandButton(tr("Find best"), "plan.searchSpace"));
  row->addWidget(commandButton(tr("Stop"), "plan.stop"));
  row->addWidget(meshes_);
  row->addWidget(knob_);
  row->addWidget(version_);
  row->addWidget(note_, 1);
  return bar;
}

std::optional<size_t> PlanSpacePanel::selected() const {
  const QModelIndexList rows = table_->selectionModel()->selectedRows();
  return rows.isEmpty() ? std::nullopt : std::optional(model_.rowAt(rows.front()));
}

// Only knobs in which the shown plans differ have a column.
void PlanSpacePanel::fitColumns() {
  const std::vector<size_t> differing = differing_knobs(proposals().space(), plot_->brushed());
  for (int knob = 0; knob < static_cast<int>(space_knobs().size()); ++knob) {
    table_->setColumnHidden(
        kFirstKnob + knob,
        std::ranges::find(differing, static_cast<size_t>(knob)) == differing.end());
  }
  elided_ = fit_columns(*table_);
}

void PlanSpacePanel::showSpace() {
  const PlanSpace& space = proposals().space();
  const bool busy = proposals().isBusy();
  meshes_->setEnabled(!busy && proposals().canTryEveryMesh());
  showNote();
  const bool ended = std::exchange(was_busy_, busy) && !busy;
  if (ended || space.points.size() != shown_ || of_ != space.points.data()) {
    shown_ = space.points.size();
    of_ = space.points.data();
    plot_->show(space);
    const std::vector<size_t> differing = differing_knobs(space, {});
    if (!differing.empty() &&
        std::ranges::find(differing, static_cast<size_t>(knob_->currentIndex())) ==
            differing.end()) {
      knob_->setCurrentIndex(static_cast<int>(differing.front()));
    }
    knob_->setEnabled(!space.points.empty());
    showVersions();
    showRows();
  }
}

// The front first, then by step.
void PlanSpacePanel::showRows() {
  const std::vector<SpacePoint>& points = proposals().space().points;
  std::vector<uint32_t> rows;
  if (plot_->brushed().empty()) {
    rows.resize(points.size());
    std::iota(rows.begin(), rows.end(), 0U);
  } else {
    rows.assign(plot_->brushed().begin(), plot_->brushed().end());
  }
  std::ranges::stable_sort(rows, {}, [&points](uint32_t r) {
    const SpacePoint& point = points[r];
    return std::tuple(!point.front, !point.fits, point.step());
  });
  model_.reset(std::move(rows));
  plot_->setChosen(selected());
  version_->setEnabled(selected().has_value());
  fitColumns();
  widthChanged();
  showNote();
}

void PlanSpacePanel::showVersions() {
  std::vector<SpacePlot::Version> out;
  const std::vector<PlanVersion>& versions = session().versions();
  for (size_t i = 0; i < versions.size(); ++i) {
    const PlanState& base = proposals().space().base;
    const PlanState& state = versions[i].state;
    // On another machine, or with other samples, a step is no answer to the same question.
    if (versions[i].hasStep() && state.machine == base.machine &&
        state.world_size == base.world_size && state.step.samples() == base.step.samples() &&
        state.step.seq == base.step.seq) {
      out.push_back({QStringLiteral("v%1").arg(i), versions[i].step(), versions[i].peak(),
                     &versions[i] == session().current()});
    }
  }
  plot_->showVersions(std::move(out));
}

void PlanSpacePanel::showNote() {
  const PlanSpace& space = proposals().space();
  const size_t brushed = plot_->brushed().size();
  QString text;
  if (!session().isOpen()) {
    text = session().isObserving() ? tr("The machine is calibrated from the run …")
                                   : in_window(session().why());
  } else if (brushed > 0) {
    QStringList same;
    const std::vector<size_t> differing = differing_knobs(space, plot_->brushed());
    for (size_t k = 0; k < space_knobs().size(); ++k) {
      if (std::ranges::find(differing, k) == differing.end()) {
        same.append(QStringLiteral("%1 %2").arg(
            space_knobs()[k].title.toLower(),
            space_knobs()[k].value(space.points[plot_->brushed().front()].candidate,
                                   space.base.world_size)));
      }
    }
    text = tr("%1 in the rectangle. The same in all: %2.")
               .arg(countText(static_cast<qlonglong>(brushed), tr("plan"), tr("plans")),
                    same.isEmpty() ? tr("nothing") : same.join(QStringLiteral(", ")));
  } else if (!space.points.empty() && !proposals().isBusy()) {
    text =
        tr("%1 predicted. Drag a rectangle to see what its plans differ in.")
            .arg(countText(static_cast<qlonglong>(space.points.size()), tr("plan"), tr("plans")));
  } else {
    text = in_window(proposals().note());
  }
  note_->setText(text);
  note_->setToolTip(text);
}

}  // namespace

PanelPointer make_plan_space_panel(const PanelContext& context) {
  return std::make_unique<PlanSpacePanel>(context);
}

}  // namespace shardlens::gui
