#pragma once

#include <QObject>
#include <QProcess>
#include <QString>
#include <QStringList>
#include <QTimer>

namespace shardlens::gui {

// What is captured, as `shardlens capture` takes it.
struct CaptureOptions {
  QString model, tokens, out;
  QString strategy = QStringLiteral("full_shard");
  QString device = QStringLiteral("cpu"), backend = QStringLiteral("gloo");
  int nproc = 2, steps = 10, batch = 2, seq = 64;
  [[nodiscard]] QStringList arguments() const;  // "capture", "--model", …
};

// One `shardlens capture` at a time, as a process of its own. start() is answered by exactly one of
// finished(), failed() and cancelled().
//
// Threads  the thread it lives on. The destructor ends the process and waits for it.
class CaptureJob : public QObject {
  Q_OBJECT
 public:
  explicit CaptureJob(QObject* parent = nullptr);
  ~CaptureJob() override;

  void start(const QString& program, const CaptureOptions& options);
  // Workers finish what they are at; after kGraceMilliseconds the process is killed.
  void cancel();
  [[nodiscard]] bool isRunning() const { return process_.state() != QProcess::NotRunning; }
  static constexpr int kGraceMilliseconds = 20'000;

 signals:
  void progress(int step, int steps);
  void line(const QString& text);  // that it printed
  void finished(const QString& out);
  void failed(const QString& message);
  void cancelled();

 private:
  void read();
  void take(const QString& text);
  void ended(int code, QProcess::ExitStatus status);
  QProcess process_;
  QTimer grace_;
  QString rest_;      // of a line that is not complete
  QStringList last_;  // lines, for the message of a failure
  QString out_;
  bool cancelling_ = false;
};

}  // namespace shardlens::gui
