#include "gui/model/what_if/fit_text.h"

#include <QObject>

#include "gui/model/base/time_axis.h"

namespace shardlens::gui {

QString needText(Bytes allocated, Bytes reserved, Bytes available) {
  const QString limit = bytesText(available);
  const QString unit = limit.mid(limit.indexOf(u' '));  // written once if both have it
  const bool cached = allocated <= available;           // what is too much
  const Bytes needed = cached ? reserved : allocated;
  QString need = bytesText(needed);
  if (need == limit) {
    return (cached ? QObject::tr("%1 more reserved than %2") : QObject::tr("%1 more than %2"))
        .arg(bytesText(needed - available), limit);
  }
  if (need.endsWith(unit)) {
    need.chop(unit.size());
  }
  return (cached ? QObject::tr("%1 reserved of %2") : QObject::tr("%1 of %2")).arg(need, limit);
}

QString peaksText(Bytes simulated, Bytes measured) {
  const double error = static_cast<double>(simulated) / static_cast<double>(measured) - 1;
  return QObject::tr("%1 simulated, %2 measured (%3 %)")
      .arg(bytesText(simulated), bytesText(measured), signedPercent(error));
}

QString unfitText(const sim::Prediction& prediction) {
  const sim::StepMemory& memory = prediction.memory;
  return memory.fits ? QString()
                     : QObject::tr("does not fit: it needs %1")
                           .arg(needText(memory.peak_allocated, memory.peak_reserved,
                                         prediction.available));
}

}  // namespace shardlens::gui
