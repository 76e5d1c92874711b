#include "gui/view/window/preview_page.h"

#include <QHBoxLayout>
#include <QLabel>
#include <QProgressBar>
#include <QPushButton>
#include <QVBoxLayout>

#include "gui/view/timeline/timeline_view.h"

namespace shardlens::gui {

PreviewPage::PreviewPage(QWidget* parent)
    : QWidget(parent),
      timeline_(new TimelineView(context_)),
      label_(new QLabel),
      progress_(new QProgressBar) {
  auto* notice = new QWidget;
  notice->setAttribute(Qt::WA_StyledBackground);
  notice->setObjectName(QStringLiteral("notice"));
  label_->setWordWrap(true);
  label_->setTextFormat(Qt::PlainText);
  label_->setAccessibleName(tr("Notice"));
  label_->setSizePolicy(QSizePolicy::Ignored, QSizePolicy::Minimum);
  progress_->setAccessibleName(tr("Read so far"));
  auto* cancel = new QPushButton(tr("Cancel"));
  connect(cancel, &QPushButton::clicked, this, &PreviewPage::cancelRequested);
  auto* row = new QHBoxLayout(notice);
  row->setContentsMargins(10, 3, 6, 3);
  row->addWidget(label_, 1);
  row->addWidget(progress_);
  row->addWidget(cancel);
  auto* column = new QVBoxLayout(this);
  column->setContentsMargins(0, 0, 0, 0);
  column->setSpacing(0);
  column->addWidget(notice);
  column->addWidget(timeline_, 1);
}

void PreviewPage::setRun(const RunPointer& run) {
  if (run != nullptr) {
    label_->setText(
        tr("The picture is what has been read of rank %1. Its lanes may lack events, and there are "
           "no figures before all is read.")
            .arg(run->ranks.front()->figures.rank));
  }
  context_.setRun(run);
}

void PreviewPage::showProgress(int percent, const QString& what) {
  progress_->setRange(0, percent < 0 ? 0 : 100);
  progress_->setValue(percent);
  progress_->setToolTip(what);
}

void PreviewPage::setTheme(const Theme& theme) {
  timeline_->setTheme(theme);
}

QString PreviewPage::text() const {
  return label_->text();
}

std::optional<PreviewPage::View> PreviewPage::view() const {
  const RankData* rank = context_.rank();
  if (rank == nullptr) {
    return std::nullopt;
  }
  const TimeAxis& axis = timeline_->scene().axis;
  View out;
  out.rank = rank->figures.rank;
  if (!(axis.view() == axis.bounds())) {
    out.own = context_.run()->own(*rank, axis.view());
  }
  return out;
}

}  // namespace shardlens::gui
