#include "gui/view/widgets/capture_dialog.h"

#include <QComboBox>
#include <QDialogButtonBox>
#include <QDir>
#include <QFileDialog>
#include <QFileInfo>
#include <QFormLayout>
#include <QHBoxLayout>
#include <QLineEdit>
#include <QMessageBox>
#include <QPlainTextEdit>
#include <QProgressBar>
#include <QPushButton>
#include <QSpinBox>
#include <QVBoxLayout>

#include "core/plan/plan.h"

namespace shardlens::gui {

CaptureDialog::CaptureDialog(const QString& program, QSettings& settings, QWidget* parent)
    : QDialog(parent),
      program_(program),
      settings_(settings),
      form_(new QFormLayout),
      bar_(new QProgressBar),
      log_(new QPlainTextEdit) {
  setWindowTitle(tr("Capture on this machine"));
  resize(680, 620);
  model_ = path(tr("Model"), tr("a directory with config.json and safetensors, or a config.json"),
                true, true);
  tokens_ = path(tr("Tokens"), tr("a file of tokens, or any text"), false, true);
  out_ = path(tr("Write to"), tr("a new directory for the run"), true, false);
  QStringList strategies;
  for (const std::string& name : plan::strategy_names()) {
    strategies.append(QString::fromStdString(name));
  }
  strategy_ = choice(tr("Strategy"), strategies);
  device_ = choice(tr("Device"), {QStringLiteral("cpu"), QStringLiteral("cuda")});
  backend_ = choice(tr("Backend"),
                    {QStringLiteral("gloo"), QStringLiteral("nccl"), QStringLiteral("emulated")});
  nproc_ = number(tr("Ranks"), 64);
  steps_ = number(tr("Steps"), 10'000);
  batch_ = number(tr("Batch"), 4096);
  batch_->setToolTip(tr("Sequences per rank and step"));
  seq_ = number(tr("Sequence"), 1 << 20);
  seq_->setSuffix(tr(" tokens"));
  bar_->setAccessibleName(tr("Progress"));
  log_->setReadOnly(true);
  log_->setAccessibleName(tr("Output of the capture"));
  log_->setPlaceholderText(tr(
      "Start runs `shardlens capture` with these options. Its output appears here, and the run is "
      "opened when it ends."));
  log_->setMaximumBlockCount(2000);
  log_->setTabChangesFocus(true);
  auto* buttons = new QDialogButtonBox;
  start_ = buttons->addButton(tr("Start"), QDialogButtonBox::ActionRole);
  cancel_ = buttons->addButton(tr("Stop"), QDialogButtonBox::ActionRole);
  auto* close = buttons->addButton(QDialogButtonBox::Close);
  start_->setDefault(true);
  close->setAutoDefault(false);
  connect(start_, &QPushButton::clicked, this, &CaptureDialog::begin);
  connect(cancel_, &QPushButton::clicked, &job_, &CaptureJob::cancel);
  connect(buttons, &QDialogButtonBox::rejected, this, &QDialog::reject);
  auto* column = new QVBoxLayout(this);
  column->addLayout(form_);
  column->addWidget(log_, 1);
  column->addWidget(bar_);
  column->addWidget(buttons);
  connect(&job_, &CaptureJob::line, log_, &QPlainTextEdit::appendPlainText);
  connect(&job_, &CaptureJob::progress, this, [this](int step, int steps) {
    bar_->setRange(0, steps);
    bar_->setValue(step);
  });
  connect(&job_, &CaptureJob::failed, this, [this](const QString& message) {
    setRunning(false);
    log_->appendPlainText(tr("The capture failed.\n%1").arg(message));
  });
  connect(&job_, &CaptureJob::cancelled, this, [this] {
    setRunning(false);
    log_->appendPlainText(tr("Stopped."));
  });
  connect(&job_, &CaptureJob::finished, this, [this](const QString& out) {
    setRunning(false);
    emit captured(out);
    accept();
  });
  CaptureOptions kept;
  kept.model = settings_.value(QStringLiteral("capture/model")).toString();
  kept.tokens = settings_.value(QStringLiteral("capture/tokens")).toString();
  kept.out = free_directory(QDir::home().filePath(QStringLiteral("shardlens-run")));
  setOptions(kept);
  setRunning(false);
}

QLineEdit* CaptureDialog::path(const QString& title,
                               const QString& help,
                               bool directory,
                               bool existing) {
  auto* edit = new QLineEdit;
  edit->setAccessibleName(title);
  edit->setPlaceholderText(help);
  edit->setToolTip(help);
  auto* browse = new QPushButton(tr("Browse …"));
  browse->setAutoDefault(false);
  browse->setAccessibleName(tr("Browse for: %1").arg(title));
  connect(browse, &QPushButton::clicked, this, [this, edit, title, directory, existing] {
    auto* dialog = new QFileDialog(this, title, edit->text());
    dialog->setAttribute(Qt::WA_DeleteOnClose);
    dialog->setFileMode(directory ? QFileDialog::Directory : QFileDialog::ExistingFile);
    dialog->setAcceptMode(existing ? QFileDialog::AcceptOpen : QFileDialog::AcceptSave);
    connect(dialog, &QFileDialog::fileSelected, edit, &QLineEdit::setText);
    dialog->open();
  });
  auto* row = new QHBoxLayout;
  row->addWidget(edit, 1);
  row->addWidget(browse);
  form_->addRow(title, row);
  return edit;
}

QSpinBox* CaptureDialog::number(const QString& title, int most) {
  auto* box = new QSpinBox;
  box->setRange(1, most);
  box->setAccessibleName(title);
  form_->addRow(title, box);
  return box;
}

QComboBox* CaptureDialog::choice(const QString& title, const QStringList& items) {
  auto* box = new QComboBox;
  box->addItems(items);
  box->setAccessibleName(title);
  form_->addRow(title, box);
  return box;
}

CaptureOptions CaptureDialog::options() const {
  CaptureOptions out;
  out.model = model_->text();
  out.tokens = tokens_->text();
  out.out = out_->text();
  out.strategy = strategy_->currentText();
  out.device = device_->currentText();
  out.backend = backend_->currentText();
  out.nproc = nproc_->value();
  out.steps = steps_->value();
  out.batch = batch_->value();
  out.seq = seq_->value();
  return out;
}

void CaptureDialog::setOptions(const CaptureOptions& options) {
  model_->setText(options.model);
  tokens_->setText(options.tokens);
  out_->setText(options.out);
  strategy_->setCurrentText(options.strategy);
  device_->setCurrentText(options.device);
  backend_->setCurrentText(options.backend);
  nproc_->setValue(options.nproc);
  steps_->setValue(options.steps);
  batch_->setValue(options.batch);
  seq_->setValue(options.seq);
}

QString CaptureDialog::message() const {
  return log_->toPlainText();
}

void CaptureDialog::begin() {
  log_->clear();
  const CaptureOptions chosen = options();
  for (const auto& [value, edit] :
       {std::pair(chosen.model, model_), std::pair(chosen.tokens, tokens_),
        std::pair(chosen.out, out_)}) {
    if (value.trimmed().isEmpty()) {
      log_->appendPlainText(tr("%1: expected %2").arg(edit->accessibleName(), edit->toolTip()));
      edit->setFocus();
      return;
    }
  }
  if (is_used(chosen.out)) {
    askWhere();
  } else {
    run();
  }
}

// The directory has files. A capture replaces an earlier one, so the user decides.
void CaptureDialog::askWhere() {
  const QString other = free_directory(out_->text());
  auto* box = new QMessageBox(
      QMessageBox::Question, windowTitle(),
      tr("%1 already has files. A capture replaces the run that is there.").arg(out_->text()),
      QMessageBox::Cancel, this);
  box->setTextFormat(Qt::PlainText);
  box->setAttribute(Qt::WA_DeleteOnClose);
  QPushButton* beside =
      box->addButton(tr("Write to %1").arg(QFileInfo(other).fileName()), QMessageBox::AcceptRole);
  QPushButton* replace = box->addButton(tr("Replace"), QMessageBox::DestructiveRole);
  box->setDefaultButton(beside);
  connect(box, &QMessageBox::buttonClicked, this,
          [this, beside, replace, other](const QAbstractButton* button) {
            if (button == beside) {
              out_->setText(other);
            }
            if (button == beside || button == replace) {
              run();
            }
          });
  box->open();
}

void CaptureDialog::run() {
  const CaptureOptions chosen = options();
  settings_.setValue(QStringLiteral("capture/model"), chosen.model);
  settings_.setValue(QStringLiteral("capture/tokens"), chosen.tokens);
  setRunning(true);
  bar_->setRange(0, 0);  // busy indicator until the first step is reported
  job_.start(program_, chosen);
}

void CaptureDialog::done(int result) {
  job_.cancel();
  QDialog::done(result);
}

void CaptureDialog::setRunning(bool running) {
  start_->setEnabled(!running);
  cancel_->setEnabled(running);
  bar_->setVisible(running);
}

}  // namespace shardlens::gui
