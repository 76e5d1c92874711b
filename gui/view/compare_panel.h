#pragma once

#include <optional>
#include <string>
#include <vector>

#include <QWidget>

#include "gui/model/compare_session.h"
#include "gui/model/comparison_tree.h"
#include "gui/view/theme.h"

class QComboBox;
class QLabel;
class QPushButton;
class QTreeView;

namespace shardlens::gui {

class ShareDelegate;

// From A's step to B's, part by part: each bar begins where the one above it ended.
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
  // What the step consists of; the changes sum to the step's.
  [[nodiscard]] const std::vector<Part>& parts() const { return parts_; }
  [[nodiscard]] QSize minimumSizeHint() const override;

 protected:
  void paintEvent(QPaintEvent* event) override;

 private:
  const Theme* theme_;
  std::optional<check::Effect> step_;
  std::vector<Part> parts_;
};

// Two runs beside each other: where the change of a step comes from, and every thing that changed.
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
  QWidget* body_ = nullptr;      // all but the headline; with a comparison
  QPushButton* open_ = nullptr;  // without a comparison
  QLabel* headline_;
  QComboBox* by_;
  QTreeView* view_;
  WaterfallPlot* plot_;
  QLabel* story_;
  ShareDelegate* share_;
};

}  // namespace shardlens::gui
