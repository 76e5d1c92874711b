#pragma once

#include <QLineEdit>

namespace shardlens::gui {

// A box for a text to look for, with a button that clears it. Longer text than names have is cut:
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
  }
};

}  // namespace shardlens::gui
