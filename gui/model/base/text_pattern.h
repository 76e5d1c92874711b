#pragma once

#include <QRegularExpression>
#include <QString>

namespace shardlens::gui {

// The text in a search box. It matches texts that contain it, and texts that match it as a regular
// expression; upper and lower case are equal. "aten::mm(", which is no regular expression, matches
// only texts that contain it.
class TextPattern {
 public:
  explicit TextPattern(const QString& text = {});
  [[nodiscard]] bool matches(const QString& text) const;
  // Why the text is no regular expression; "": it is one.
  [[nodiscard]] QString problem() const;

 private:
  QString text_;
  QRegularExpression expression_;
  bool special_ = false;  // the text has characters with a meaning in regular expressions
};

}  // namespace shardlens::gui
