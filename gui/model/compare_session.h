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

// Two runs beside each other: A, which is open, and B. What differs is check::compare_runs()'s.
//
// Threads  the thread it lives on; reads and compares on others. start() is answered by exactly one
//          of changed() and failed(), unless close() or another start() comes first.
class CompareSession : public QObject {
  Q_OBJECT
 public:
  explicit CompareSession(QObject* parent = nullptr);

  void start(const RunPointer& a, const std::vector<std::filesystem::path>& b);
  void start(const RunPointer& a, const RunPointer& b);  // both are there already
  void close();
  [[nodiscard]] bool isOpen() const { return comparison_ != nullptr; }
  [[nodiscard]] bool isBusy() const { return busy_; }
  [[nodiscard]] const RunPointer& a() const { return a_; }
  [[nodiscard]] const RunPointer& b() const { return b_; }
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
  void compare(const RunPointer& b);
  RunLoader loader_;
  RunPointer a_, b_;
  std::shared_ptr<const check::Comparison> comparison_;
  uint64_t session_ = 0;  // results of an earlier one are not heard
  bool busy_ = false;
  Background background_{this};
};

}  // namespace shardlens::gui
