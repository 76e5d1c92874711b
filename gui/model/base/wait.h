#pragma once

#include <chrono>

#include <QCoreApplication>
#include <QDeadlineTimer>
#include <QEventLoop>
#include <QTimer>

namespace shardlens::gui {

// Runs the event loop until done() returns true or `limit` has passed; returns the last done(). For
// unattended programs and tests. Sleeps between events, which processEvents() with a time limit
// does not.
template <typename Done>
bool wait_until(const Done& done, std::chrono::milliseconds limit) {
  QTimer tick;  // wakes the loop for conditions that change without an event
  tick.start(std::chrono::milliseconds(5));
  const QDeadlineTimer deadline(limit);
  while (!done() && !deadline.hasExpired()) {
    QCoreApplication::processEvents(QEventLoop::AllEvents | QEventLoop::WaitForMoreEvents);
  }
  return done();
}

}  // namespace shardlens::gui
