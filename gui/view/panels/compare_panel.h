#pragma once

#include "gui/model/compare/comparison_tree.h"
#include "gui/view/panel_parts/waterfall_plot.h"
#include "gui/view/panels/panel.h"

class QComboBox;
class QLabel;
class QPushButton;
class QTreeView;

namespace shardlens::gui {

class ShareDelegate;

// Compares two runs: where the change of the step time comes from, and everything that changed.
class ComparePanel final : public Panel {
  Q_OBJECT
 public:
  explicit ComparePanel(const PanelContext& context);
  void setTheme(const Theme& theme) override;
  [[nodiscard]] QComboBox& by() { return *by_; }
  [[nodiscard]] WaterfallPlot& plot() { return *plot_; }
  ComparisonTree tree;

 protected:
  void selectionChanged() override;
  void describe(const QModelIndex& index, MenuTarget& target) const override {
    target.unit = tree.unitAt(index);
  }

 private:
  void makeBody();
  void showComparison();
  void fitTree();
  [[nodiscard]] QString headlineOf(const check::CheckResult& result) const;
  QWidget* body_ = nullptr;  // everything but the headline; shown with a comparison
  QPushButton* open_;        // shown without a comparison
  QLabel* headline_;
  QComboBox* by_;
  QTreeView* view_;
  WaterfallPlot* plot_;
  QLabel* story_;
  ShareDelegate* share_;
};

}  // namespace shardlens::gui
