#pragma once

#include <QDialog>
#include <QSettings>

#include "gui/model/run/capture_job.h"

class QComboBox;
class QFormLayout;
class QLineEdit;
class QPlainTextEdit;
class QProgressBar;
class QPushButton;
class QSpinBox;

namespace shardlens::gui {

// Trains a model on this machine for a few steps and records the run. The entered model and tokens
// are kept in `settings`, which must outlive the dialog. Closing the dialog ends a running capture.
class CaptureDialog : public QDialog {
  Q_OBJECT
 public:
  // `program`: path of the shardlens executable.
  CaptureDialog(const QString& program, QSettings& settings, QWidget* parent);
  [[nodiscard]] CaptureOptions options() const;
  void setOptions(const CaptureOptions& options);
  [[nodiscard]] CaptureJob& job() { return job_; }
  [[nodiscard]] QString message() const;
  // Asks first if the directory to write to has files.
  void begin();

 signals:
  void captured(const QString& directory);

 protected:
  void done(int result) override;

 private:
  QLineEdit* path(const QString& title, const QString& help, bool directory, bool existing);
  QSpinBox* number(const QString& title, int most);
  QComboBox* choice(const QString& title, const QStringList& items);
  void setRunning(bool running);
  void askWhere();
  void run();
  QString program_;
  QSettings& settings_;
  CaptureJob job_;
  QFormLayout* form_;
  QLineEdit *model_, *tokens_, *out_;
  QComboBox *strategy_, *device_, *backend_;
  QSpinBox *nproc_, *steps_, *batch_, *seq_;
  QProgressBar* bar_;
  QPlainTextEdit* log_;
  QPushButton *start_, *cancel_;
};

}  // namespace shardlens::gui
