#include "gui/view/panels/compare_panel.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <span>

#include <QComboBox>
#include <QHBoxLayout>
#include <QHeaderView>
#include <QLabel>
#include <QPainter>
#include <QPushButton>
#include <QScrollArea>
#include <QSignalBlocker>
#include <QTreeView>
#include <QVBoxLayout>

#include "gui/model/base/time_axis.h"
#include "gui/view/widgets/delegates.h"
#include "gui/view/widgets/painter_canvas.h"

namespace shardlens::gui {
namespace {

using check::Metric;

constexpr double kLine = 18;  // pixels of a row of the waterfall
constexpr size_t kShownDifferences = 40;

// nullopt: no part of the step time.
std::optional<Ink> ink_of(check::StepPart part) {
  switch (part) {
    case check::StepPart::kCompute:
      return Ink::kCompute;
    case check::StepPart::kExposed:
      return Ink::kExposed;
    case check::StepPart::kCopy:
      return Ink::kCopy;
    case check::StepPart::kIdle:
      return Ink::kIdle;
    case check::StepPart::kNone:
      break;
  }
  return std::nullopt;
}

const check::MetricResult* metric_of(const check::CheckResult& result, Metric metric) {
  const auto found = std::find_if(result.metrics.begin(), result.metrics.end(),
                                  [&](const auto& m) { return m.metric == metric; });
  return found == result.metrics.end() ? nullptr : &*found;
}

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
        html += QStringLiteral("<li>%1</li>").arg(line.toHtmlEscaped());
      }
      html += QStringLiteral("</ul>");
    }
  };
  QStringList causes, structure, notes;
  for (const std::string& cause : result.causes) {
    causes.append(QString::fromStdString(cause));
  }
  for (const check::StructuralDifference& d : result.structural) {
    if (structure.size() == static_cast<qsizetype>(kShownDifferences)) {
      structure.append(QObject::tr("and %1 more: `shardlens compare` lists all of them")
                           .arg(result.structural.size() - kShownDifferences));
      break;
    }
    structure.append(QStringLiteral("%1, %2: %3 → %4")
                         .arg(QString::fromStdString(check::unit_name(d.unit)),
                              QString::fromStdString(d.kind), QString::fromStdString(d.baseline),
                              QString::fromStdString(d.candidate)));
  }
  for (const std::string& note : result.notes) {
    notes.append(QString::fromStdString(note));
  }
  list(QObject::tr("What changed"), causes);
  list(QObject::tr("Structure"), structure);
  list(QObject::tr("Notes"), notes);
  return html.isEmpty() ? QObject::tr("The two runs do the same work in the same order.") : html;
}

}  // namespace

WaterfallPlot::WaterfallPlot(QWidget* parent) : QWidget(parent), theme_(&Theme::light()) {
  setAccessibleName(tr("Change from A's step to B's, part by part"));
}

void WaterfallPlot::setTheme(const Theme& theme) {
  theme_ = &theme;
  update();
}

void WaterfallPlot::show(std::shared_ptr<const check::Comparison> comparison) {
  step_.reset();
  parts_.clear();
  if (comparison != nullptr) {
    const check::MetricResult* step = metric_of(comparison->result, Metric::kStepTime);
    if (step != nullptr) {
      step_ = step->effect;
    }
    const std::span<const check::MetricRow> rows = check::metric_table();
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto ink = ink_of(rows[i].part);
      const check::MetricResult* metric =
          ink ? metric_of(comparison->result, static_cast<Metric>(i)) : nullptr;
      if (metric != nullptr && (metric->effect.baseline != 0 || metric->effect.candidate != 0)) {
        parts_.push_back({tr(rows[i].label.data()), *ink, metric->effect.change});
      }
    }
  }
  QStringList said;
  for (const Part& part : parts_) {
    said.append(QStringLiteral("%1 %2").arg(part.name, deltaText(std::llround(part.delta))));
  }
  setAccessibleDescription(said.join(QStringLiteral("; ")));
  updateGeometry();
  update();
}

