#include "gui/view/widgets/notice_bar.h"

#include <QHBoxLayout>
#include <QLabel>
#include <QToolButton>

namespace shardlens::gui {

NoticeBar::NoticeBar(QWidget* parent) : QWidget(parent), label_(new QLabel) {
  setAttribute(Qt::WA_StyledBackground);
  setObjectName(QStringLiteral("notice"));
  label_->setWordWrap(true);
  label_->setTextFormat(Qt::PlainText);
  label_->setTextInteractionFlags(Qt::TextSelectableByMouse);
  label_->setAccessibleName(tr("Notice"));
  label_->setSizePolicy(QSizePolicy::Ignored, QSizePolicy::Minimum);  // as wide as the timeline
  auto* more = new QToolButton;
  more->setText(tr("Diagnostics"));
  more->setFocusPolicy(Qt::StrongFocus);
  more->setToolTip(tr("Everything that was left out or repaired, or that may be wrong"));
  auto* close = new QToolButton;
  close->setText(QStringLiteral("×"));
  close->setAccessibleName(tr("Hide the notice"));
  close->setToolTip(close->accessibleName());
  close->setFocusPolicy(Qt::StrongFocus);
  auto* row = new QHBoxLayout(this);
  row->setContentsMargins(10, 3, 6, 3);
  row->addWidget(label_, 1);
  row->addWidget(more);
  row->addWidget(close);
  connect(more, &QToolButton::clicked, this, &NoticeBar::moreRequested);
  connect(close, &QToolButton::clicked, this, &QWidget::hide);
  hide();
}

void NoticeBar::show(const QStringList& notes) {
  label_->setText(notes.join(u'\n'));
  setVisible(!notes.isEmpty());
}

QString NoticeBar::text() const {
  return label_->text();
}

}  // namespace shardlens::gui
