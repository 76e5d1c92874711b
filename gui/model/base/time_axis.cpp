#include "gui/model/base/time_axis.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <QLocale>

#include "core/base/format_bytes.h"
#include "profiler/report/table.h"

namespace shardlens::gui {
namespace {

struct Unit {
  double nanoseconds;
  const char* name;
};
constexpr std::array<Unit, 4> kUnits{{{1, "ns"}, {1e3, "µs"}, {1e6, "ms"}, {1e9, "s"}}};

const Unit& unitFor(double nanoseconds) {
  size_t i = kUnits.size() - 1;
  while (i > 0 && kUnits[i].nanoseconds > nanoseconds) {
    --i;
  }
  return kUnits[i];
}

// The smallest value of at least `least` that is 1, 2 or 5 times a power of ten.
Nanoseconds roundStep(double least) {
  const double power = std::pow(10.0, std::floor(std::log10(std::max(1.0, least))));
  for (const double factor : {1.0, 2.0, 5.0, 10.0}) {
    if (power * factor >= least) {
      return static_cast<Nanoseconds>(std::llround(power * factor));
    }
  }
  return static_cast<Nanoseconds>(std::llround(power * 10));
}

QString number(double value, int digits, const char* unit) {
  return QString::number(value, 'f', digits) + QStringLiteral(" ") + QString::fromUtf8(unit);
}

}  // namespace

void TimeAxis::setBounds(const analysis::Interval& bounds) {
  bounds_ = {bounds.start, std::max(bounds.end, bounds.start + kShortest)};
  view_ = bounds_;
}

void TimeAxis::setWidth(int pixels) {
  width_ = std::max(1, pixels);
}

double TimeAxis::nanosecondsPerPixel() const {
  return static_cast<double>(view_.length()) / width_;
}

double TimeAxis::toPixel(Nanoseconds time) const {
  return static_cast<double>(time - view_.start) / nanosecondsPerPixel();
}

Nanoseconds TimeAxis::toTime(double pixel) const {
  return view_.start + static_cast<Nanoseconds>(std::llround(pixel * nanosecondsPerPixel()));
}

bool TimeAxis::setView(const analysis::Interval& view) {
  const Nanoseconds length =
      std::clamp(view.length(), std::min(kShortest, bounds_.length()), bounds_.length());
  const Nanoseconds start = std::clamp(view.start, bounds_.start, bounds_.end - length);
  const analysis::Interval next{start, start + length};
  const bool changed = next != view_;
  view_ = next;
  return changed;
}

bool TimeAxis::zoom(double factor, double aroundPixel) {
  const Nanoseconds fixed = toTime(aroundPixel);
  const auto length = static_cast<Nanoseconds>(
      std::clamp(static_cast<double>(view_.length()) * factor, static_cast<double>(kShortest),
                 static_cast<double>(bounds_.length())));
  const Nanoseconds start =
      fixed -
      static_cast<Nanoseconds>(std::llround(aroundPixel / width_ * static_cast<double>(length)));
  return setView({start, start + length});
}

bool TimeAxis::pan(double pixels) {
  const auto shift = static_cast<Nanoseconds>(std::llround(pixels * nanosecondsPerPixel()));
  return setView({view_.start + shift, view_.end + shift});
}

bool TimeAxis::Wheel::pans() const {
  return shift || std::abs(right) > std::abs(up);
}

bool TimeAxis::turn(const Wheel& wheel, double aroundPixel) {
  constexpr double kStep = 0.8, kFineStep = 0.95;  // zoom per notch
  constexpr double kPanned = 0.1;                  // of the width, per notch
  if (wheel.pans()) {
    return pan(-(wheel.right != 0 ? wheel.right : wheel.up) * kPanned * width_);
  }
  return zoom(std::pow(wheel.fine ? kFineStep : kStep, wheel.up), aroundPixel);
}

bool TimeAxis::fit(const analysis::Interval& what) {
  const Nanoseconds margin = std::max<Nanoseconds>(what.length() / 10, kShortest / 2);
  return setView({what.start - margin, what.end + margin});
}

std::vector<TimeAxis::Tick> TimeAxis::ticks(double minimumPixels) const {
  std::vector<Tick> out;
  const Nanoseconds step = roundStep(minimumPixels * nanosecondsPerPixel());
  const Nanoseconds minor = std::max<Nanoseconds>(1, step / 5);
  for (Nanoseconds t = (view_.start / minor) * minor; t <= view_.end; t += minor) {
    if (t >= view_.start) {
      out.push_back(
          {t, toPixel(t), t % step == 0 ? timeText(t, static_cast<double>(step)) : QString()});
    }
  }
  return out;
}

QString timeText(Nanoseconds time, double resolution) {
  return timeText(time, resolution, time);
}

QString timeText(Nanoseconds time, double resolution, Nanoseconds largest) {
  const double magnitude = std::max(std::abs(static_cast<double>(largest)), resolution);
  const Unit& unit = unitFor(magnitude);
  const int digits = static_cast<int>(std::clamp(
      std::ceil(std::log10(unit.nanoseconds / std::max(1.0, resolution)) - 1e-9), 0.0, 9.0));
  return number(static_cast<double>(time) / unit.nanoseconds, digits, unit.name);
}

QString durationText(Nanoseconds duration) {
  constexpr Nanoseconds kRounded = 100'000;  // rounded to the microsecond from here on
  if (std::abs(duration) >= kRounded) {
    return QString::fromStdString(report::format_duration(duration));
  }
  const double value = static_cast<double>(duration);
  return std::abs(duration) < 1000 ? number(value, 0, "ns") : number(value / 1e3, 3, "µs");
}

QString durationText(Nanoseconds duration, Nanoseconds largest) {
  constexpr Nanoseconds kMilliseconds = 100'000, kSeconds = 10'000'000'000;  // from here on
  if (std::abs(largest) < 1000) {
    return durationText(duration);
  }
  const double value = static_cast<double>(duration);
  return std::abs(largest) < kMilliseconds ? number(value / 1e3, 3, "µs")
         : std::abs(largest) < kSeconds
             ? QString::fromStdString(report::format_duration(duration))  // rounded as analyze does
             : number(value / 1e9, 3, "s");
}

QString deltaText(Nanoseconds delta) {
  return deltaText(delta, 0);
}

QString deltaText(Nanoseconds delta, Nanoseconds largest) {
  return delta == 0
             ? QStringLiteral("=")
             : QStringLiteral("%1 %2").arg(delta < 0 ? QStringLiteral("▼") : QStringLiteral("▲"),
                                           durationText(std::abs(delta), largest));
}

QString changeText(double value, double base) {
  const double change = base == 0 ? 0 : (value - base) / base;
  if (std::abs(change) < 0.0005) {
    return QStringLiteral("=");
  }
  return QStringLiteral("%1 %2 %")
      .arg(change < 0 ? QStringLiteral("▼") : QStringLiteral("▲"))
      .arg(std::abs(100 * change), 0, 'f', 1);
}

QString signedPercent(double share) {
  const double percent = 100 * share;
  const QString sign = std::abs(percent) < 0.05 ? QString()
                       : percent > 0            ? QStringLiteral("+")
                                                : QStringLiteral("−");
  return QStringLiteral("%1%2").arg(sign).arg(std::abs(percent), 0, 'f', 1);
}

QString bytesText(Bytes bytes) {
  return QString::fromStdString(format_bytes(bytes));
}

QString countText(qlonglong count, const QString& one, const QString& many) {
  return QStringLiteral("%1 %2").arg(QLocale().toString(count), count == 1 ? one : many);
}

}  // namespace shardlens::gui