QSize WaterfallPlot::minimumSizeHint() const {
  return {270, static_cast<int>(kLine * static_cast<double>(parts_.size() + 2) + 8)};
}

void WaterfallPlot::paintEvent(QPaintEvent* /*event*/) {
  QPainter painter(this);
  painter.setFont(font());
  PainterCanvas canvas(painter, *theme_);
  canvas.fill(rect(), Ink::kBackground, 1);
  if (!step_) {
    return;
  }
  constexpr double kNames = 150, kNumbers = 92;
  double low = std::min(step_->baseline, step_->candidate),
         high = std::max(step_->baseline, step_->candidate), at = step_->baseline;
  for (const Part& part : parts_) {
    at += part.delta;
    low = std::min(low, at);
    high = std::max(high, at);
  }
  const double margin = std::max((high - low) * 0.15, high * 1e-6);
  const double left = kNames, width = std::max(20.0, this->width() - kNames - kNumbers);
  const auto x = [&](double ns) {
    return left + width * std::clamp((ns - low + margin) / (high - low + 2 * margin), 0.0, 1.0);
  };
  double top = 4;
  const auto row = [&](const QString& name, const QString& number, bool bold) {
    canvas.text({8, top, kNames - 12, kLine}, name, bold ? Ink::kText : Ink::kFaintText,
                Qt::AlignLeft | Qt::AlignVCenter, bold);
    canvas.text({left + width, top, kNumbers - 8, kLine}, number, Ink::kText,
                Qt::AlignRight | Qt::AlignVCenter, bold);
    top += kLine;
  };
  canvas.fill({left, top + 4, x(step_->baseline) - left, kLine - 8}, Ink::kHost, 1);
  row(tr("A, a step"), time_text(step_->baseline), true);
  at = step_->baseline;
  for (const Part& part : parts_) {
    const double from = x(at), to = x(at + part.delta);
    const QRectF bar(std::min(from, to), top + 3, std::max(1.0, std::abs(to - from)), kLine - 6);
    canvas.fill(bar, part.ink, part.ink == Ink::kExposed ? 0.45 : 1);
    if (part.ink == Ink::kExposed && bar.width() > 2) {
      canvas.hatch(bar, Ink::kExposed);
    }
    canvas.line({to, top + 3}, {to, top + kLine + 3}, Ink::kGrid, false);
    at += part.delta;
    row(part.name, deltaText(std::llround(part.delta)), false);
  }
  canvas.fill({left, top + 4, x(step_->candidate) - left, kLine - 8}, Ink::kHost, 1);
  row(tr("B, a step"), time_text(step_->candidate), true);
}

