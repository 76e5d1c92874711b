#pragma once

#include <optional>
#include <string>
#include <vector>

#include <QWidget>

#include "gui/model/compare/compare_session.h"
#include "gui/model/compare/comparison_tree.h"
#include "gui/view/widgets/theme.h"

class QComboBox;
class QLabel;
class QPushButton;
class QTreeView;

namespace shardlens::gui {

class ShareDelegate;

// The change from A's step time to B's, part by part: each bar starts where the bar above it ends.
class WaterfallPlot : public QWidget {
  Q_OBJECT
 public:
  explicit WaterfallPlot(QWidget* parent = nullptr);
  void setTheme(const Theme& theme);
  void show(std::shared_ptr<const check::Comparison> comparison);
  struct Part {
    QString name;
    Ink ink = Ink::kIdle;
    double delta = 0;  // ns per step
  };
  // The parts of the step; their changes sum to the step's change.
  [[nodiscard]] const std::vector<Part>& parts() const { return parts_; }
  [[nodiscard]] QSize minimumSizeHint() const override;

 protected:
  void paintEvent(QPaintEvent* event) override;

 private:
  const Theme* theme_;
  std::optional<check::Effect> step_;
  std::vector<Part> parts_;
};

// Compares two runs: where the change of the step time comes from, and everything that changed.
class ComparePanel : public QWidget {
  Q_OBJECT
 public:
  explicit ComparePanel(CompareSession& session, QWidget* parent = nullptr);
  void setTheme(const Theme& theme);
  [[nodiscard]] QTreeView& view() { return *view_; }
  [[nodiscard]] QComboBox& by() { return *by_; }
  [[nodiscard]] WaterfallPlot& plot() { return *plot_; }
  [[nodiscard]] QString headline() const;
  ComparisonTree tree;

 signals:
  void unitChosen(const QString& unit);
  void openRequested();

 private:
  void update();
  CompareSession& session_;
  QWidget* body_ = nullptr;      // everything but the headline; shown with a comparison
  QPushButton* open_ = nullptr;  // shown without a comparison
  QLabel* headline_;
  QComboBox* by_;
  QTreeView* view_;
  WaterfallPlot* plot_;
  QLabel* story_;
  ShareDelegate* share_;
};

}  // namespace shardlens::gui
