#include "gui/view/widgets/spec_file.h"

#include <utility>

#include <QFileDialog>

namespace shardlens::gui {

void choose_spec_file(QWidget& parent, std::function<void(const QString& path)> chosen) {
  auto* dialog = new QFileDialog(&parent, QObject::tr("Open a hardware spec"));
  dialog->setAttribute(Qt::WA_DeleteOnClose);
  dialog->setFileMode(QFileDialog::ExistingFile);
  dialog->setNameFilters({QObject::tr("Specs (*.json)"), QObject::tr("All files (*)")});
  QObject::connect(dialog, &QFileDialog::fileSelected, &parent, std::move(chosen));
  dialog->open();
}

}  // namespace shardlens::gui
