#include "gui/model/run/capture_job.h"

#include <algorithm>

#include <QDir>
#include <QFileInfo>
#include <QRegularExpression>

namespace shardlens::gui {
namespace {

constexpr qsizetype kKeptLines = 12;

}  // namespace

QStringList CaptureOptions::arguments() const {
  QStringList list{QStringLiteral("capture")};
  const auto add = [&list](const char* flag, const QString& value) {
    list << QString::fromLatin1(flag) << value;
  };
  add("--model", model);
  add("--tokens", tokens);
  add("--out", out);
  plan.isEmpty() ? add("--strategy", strategy) : add("--plan", plan);
  add("--device", device);
  add("--backend", backend);
  add("--steps", QString::number(steps));
  add("--batch", QString::number(batch));
  add("--seq", QString::number(seq));
  // With the emulated backend there is one process, which runs one rank of a larger world.
  add(backend == QStringLiteral("emulated") ? "--world-size" : "--nproc", QString::number(nproc));
  return list + more;
}

bool is_used(const QString& directory) {
  return QFileInfo(directory).isDir() &&
         !QDir(directory).isEmpty(QDir::AllEntries | QDir::Hidden | QDir::NoDotAndDotDot);
}

QString free_directory(const QString& directory) {
  const QString base = QDir::cleanPath(directory);
  QString found = base;
  for (int number = 2; is_used(found) || QFileInfo(found).isFile(); ++number) {
    found = QStringLiteral("%1-%2").arg(base).arg(number);
  }
  return found;
}

CaptureJob::CaptureJob(QObject* parent) : QObject(parent) {
  process_.setProcessChannelMode(QProcess::MergedChannels);
  grace_.setSingleShot(true);
  grace_.setInterval(kGraceMilliseconds);
  connect(&grace_, &QTimer::timeout, &process_, &QProcess::kill);
  connect(&process_, &QProcess::readyRead, this, &CaptureJob::read);
  connect(&process_, &QProcess::finished, this, &CaptureJob::ended);
  connect(&process_, &QProcess::errorOccurred, this, [this](QProcess::ProcessError error) {
    if (error == QProcess::FailedToStart) {
      emit failed(tr("%1 cannot be started: %2").arg(process_.program(), process_.errorString()));
    }
  });
}

CaptureJob::~CaptureJob() {
  process_.disconnect(this);
  // At the first signal the ranks finish their step and write their traces, at the second they end
  // at once. The window does not wait for traces that it will not open.
  for (int tries = 0; tries < 2 && isRunning(); ++tries) {
    process_.terminate();
    process_.waitForFinished(kLongestEnd / 3);
  }
  if (isRunning()) {
    process_.kill();
    process_.waitForFinished(kLongestEnd / 3);
  }
}

void CaptureJob::start(const QString& program, const CaptureOptions& options) {
  if (isRunning()) {
    return;
  }
  out_ = options.out;
  rest_.clear();
  last_.clear();
  cancelling_ = false;
  process_.start(program, options.arguments(), QIODevice::ReadOnly);
}

void CaptureJob::cancel() {
  if (isRunning() && !cancelling_) {
    cancelling_ = true;
    process_.terminate();
    grace_.start();
  }
}

void CaptureJob::read() {
  rest_ += QString::fromUtf8(process_.readAll());
  QStringList lines = rest_.split(u'\n');
  rest_ = lines.takeLast();
  for (const QString& text : lines) {
    take(text);
  }
}

void CaptureJob::take(const QString& text) {
  if (text.isEmpty()) {
    return;
  }
  static const QRegularExpression kStep(QStringLiteral("\\bstep (\\d+)/(\\d+)\\b"));
  const QRegularExpressionMatch step = kStep.match(text);
  if (step.hasMatch()) {
    emit progress(step.captured(1).toInt(), step.captured(2).toInt());
  } else {
    last_.append(text);
    last_ = last_.mid(std::max<qsizetype>(0, last_.size() - kKeptLines));
  }
  emit line(text);
}

void CaptureJob::ended(int code, QProcess::ExitStatus status) {
  grace_.stop();
  read();
  take(rest_);
  rest_.clear();
  if (cancelling_) {
    emit cancelled();
  } else if (status == QProcess::NormalExit && code == 0) {
    emit finished(out_);
  } else {
    const QString how = status == QProcess::NormalExit
                            ? tr("The capture ended with exit code %1.").arg(code)
                            : tr("The capture was killed by a signal.");
    emit failed(last_.isEmpty() ? how : last_.join(u'\n'));
  }
}

}  // namespace shardlens::gui
