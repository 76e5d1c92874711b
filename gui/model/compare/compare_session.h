#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include <QObject>
#include <QString>

#include "gui/model/base/background.h"
#include "gui/model/run/run_data.h"
#include "gui/model/run/run_loader.h"
#include "profiler/check/compare.h"

namespace shardlens::gui {

// Compares two runs by check::compare_runs(): A, the open run, and B. Each side may have further
// runs, which show how much runs of that side vary.
//
// Threads  all members on the object's own thread; it reads and compares on others. Each start()
//          emits exactly one of changed() and failed(), unless close() or another start() comes
//          first.
class CompareSession : public QObject {
  Q_OBJECT
 public:
  explicit CompareSession(QObject* parent = nullptr);
  ~CompareSession() override;  // stops the work and waits for it

  // The first run in `b` (see runs_of()) is B, the others are further runs of B. All runs in
  // `a_paths` but the first are further runs of A.
  void start(const RunPointer& a,
             const std::vector<std::filesystem::path>& b,
             const std::vector<std::filesystem::path>& a_paths = {});
  void start(const RunPointer& a, const RunPointer& b);  // both are already loaded
  void swap();                                           // requires an open comparison
  void close();
  [[nodiscard]] bool isOpen() const { return comparison_ != nullptr; }
  [[nodiscard]] bool isBusy() const { return busy_; }
  [[nodiscard]] const RunPointer& a() const { return a_; }
  [[nodiscard]] const RunPointer& b() const { return b_; }
  // The number of runs of A, and of B.
  [[nodiscard]] size_t countOfA() const { return 1 + further_a_.size(); }
  [[nodiscard]] size_t countOfB() const { return 1 + further_b_.size(); }
  // nullptr if no comparison is open.
  [[nodiscard]] const std::shared_ptr<const check::Comparison>& comparison() const {
    return comparison_;
  }

 signals:
  void changed();  // a comparison was opened or closed
  void failed(const QString& message);
  void progress(int percent, const QString& what);

 private:
  struct Result {
    std::shared_ptr<const check::Comparison> comparison;
    QString error;
  };
  using Runs = std::vector<std::vector<std::filesystem::path>>;
  void stop();  // stops reading and comparing
  void compare(const RunPointer& b);
  RunLoader loader_;
  Runs further_a_, further_b_;
  std::shared_ptr<trace::Progress> progress_;  // of reading further runs
  RunPointer a_, b_;
  std::shared_ptr<const check::Comparison> comparison_;
  uint64_t session_ = 0;  // results of an earlier session are discarded
  bool busy_ = false;
  Background background_;
};

}  // namespace shardlens::gui
