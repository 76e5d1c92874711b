#pragma once

#include <functional>
#include <vector>

#include <QDialog>
#include <QString>

class QLineEdit;
class QListWidget;

namespace shardlens::gui {

class ActionRegistry;

// Something that the palette offers: a command, or a place to go to.
struct PaletteEntry {
  QString title, hint;
  std::function<void()> run;
};

// Type to find, Enter to run. Entries are asked for with every letter.
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

// All commands with their shortcuts, by menu.
class ShortcutSheet : public QDialog {
  Q_OBJECT
 public:
  ShortcutSheet(const ActionRegistry& actions, QWidget* parent);
};

}  // namespace shardlens::gui