ComparePanel::ComparePanel(CompareSession& session, QWidget* parent)
    : QWidget(parent),
      session_(session),
      headline_(new QLabel),
      by_(new QComboBox),
      view_(new QTreeView),
      plot_(new WaterfallPlot),
      story_(new QLabel),
      share_(new ShareDelegate(ComparisonTree::kShareRole, this)) {
  headline_->setWordWrap(true);
  headline_->setTextInteractionFlags(Qt::TextSelectableByMouse);
  headline_->setAccessibleName(tr("Comparison"));
  open_ = new QPushButton(tr("Compare with another run …"));
  connect(open_, &QPushButton::clicked, this, &ComparePanel::openRequested);
  by_->setAccessibleName(tr("Group by"));
  by_->addItems({tr("the step's parts"), tr("units"), tr("phases"), tr("kinds")});
  view_->setModel(&tree);
  view_->setAccessibleName(tr("Changes"));
  view_->setUniformRowHeights(true);
  view_->setAlternatingRowColors(true);
  view_->setAllColumnsShowFocus(true);
  view_->header()->setStretchLastSection(false);
  view_->setItemDelegateForColumn(ComparisonTree::kDelta, share_);
  story_->setAccessibleName(tr("What changed, as text"));
  story_->setTextFormat(Qt::RichText);
  story_->setWordWrap(true);
  story_->setTextInteractionFlags(Qt::TextSelectableByMouse);
  story_->setContentsMargins(8, 4, 8, 8);
  auto* top = new QHBoxLayout;
  top->setContentsMargins(8, 4, 8, 4);
  top->addWidget(headline_, 1);
  top->addWidget(open_);
  top->addWidget(by_);
  auto* told = new QWidget;
  auto* side = new QVBoxLayout(told);
  side->setContentsMargins(0, 0, 0, 0);
  side->setSpacing(0);
  side->addWidget(plot_);
  side->addWidget(story_);
  side->addStretch(1);
  auto* scroll = new QScrollArea;
  scroll->setWidget(told);
  scroll->setWidgetResizable(true);
  scroll->setFrameShape(QFrame::NoFrame);
  scroll->setAccessibleName(tr("Where the change comes from"));
  body_ = new QWidget;
  auto* body = new QHBoxLayout(body_);
  body->setContentsMargins(0, 0, 0, 0);
  body->setSpacing(0);
  body->addWidget(view_, 1);
  body->addWidget(scroll, 1);
  auto* column = new QVBoxLayout(this);
  column->setContentsMargins(0, 0, 0, 0);
  column->setSpacing(0);
  column->addLayout(top);
  column->addWidget(body_, 1);
  column->addStretch(0);
  connect(by_, &QComboBox::currentIndexChanged, this, &ComparePanel::update);
  connect(&session_, &CompareSession::changed, this, &ComparePanel::update);
  const auto choose = [this](const QModelIndex& index) {
    if (const auto unit = index.isValid() ? tree.unitAt(index) : std::nullopt) {
      emit unitChosen(QString::fromStdString(*unit));
    }
  };
  connect(view_->selectionModel(), &QItemSelectionModel::selectionChanged, this,
          [choose](const QItemSelection& selected) {
            choose(selected.isEmpty() ? QModelIndex() : selected.indexes().front());
          });
  connect(view_, &QTreeView::clicked, this, choose);
  update();
}

void ComparePanel::setTheme(const Theme& theme) {
  plot_->setTheme(theme);
  share_->setTheme(theme);
}

QString ComparePanel::headline() const {
  return headline_->text();
}

void ComparePanel::update() {
  const std::shared_ptr<const check::Comparison> comparison = session_.comparison();
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
  const QSignalBlocker quiet(view_->selectionModel());
  for (int c = 0; c < ComparisonTree::kColumnCount; ++c) {
    view_->resizeColumnToContents(c);
  }
  const bool step_alone = tree.by() == ComparisonTree::By::kStep;
  view_->header()->setSectionResizeMode(
      ComparisonTree::kWhat, step_alone ? QHeaderView::Stretch : QHeaderView::Interactive);
  view_->setColumnWidth(ComparisonTree::kWhat, 230);
  view_->setColumnHidden(ComparisonTree::kA, step_alone);
  view_->setColumnHidden(ComparisonTree::kB, step_alone);
  for (const int c :
       {ComparisonTree::kExposedA, ComparisonTree::kExposedB, ComparisonTree::kExposedDelta}) {
    view_->setColumnHidden(c, step_alone);
  }
  const auto named = [](const RunPointer& run, size_t count) {
    return count == 1 ? name_of(run) : tr("%1 and %2 more").arg(name_of(run)).arg(count - 1);
  };
  QString text =
      tr("A %1,  B %2")
          .arg(named(session_.a(), session_.countOfA()), named(session_.b(), session_.countOfB()));
  if (const check::MetricResult* step = metric_of(comparison->result, Metric::kStepTime)) {
    text += tr(":  step %1 → %2,  %3")
                .arg(time_text(step->effect.baseline), time_text(step->effect.candidate),
                     changeText(step->effect.candidate, step->effect.baseline));
    text += !step->effect.measurable() ? QString()
            : step->moved()            ? tr(" (more than noise)")
                                       : tr(" (no more than noise)");
  }
  headline_->setText(text.toHtmlEscaped());
  headline_->setToolTip(
      QString::fromStdString(session_.a()->run.source + "\n" + session_.b()->run.source));
  story_->setText(story_of(comparison->result));
}

}  // namespace shardlens::gui
