#include "gui/view/command_palette.h"

#include <algorithm>
#include <utility>

#include <QApplication>
#include <QKeyEvent>
#include <QKeySequence>
#include <QLineEdit>
#include <QListWidget>
#include <QTextBrowser>
#include <QVBoxLayout>

#include "gui/model/action_registry.h"

namespace shardlens::gui {

CommandPalette::CommandPalette(const QString& prompt, Search search, QWidget* parent)
    : QDialog(parent),
      search_(std::move(search)),
      edit_(new QLineEdit(this)),
      list_(new QListWidget(this)) {
  setWindowTitle(prompt);
  setMinimumSize(560, 380);
  auto* column = new QVBoxLayout(this);
  edit_->setPlaceholderText(prompt);
  edit_->setAccessibleName(prompt);
  edit_->setClearButtonEnabled(true);
  list_->setAccessibleName(tr("Found"));
  list_->setFocusPolicy(Qt::NoFocus);
  column->addWidget(edit_);
  column->addWidget(list_);
  edit_->installEventFilter(this);
  connect(edit_, &QLineEdit::textChanged, this, &CommandPalette::find);
  connect(edit_, &QLineEdit::returnPressed, this, &CommandPalette::runChosen);
  connect(list_, &QListWidget::itemClicked, this, &CommandPalette::runChosen);
  find({});
}

void CommandPalette::find(const QString& text) {
  entries_ = search_(text);
  list_->clear();
  for (const PaletteEntry& entry : entries_) {
    list_->addItem(entry.hint.isEmpty() ? entry.title
                                        : QStringLiteral("%1    %2").arg(entry.title, entry.hint));
  }
  list_->setCurrentRow(0);
}

void CommandPalette::runChosen() {
  const int row = list_->currentRow();
  if (row < 0 || row >= count()) {
    return;
  }
  const std::function<void()> run = entries_[static_cast<size_t>(row)].run;
  accept();
  run();
}

bool CommandPalette::eventFilter(QObject* watched, QEvent* event) {
  if (watched == edit_ && event->type() == QEvent::KeyPress) {
    const int key = static_cast<QKeyEvent*>(event)->key();
    if (key == Qt::Key_Down || key == Qt::Key_Up) {
      const int row = list_->currentRow() + (key == Qt::Key_Down ? 1 : -1);
      list_->setCurrentRow(std::clamp(row, 0, std::max(0, list_->count() - 1)));
      return true;
    }
  }
  return QDialog::eventFilter(watched, event);
}

ShortcutSheet::ShortcutSheet(const ActionRegistry& actions, QWidget* parent) : QDialog(parent) {
  setWindowTitle(tr("Shortcuts"));
  resize(760, 560);
  auto* column = new QVBoxLayout(this);
  auto* text = new QTextBrowser(this);
  text->setAccessibleName(windowTitle());
  column->addWidget(text);
  QString html, menu;
  for (const Command& command : actions.commands()) {
    if (command.menu != menu) {
      html +=
          (menu.isEmpty() ? QString() : QStringLiteral("</table>")) +
          QStringLiteral("<h3>%1</h3><table cellpadding='3'>").arg(command.menu.toHtmlEscaped());
      menu = command.menu;
    }
    QStringList keys;
    for (const QString& key : command.shortcuts) {
      keys.append(QKeySequence(key).toString(QKeySequence::NativeText).toHtmlEscaped());
    }
    html += QStringLiteral("<tr><td width='170'><b>%1</b></td><td>%2</td></tr>")
                .arg(keys.join(QStringLiteral(" or ")), command.title.toHtmlEscaped());
  }
  html += QStringLiteral("</table><h3>%1</h3><p>%2</p>")
              .arg(tr("Mouse"),
                   tr("Wheel zooms at the pointer (Ctrl finely, Shift pans). A drag measures and "
                      "snaps to edges (Alt: freely). "
                      "Shift+drag or the middle button pan. A click selects, a double click zooms "
                      "in on what it hits. "
                      "A rank's name folds it; the strip at the top shows the whole run."));
  text->setHtml(html);
}

}  // namespace shardlens::gui
