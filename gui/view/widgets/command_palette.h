#pragma once

#include <functional>
#include <vector>

#include <QDialog>
#include <QString>

class QLineEdit;
class QListWidget;

namespace shardlens::gui {

class ActionRegistry;

// An entry of the palette: a command, or a place to go to.
struct PaletteEntry {
  QString title, hint;
  std::function<void()> run;
};

// Finds entries by typing; Enter runs the current one. `search` is called again on every change of
// the text.
class CommandPalette : public QDialog {
  Q_OBJECT
 public:
  using Search = std::function<std::vector<PaletteEntry>(const QString& text)>;
  CommandPalette(const QString& prompt, Search search, QWidget* parent);
  [[nodiscard]] QLineEdit& edit() { return *edit_; }
  [[nodiscard]] int count() const { return static_cast<int>(entries_.size()); }

 protected:
  bool eventFilter(QObject* watched, QEvent* event) override;

 private:
  void find(const QString& text);
  void runChosen();
  Search search_;
  QLineEdit* edit_;
  QListWidget* list_;
  std::vector<PaletteEntry> entries_;
};

// All commands that have shortcuts, by menu.
class ShortcutSheet : public QDialog {
  Q_OBJECT
 public:
  ShortcutSheet(const ActionRegistry& actions, QWidget* parent);
};

}  // namespace shardlens::gui
