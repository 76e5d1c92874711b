#include "gui/view/panels/compare_panel.h"

#include <cmath>
#include <filesystem>

#include <QComboBox>
#include <QHBoxLayout>
#include <QHeaderView>
#include <QLabel>
#include <QPushButton>
#include <QScrollArea>
#include <QSignalBlocker>
#include <QTextDocument>
#include <QTreeView>
#include <QVBoxLayout>

#include "gui/model/base/shown_text.h"
#include "gui/model/base/time_axis.h"
#include "gui/view/panels/panel_table.h"
#include "gui/view/widgets/delegates.h"
#include "gui/view/widgets/text_lines.h"

namespace shardlens::gui {
namespace {

constexpr size_t kShownDifferences = 40;

QString time_text(double ns) {
  return durationText(std::llround(ns));
}

QString name_of(const RunPointer& run) {
  const std::filesystem::path path(run->run.source);
  return QString::fromStdString(
      (path.has_filename() ? path : path.parent_path()).filename().string());
}

// All differences other than times, as text.
QString story_of(const check::CheckResult& result) {
  QString html;
  const auto list = [&html](const QString& title, const QStringList& lines) {
    if (!lines.isEmpty()) {
      html += QStringLiteral("<b>%1</b><ul style='margin: 2px 0 6px -22px'>").arg(title);
      for (const QString& line : lines) {
        html += QStringLiteral("<li>%1</li>").arg(with_breaks(line).toHtmlEscaped());
      }
      html += QStringLiteral("</ul>");
    }
  };
  QStringList causes, structure, notes;
  for (const std::string& cause : result.causes) {
    causes.append(shown_text(cause));
  }
  for (const check::StructuralDifference& d : result.structural) {
    if (structure.size() == static_cast<qsizetype>(kShownDifferences)) {
      structure.append(QObject::tr("and %1 more: `shardlens compare` lists all of them")
                           .arg(result.structural.size() - kShownDifferences));
      break;
    }
    structure.append(QStringLiteral("%1, %2: %3 → %4")
                         .arg(shown_text(check::unit_name(d.unit)), shown_text(d.kind),
                              shown_text(d.baseline), shown_text(d.candidate)));
  }
  for (const std::string& note : result.notes) {
    notes.append(shown_text(note));
  }
  list(QObject::tr("What changed"), causes);
  list(QObject::tr("Structure"), structure);
  list(QObject::tr("Notes"), notes);
  return html.isEmpty() ? QObject::tr("The two runs do the same work in the same order.") : html;
}

}  // namespace

ComparePanel::ComparePanel(const PanelContext& context)
    : Panel(context),
      open_(new QPushButton(tr("Compare with another run …"))),
      headline_(new QLabel),
      by_(new QComboBox),
      view_(new QTreeView),
      plot_(new WaterfallPlot),
      story_(new QLabel),
      share_(new ShareDelegate(ComparisonTree::kShareRole, this)) {
  headline_->setWordWrap(true);
  headline_->setTextInteractionFlags(Qt::TextSelectableByMouse);
  headline_->setAccessibleName(tr("Comparison"));
  by_->setAccessibleName(tr("Group by"));
  by_->addItems({tr("the step's parts"), tr("units"), tr("phases"), tr("kinds")});
  auto* top = new QHBoxLayout;
  top->setContentsMargins(8, 4, 8, 4);
  top->addWidget(headline_, 1);
  top->addWidget(open_);
  top->addWidget(by_);
  makeBody();
  auto* column = new QVBoxLayout(this);
  column->setContentsMargins(0, 0, 0, 0);
  column->setSpacing(0);
  column->addLayout(top);
  column->addWidget(body_, 1);
  column->addStretch(0);
  connect(open_, &QPushButton::clicked, this,
          [this] { actions().trigger(QStringLiteral("compare.open")); });
  connect(by_, &QComboBox::currentIndexChanged, this, &ComparePanel::showComparison);
  connect(&compare(), &CompareSession::changed, this, &ComparePanel::showComparison);
  onChosen([this](const QModelIndex& index) { selection().selectUnit(tree.unitAt(index)); });
  showComparison();
}

// The table of changes, and where the change comes from as plot and text.
void ComparePanel::makeBody() {
  view_->setModel(&tree);
  view_->setAccessibleName(tr("Changes"));
  view_->setUniformRowHeights(true);
  view_->setAlternatingRowColors(true);
  view_->setAllColumnsShowFocus(true);
  view_->header()->setStretchLastSection(false);
  view_->setItemDelegate(new CellDelegate(view_));
  view_->setItemDelegateForColumn(ComparisonTree::kDelta, share_);
  setView(*view_);
  story_->setAccessibleName(tr("What changed, as text"));
  story_->setTextFormat(Qt::RichText);
  story_->setWordWrap(true);
  story_->setTextInteractionFlags(Qt::TextSelectableByMouse);
  story_->setContentsMargins(8, 4, 8, 8);
  auto* cause = new QWidget;
  auto* side = new QVBoxLayout(cause);
  side->setContentsMargins(0, 0, 0, 0);
  side->setSpacing(0);
  side->addWidget(plot_);
  side->addWidget(story_);
  side->addStretch(1);
  auto* scroll = new QScrollArea;
  scroll->setWidget(cause);
  scroll->setWidgetResizable(true);
  scroll->setFrameShape(QFrame::NoFrame);
  scroll->setAccessibleName(tr("Where the change comes from"));
  body_ = new QWidget;
  auto* body = new QHBoxLayout(body_);
  body->setContentsMargins(0, 0, 0, 0);
  body->setSpacing(0);
  body->addWidget(view_, 1);
  body->addWidget(scroll, 1);
}

void ComparePanel::selectionChanged() {
  const QModelIndexList rows = view_->selectionModel()->selectedRows();
  if (!rows.isEmpty() && tree.unitAt(rows.front()) != selection().current().unit) {
    view_->selectionModel()->clearSelection();
  }
}

void ComparePanel::setTheme(const Theme& theme) {
  plot_->setTheme(theme);
  share_->setTheme(theme);
}

void ComparePanel::showComparison() {
  const std::shared_ptr<const check::Comparison> comparison = compare().comparison();
  tree.show(comparison, static_cast<ComparisonTree::By>(by_->currentIndex()));
  plot_->show(comparison);
  open_->setVisible(comparison == nullptr);
  by_->setVisible(comparison != nullptr);
  body_->setVisible(comparison != nullptr);
  if (comparison == nullptr) {
    headline_->setText(
        tr("The open run is A. Open a second run, B, to see what changed, part by part."));
    story_->clear();
    headline_->setToolTip({});
    return;
  }
  fitTree();
  headline_->setText(with_breaks(headlineOf(comparison->result)).toHtmlEscaped());
  headline_->setToolTip(Qt::convertFromPlainText(shown_text(compare().a()->run.source) + u'\n' +
                                                 shown_text(compare().b()->run.source)));
  story_->setText(story_of(comparison->result));
}

void ComparePanel::fitTree() {
  const QSignalBlocker quiet(view_->selectionModel());
  for (int c = 0; c < ComparisonTree::kColumnCount; ++c) {
    view_->resizeColumnToContents(c);
  }
  const bool of_step = tree.by() == ComparisonTree::By::kStep;
  view_->header()->setSectionResizeMode(ComparisonTree::kWhat,
                                        of_step ? QHeaderView::Stretch : QHeaderView::Interactive);
  view_->setColumnWidth(ComparisonTree::kWhat, 230);
  for (const int c :
       {ComparisonTree::kExposedA, ComparisonTree::kExposedB, ComparisonTree::kExposedDelta}) {
    view_->setColumnHidden(c, of_step);
  }
}

QString ComparePanel::headlineOf(const check::CheckResult& result) const {
  const auto named = [](const RunPointer& run, size_t count) {
    return count == 1 ? name_of(run) : tr("%1 and %2 more").arg(name_of(run)).arg(count - 1);
  };
  QString text = tr("A %1,  B %2")
                     .arg(named(compare().a(), compare().countOfA()),
                          named(compare().b(), compare().countOfB()));
  if (const check::MetricResult* step = metric_of(result, check::Metric::kStepTime)) {
    text += tr(":  step %1 → %2 (means of the middle half of the steps),  %3")
                .arg(time_text(step->effect.baseline), time_text(step->effect.candidate),
                     changeText(step->effect.candidate, step->effect.baseline)
                         .replace(u' ', QChar::Nbsp));  // in one line
    text += !step->effect.measurable() ? QString()
            : step->moved()            ? tr(" (more than noise)")
                                       : tr(" (no more than noise)");
  }
  return text;
}

PanelPointer make_compare_panel(const PanelContext& context) {
  return std::make_unique<ComparePanel>(context);
}

}  // namespace shardlens::gui
