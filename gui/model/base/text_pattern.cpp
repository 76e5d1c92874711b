#include "gui/model/base/text_pattern.h"

namespace shardlens::gui {

TextPattern::TextPattern(const QString& text)
    : text_(text),
      expression_(text, QRegularExpression::CaseInsensitiveOption),
      special_(QRegularExpression::escape(text) != text) {}

bool TextPattern::matches(const QString& text) const {
  return text_.isEmpty() || text.contains(text_, Qt::CaseInsensitive) ||
         (special_ && expression_.isValid() && expression_.match(text).hasMatch());
}

QString TextPattern::problem() const {
  return expression_.isValid() ? QString() : expression_.errorString();
}

}  // namespace shardlens::gui
