#include "gui/view/widgets/start_page.h"

#include <QHBoxLayout>
#include <QLabel>
#include <QListWidget>
#include <QProgressBar>
#include <QPushButton>
#include <QVBoxLayout>

#include "gui/model/base/action_registry.h"

namespace shardlens::gui {

StartPage::StartPage(ActionRegistry& actions, QWidget* parent)
    : QWidget(parent),
      message_(new QLabel(this)),
      recent_(new QListWidget(this)),
      recent_title_(new QLabel(tr("Recent"), this)),
      progress_text_(new QLabel(this)),
      progress_(new QProgressBar(this)),
      cancel_(new QPushButton(tr("Cancel"), this)) {
  constexpr int kWidth = 460;
  auto* outer = new QHBoxLayout(this);
  auto* narrow = new QWidget(this);
  narrow->setFixedWidth(kWidth);
  auto* column = new QVBoxLayout(narrow);
  column->setContentsMargins(0, 0, 0, 0);
  column->setSpacing(10);
  outer->addStretch(1);
  outer->addWidget(narrow);
  outer->addStretch(1);
  column->addStretch(1);
  auto* title = new QLabel(tr("Shardlens"), this);
  QFont large = title->font();
  large.setPointSizeF(large.pointSizeF() * 2.4);
  large.setBold(true);
  title->setFont(large);
  column->addWidget(title);
  auto* what =
      new QLabel(tr("Shows which rank owns which bytes, when each collective runs, how much "
                    "of it is hidden behind compute, and what another sharding plan would "
                    "change."),
                 this);
  what->setWordWrap(true);
  column->addWidget(what);
  column->addSpacing(10);
  addButtons(actions, *column, {"file.open", "file.openDirectory", "file.sample"});
  auto* hint = new QLabel(tr("… or drop traces of PyTorch's profiler, or a capture directory, "
                             "anywhere on this window."),
                          this);
  hint->setWordWrap(true);
  hint->setTextInteractionFlags(Qt::TextSelectableByMouse);
  column->addWidget(hint);
  message_->setWordWrap(true);
  message_->setVisible(false);
  message_->setTextFormat(Qt::PlainText);
  message_->setTextInteractionFlags(Qt::TextSelectableByMouse);
  message_->setObjectName(QStringLiteral("failure"));
  column->addWidget(message_);
  auto* loading = new QHBoxLayout;
  loading->addWidget(progress_text_);
  loading->addWidget(progress_, 1);
  loading->addWidget(cancel_);
  column->addLayout(loading);
  connect(cancel_, &QPushButton::clicked, this, &StartPage::cancelRequested);
  column->addSpacing(10);
  QFont bold = recent_title_->font();
  bold.setBold(true);
  recent_title_->setFont(bold);
  column->addWidget(recent_title_);
  recent_->setAccessibleName(recent_title_->text());
  recent_->setFrameShape(QFrame::NoFrame);
  recent_->setMaximumHeight(180);
  recent_->setTextElideMode(Qt::ElideLeft);  // paths differ at their ends
  recent_->setHorizontalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
  column->addWidget(recent_);
  connect(recent_, &QListWidget::itemActivated, this, [this](QListWidgetItem* item) {
    emit openRequested(item->data(Qt::UserRole).toStringList());
  });
  column->addSpacing(10);
  addButtons(actions, *column, {"file.openProject", "file.newPlan", "file.capture"});
  column->addStretch(2);
  endProgress();
  setRecent({});
}

void StartPage::addButtons(ActionRegistry& actions,
                           QVBoxLayout& column,
                           std::initializer_list<const char*> ids) {
  for (const char* id : ids) {
    const Command* command = actions.find(QString::fromUtf8(id));
    if (command == nullptr || !command->enabled()) {
      continue;
    }
    auto* button = new QPushButton(command->title, this);
    button->setMinimumHeight(34);
    const QString name = command->id;
    connect(button, &QPushButton::clicked, this, [&actions, name] { actions.trigger(name); });
    column.addWidget(button);
  }
}

void StartPage::setRecent(const QStringList& paths) {
  recent_->clear();
  for (const QString& entry : paths) {
    const QStringList list = entry.split(u'\n');
    auto* item = new QListWidgetItem(list.join(QStringLiteral("   ")), recent_);
    item->setToolTip(list.join(u'\n'));
    item->setData(Qt::UserRole, list);
  }
  recent_->setVisible(!paths.isEmpty());
  recent_title_->setVisible(!paths.isEmpty());
}

void StartPage::showMessage(const QString& message) {
  message_->setText(message);
  message_->setVisible(!message.isEmpty());
}

void StartPage::showProgress(int percent, const QString& what) {
  progress_text_->setText(what);
  progress_->setRange(0, percent < 0 ? 0 : 100);
  progress_->setValue(percent);
  for (QWidget* widget : {static_cast<QWidget*>(progress_text_), static_cast<QWidget*>(progress_),
                          static_cast<QWidget*>(cancel_)}) {
    widget->setVisible(true);
  }
}

void StartPage::endProgress() {
  for (QWidget* widget : {static_cast<QWidget*>(progress_text_), static_cast<QWidget*>(progress_),
                          static_cast<QWidget*>(cancel_)}) {
    widget->setVisible(false);
  }
}

}  // namespace shardlens::gui
