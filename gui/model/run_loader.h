#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include <QObject>
#include <QString>
#include <QStringList>
#include <QTimer>

#include "gui/model/background.h"
#include "gui/model/run_data.h"

namespace shardlens::gui {

[[nodiscard]] std::vector<std::filesystem::path> paths_of(const QStringList& paths);

// The paths of each run: all are one (its traces), but a directory of several runs
// (check::run_paths()) stands for these. Errors: InputError.
[[nodiscard]] std::vector<std::vector<std::filesystem::path>> runs_of(
    const std::vector<std::filesystem::path>& paths);

// Reads and analyzes a run, of several the first, on another thread. One at a time: a new one stops
// the one before, and each load answers with exactly one of loaded(), failed() and cancelled().
//
// Threads  the thread it lives on; signals come there.
class RunLoader : public QObject {
  Q_OBJECT
 public:
  explicit RunLoader(QObject* parent = nullptr);
  ~RunLoader() override;  // stops, and waits for it

  void load(const std::vector<std::filesystem::path>& paths);
  void cancel();
  [[nodiscard]] bool isLoading() const { return job_ != nullptr; }

 signals:
  // percent of what is read, growing; -1: not known. `what` says in words what is done.
  void progress(int percent, const QString& what);
  void loaded(shardlens::gui::RunPointer run);
  void failed(const QString& message);
  void cancelled();

 private:
  struct Job {
    std::vector<std::filesystem::path> paths;
    trace::Progress progress;
    std::atomic<bool> analyzing{false};
    std::pair<bool, int> reported{false, -2};  // reading, percent; nothing yet
    RunPointer run;
    QString error;
  };
  static void work(Job& job);
  void finish(const std::shared_ptr<Job>& job);
  void report();

  std::shared_ptr<Job> job_;  // the one that counts; earlier ones run out unheard
  QTimer ticker_;
  Background background_{this};
};

}  // namespace shardlens::gui
