#pragma once

#include <QObject>
#include <QProcess>
#include <QString>
#include <QStringList>
#include <QTimer>

namespace shardlens::gui {

// Options of `shardlens capture`.
struct CaptureOptions {
  QString model, tokens, out;
  QString plan;  // a plan file; "": `strategy`
  QString strategy = QStringLiteral("full_shard");
  QString device = QStringLiteral("cpu"), backend = QStringLiteral("gloo");
  int nproc = 2, steps = 10, batch = 2, seq = 64;
  QStringList more;                             // further flags, with their values
  [[nodiscard]] QStringList arguments() const;  // "capture", "--model", …
};

// Whether the directory has files, also hidden ones.
[[nodiscard]] bool is_used(const QString& directory);
// The directory itself, or an unused one with a number after its name.
[[nodiscard]] QString free_directory(const QString& directory);

// Runs `shardlens capture` as a separate process, one at a time. Each start() emits exactly one of
// finished(), failed() and cancelled().
//
// Threads  all members on the object's own thread. The destructor ends the process and waits for
//          it, at most kLongestEnd.
class CaptureJob : public QObject {
  Q_OBJECT
 public:
  explicit CaptureJob(QObject* parent = nullptr);
  ~CaptureJob() override;

  void start(const QString& program, const CaptureOptions& options);
  // Sends SIGTERM, so that the workers can end cleanly; after kGraceMilliseconds the process is
  // killed.
  void cancel();
  [[nodiscard]] bool isRunning() const { return process_.state() != QProcess::NotRunning; }
  static constexpr int kGraceMilliseconds = 20'000;
  static constexpr int kLongestEnd = 6'000;  // milliseconds

 signals:
  void progress(int step, int steps);
  void line(const QString& text);  // a line that the process printed
  void finished(const QString& out);
  void failed(const QString& message);
  void cancelled();

 private:
  void read();
  void take(const QString& text);
  void ended(int code, QProcess::ExitStatus status);
  QProcess process_;
  QTimer grace_;
  QString rest_;      // the incomplete last line
  QStringList last_;  // last lines, for the message of failed()
  QString out_;
  bool cancelling_ = false;
};

}  // namespace shardlens::gui
