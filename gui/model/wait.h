#pragma once

#include <chrono>

#include <QCoreApplication>
#include <QDeadlineTimer>
#include <QEventLoop>
#include <QTimer>

namespace shardlens::gui {

// Runs the event loop until done(), or for `limit`; what done() says at the end. For programs and
// tests that nobody looks at: sleeps between events, which processEvents() with a time does not.
template <typename Done>
bool wait_until(const Done& done, std::chrono::milliseconds limit) {
  QTimer tick;  // for what ends without an event
  tick.start(std::chrono::milliseconds(5));
  const QDeadlineTimer deadline(limit);
  while (!done() && !deadline.hasExpired()) {
    QCoreApplication::processEvents(QEventLoop::AllEvents | QEventLoop::WaitForMoreEvents);
  }
  return done();
}

}  // namespace shardlens::gui
