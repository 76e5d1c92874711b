#include "gui/view/widgets/command_palette.h"

#include <algorithm>
#include <utility>

#include <QApplication>
#include <QKeyEvent>
#include <QKeySequence>
#include <QListWidget>
#include <QPainter>
#include <QStyledItemDelegate>
#include <QTextBrowser>
#include <QVBoxLayout>

#include "gui/model/base/action_registry.h"
#include "gui/view/widgets/search_box.h"

namespace shardlens::gui {
namespace {

constexpr int kHintRole = Qt::UserRole;

// Draws the shortcut at the right edge of the entry.
class HintDelegate : public QStyledItemDelegate {
 public:
  using QStyledItemDelegate::QStyledItemDelegate;
  void paint(QPainter* painter,
             const QStyleOptionViewItem& option,
             const QModelIndex& index) const override {
    QStyledItemDelegate::paint(painter, option, index);
    const bool chosen = option.state & QStyle::State_Selected;
    painter->setPen(
        option.palette.color(chosen ? QPalette::HighlightedText : QPalette::PlaceholderText));
    painter->drawText(option.rect.adjusted(0, 0, -8, 0), Qt::AlignRight | Qt::AlignVCenter,
                      index.data(kHintRole).toString());
  }
};

// The commands of one menu that have shortcuts, as an HTML table.
QString sheet_of(const ActionRegistry& actions, const QString& menu) {
  QString html = QStringLiteral("<h3>%1</h3><table cellpadding='2'>")
                     .arg(QString(menu).remove(u'&').toHtmlEscaped());
  for (const Command& command : actions.commands()) {
    if (command.menu != menu || command.shortcuts.isEmpty()) {
      continue;
    }
    QStringList keys;
    for (const QString& key : command.shortcuts) {
      keys.append(QKeySequence(key).toString(QKeySequence::NativeText).toHtmlEscaped());
    }
    html += QStringLiteral("<tr><td width='130'><b>%1</b></td><td>%2</td></tr>")
                .arg(keys.join(QObject::tr(" or ")), command.title.toHtmlEscaped());
  }
  return html + QStringLiteral("</table>");
}

}  // namespace

CommandPalette::CommandPalette(const QString& prompt, Search search, QWidget* parent)
    : QDialog(parent),
      search_(std::move(search)),
      edit_(new SearchBox(prompt, prompt, this)),
      list_(new QListWidget(this)) {
  setWindowTitle(prompt);
  setMinimumSize(560, 380);
  auto* column = new QVBoxLayout(this);
  list_->setAccessibleName(tr("Found"));
  list_->setFocusPolicy(Qt::NoFocus);
  list_->setItemDelegate(new HintDelegate(this));
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
    auto* item = new QListWidgetItem(entry.title, list_);
    item->setData(kHintRole, entry.hint);
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
  resize(1040, 720);
  auto* column = new QVBoxLayout(this);
  auto* text = new QTextBrowser(this);
  text->setAccessibleName(windowTitle());
  column->addWidget(text);
  QStringList menus;
  for (const Command& command : actions.commands()) {
    if (!menus.contains(command.menu) && !command.shortcuts.isEmpty()) {
      menus.append(command.menu);
    }
  }
  // Two columns of whole menus, so that everything is visible at once.
  QString left, right;
  for (qsizetype i = 0; i < menus.size(); ++i) {
    (2 * i + 1 < menus.size() - 1 ? left : right) += sheet_of(actions, menus[i]);
  }
  right +=
      QStringLiteral("<h3>%1</h3><p>%2</p>")
          .arg(tr("Mouse"),
               tr("The wheel zooms at the pointer (Ctrl: in small steps, Shift: pans). A drag "
                  "measures and snaps to edges (Alt: does not snap). "
                  "Shift+drag and a drag with the middle button pan. A click selects an item or a "
                  "step, a double click zooms to it. "
                  "The right button opens a menu of actions for it. "
                  "A click on a rank's name folds the rank; the strip at the top shows the "
                  "whole run."))
          .append(tr("<p>Ctrl+K finds every command, also those without a shortcut.</p>"));
  const QString html =
      QStringLiteral("<table width='100%'><tr><td width='50%'>%1</td><td>%2</td></tr></table>")
          .arg(left, right);
  text->setHtml(html);
}

}  // namespace shardlens::gui
