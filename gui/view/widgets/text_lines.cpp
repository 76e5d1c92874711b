#include "gui/view/widgets/text_lines.h"

#include <QStringList>

namespace shardlens::gui {
namespace {

constexpr qsizetype kLongest = 100, kShortest = 50;  // characters of a line that is broken

// Where to break a line that is too long: after the last space or separator in its second half.
qsizetype end_of_line(const QString& line) {
  for (const char* separators : {" ", "./_-,:;<>()[]"}) {
    for (qsizetype i = kLongest; i > kShortest; --i) {
      if (QLatin1String(separators).contains(line[i - 1])) {
        return i;
      }
    }
  }
  return kLongest;
}

}  // namespace

QString in_lines(const QString& text) {
  QStringList out;
  for (QString line : text.split(u'\n')) {
    while (line.size() > kLongest) {
      const qsizetype end = end_of_line(line);
      out.append(line.left(end).trimmed());
      line = line.mid(end);
    }
    out.append(line);
  }
  return out.join(u'\n');
}

}  // namespace shardlens::gui
