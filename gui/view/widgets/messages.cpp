#include "gui/view/widgets/messages.h"

#include <QMessageBox>

#include "gui/model/base/in_window.h"

namespace shardlens::gui {

void Messages::tell(const QString& title, const QString& message) {
  if (unattended_) {
    return;
  }
  auto* box =
      new QMessageBox(QMessageBox::Warning, title, in_window(message), QMessageBox::Ok, &window_);
  box->setTextFormat(Qt::PlainText);
  box->setAttribute(Qt::WA_DeleteOnClose);
  box->open();
}

}  // namespace shardlens::gui
