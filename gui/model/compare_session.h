#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include <QObject>
#include <QString>

#include "gui/model/background.h"
#include "gui/model/run_data.h"
#include "gui/model/run_loader.h"
#include "profiler/check/compare.h"

namespace shardlens::gui {

// Two runs beside each other: A, which is open, and B. What differs is check::compare_runs()'s; it
// counts further runs of either side, which say how much runs differ by themselves.
//
// Threads  the thread it lives on; reads and compares on others. start() is answered by exactly one
//          of changed() and failed(), unless close() or another start() comes first.
class CompareSession : public QObject {
  Q_OBJECT
 public:
  explicit CompareSession(QObject* parent = nullptr);
  ~CompareSession() override;  // stops, and waits for it

  // Of several runs in `b` (runs_of()) the first is B; all but the first of those in `a_paths` are
  // further runs of A.
  void start(const RunPointer& a,
             const std::vector<std::filesystem::path>& b,
             const std::vector<std::filesystem::path>& a_paths = {});
  void start(const RunPointer& a, const RunPointer& b);  // both are there already
  void swap();                                           // of an open comparison
  void close();
  [[nodiscard]] bool isOpen() const { return comparison_ != nullptr; }
  [[nodiscard]] bool isBusy() const { return busy_; }
  [[nodiscard]] const RunPointer& a() const { return a_; }
  [[nodiscard]] const RunPointer& b() const { return b_; }
  // How many runs stand for A, and for B.
  [[nodiscard]] size_t countOfA() const { return 1 + further_a_.size(); }
  [[nodiscard]] size_t countOfB() const { return 1 + further_b_.size(); }
  // nullptr while none is open.
  [[nodiscard]] const std::shared_ptr<const check::Comparison>& comparison() const {
    return comparison_;
  }

 signals:
  void changed();  // opened or closed
  void failed(const QString& message);
  void progress(int percent, const QString& what);

 private:
  struct Result {
    std::shared_ptr<const check::Comparison> comparison;
    QString error;
  };
  using Runs = std::vector<std::vector<std::filesystem::path>>;
  void stop();  // what is read and compared
  void compare(const RunPointer& b);
  RunLoader loader_;
  Runs further_a_, further_b_;
  std::shared_ptr<trace::Progress> progress_;  // of reading further runs
  RunPointer a_, b_;
  std::shared_ptr<const check::Comparison> comparison_;
  uint64_t session_ = 0;  // results of an earlier one are not heard
  bool busy_ = false;
  Background background_{this};
};

}  // namespace shardlens::gui
