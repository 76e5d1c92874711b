#pragma once

#include <vector>

#include <QString>

#include "core/base/units.h"
#include "profiler/analysis/events/intervals.h"

namespace shardlens::gui {

// The time interval in view, and the conversion between instants and pixels.
//
// Units  nanoseconds of the run (0 is its first instant) and pixels from the left edge of the view.
class TimeAxis {
 public:
  struct Tick {
    Nanoseconds time = 0;
    double x = 0;
    QString label;  // "" for a minor one
  };
  // A turn of the mouse's wheel, in notches.
  struct Wheel {
    double up = 0, right = 0;
    bool shift = false;               // a wheel that only turns up and down moves the view sideways
    bool fine = false;                // zooms in small steps
    [[nodiscard]] bool pans() const;  // otherwise it zooms
  };

  void setBounds(const analysis::Interval& bounds);  // the widest view that zooming out reaches
  void setWidth(int pixels);
  [[nodiscard]] const analysis::Interval& bounds() const { return bounds_; }
  [[nodiscard]] const analysis::Interval& view() const { return view_; }
  [[nodiscard]] int width() const { return width_; }
  [[nodiscard]] double nanosecondsPerPixel() const;
  [[nodiscard]] double toPixel(Nanoseconds time) const;
  [[nodiscard]] Nanoseconds toTime(double pixel) const;

  // These keep the view within the bounds and at least kShortest long. They return whether the view
  // changed.
  bool setView(const analysis::Interval& view);
  bool zoom(double factor, double aroundPixel);  // factor < 1: closer
  bool pan(double pixels);
  // Applies a turn of the wheel, as every view of time does: moves by a tenth of the view for each
  // notch, or zooms around the pixel.
  bool turn(const Wheel& wheel, double aroundPixel);
  bool fit(const analysis::Interval& what);  // with a margin
  bool fitAll() { return setView(bounds_); }

  [[nodiscard]] std::vector<Tick> ticks(double minimumPixels = 90) const;

  static constexpr Nanoseconds kShortest = 100;

 private:
  analysis::Interval bounds_{0, 1'000'000}, view_{0, 1'000'000};
  int width_ = 1;
};

// "1.25 ms", with as many digits as a resolution of `resolution` nanoseconds needs.
[[nodiscard]] QString timeText(Nanoseconds time, double resolution);
// The same in the unit of `largest`, the largest time of a column, so that the digits of its rows
// line up.
[[nodiscard]] QString timeText(Nanoseconds time, double resolution, Nanoseconds largest);
// A duration with the same digits everywhere: from 0.1 ms on, as the headline and the command line
// print it ("0.412 ms", "388.814 ms", "12.250 s"); shorter ones to the nanosecond ("4.200 µs",
// "812 ns").
[[nodiscard]] QString durationText(Nanoseconds duration);
// The same in the unit of `largest`, the largest duration of a column, so that the digits of its
// rows line up: "0.041 ms" below "79.314 ms".
[[nodiscard]] QString durationText(Nanoseconds duration, Nanoseconds largest);
// "▲ 1.2 ms", "▼ 40 µs", "=": the sign is shown by shape, not only by colour.
[[nodiscard]] QString deltaText(Nanoseconds delta);
// The same in the unit of `largest`, the largest change of a column.
[[nodiscard]] QString deltaText(Nanoseconds delta, Nanoseconds largest);
// The same for the change from `base` to `value` in percent: "▼ 3.2 %"; "=" below 0.05 %.
[[nodiscard]] QString changeText(double value, double base);
// A share in percent, with its sign and without the unit: "+3.2", "−0.4", "0.0".
[[nodiscard]] QString signedPercent(double share);
// "1.50 MiB", as the command line prints it.
[[nodiscard]] QString bytesText(Bytes bytes);
// "1 event", "9,924 events"
[[nodiscard]] QString countText(qlonglong count, const QString& one, const QString& many);

}  // namespace shardlens::gui
