#pragma once

#include <QLineEdit>
#include <QStyle>

#include "gui/model/base/text_pattern.h"

namespace shardlens::gui {

// A box for a text to look for, with a button that clears it. The text may be a regular expression;
// one that is invalid is marked, with the reason as tooltip. Longer text than names have is cut:
// Qt keeps 20 bytes for each character that was pasted or removed at once, until the box is gone.
class SearchBox : public QLineEdit {
 public:
  // `prompt`: shown while the box is empty. `name`: for screen readers.
  SearchBox(const QString& prompt, const QString& name, QWidget* parent = nullptr)
      : QLineEdit(parent) {
    constexpr int kLongest = 4096;
    setPlaceholderText(prompt);
    setAccessibleName(name);
    setClearButtonEnabled(true);
    setMaxLength(kLongest);
    connect(this, &QLineEdit::textChanged, this, [this] { mark(); });
  }
  [[nodiscard]] TextPattern pattern() const { return TextPattern(text()); }
  [[nodiscard]] bool isMarked() const { return property("invalid").toBool(); }

 private:
  void mark() {
    const QString problem = pattern().problem();
    setToolTip(problem.isEmpty()
                   ? QString()
                   : tr("No regular expression (%1): the text itself is looked for").arg(problem));
    if (isMarked() == problem.isEmpty()) {
      setProperty("invalid", !problem.isEmpty());
      style()->unpolish(this);  // the style sheet depends on the property
      style()->polish(this);
    }
  }
};

}  // namespace shardlens::gui
