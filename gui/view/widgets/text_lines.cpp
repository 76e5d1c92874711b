#include "gui/view/widgets/text_lines.h"

#include <QStringList>
#include <QWidget>

namespace shardlens::gui {
namespace {

constexpr qsizetype kLongest = 100, kShortest = 50;  // characters of a line that is broken
constexpr qsizetype kLongestWord = 40, kPart = 24;   // characters of a word that is broken

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

QString with_breaks(const QString& text) {
  static const QString kSeparators = QStringLiteral("./_-,:;");
  QString out;
  qsizetype end = 0, part = 0;  // the end of the current word, and its characters since a break
  for (qsizetype i = 0; i < text.size(); ++i) {
    if (i >= end) {
      const qsizetype start = i;
      while (end < text.size() && (end <= start || !text[end].isSpace())) {
        ++end;
      }
      part = end - start > kLongestWord ? 0 : -kLongestWord;  // no break in a short word
    }
    out += text[i];
    ++part;
    const bool inside = i + 1 < end && !text[i + 1].isLowSurrogate() && !text[i + 1].isMark();
    if (inside && (part >= kPart || (part >= kPart / 2 && kSeparators.contains(text[i])))) {
      out += QChar(0x200b);
      part = 0;
    }
  }
  return out;
}

QString in_error_colour(const QString& text, const QWidget& label) {
  return QStringLiteral("<b style='color: %1'>%2</b>")
      .arg(label.palette().color(QPalette::BrightText).name(), text.toHtmlEscaped());
}

}  // namespace shardlens::gui
