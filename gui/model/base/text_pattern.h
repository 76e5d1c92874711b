#pragma once

#include <QRegularExpression>
#include <QString>

namespace shardlens::gui {

// What a search box looks for: texts that contain it, or that match it as a regular expression;
// upper and lower case are equal. What is no regular expression, such as "aten::mm(", is only
// contained.
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
