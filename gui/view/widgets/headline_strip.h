#pragma once

#include <optional>
#include <vector>

#include <QWidget>

#include "gui/model/run/selection_context.h"
#include "gui/view/widgets/theme.h"

class QComboBox;

namespace shardlens::gui {

// The parts of a window of a rank, as text and as one bar: compute + exposed communication +
// exposed copies + idle = the window. Each number is rounded by itself, as in every other view, so
// the rounded ones may differ from their sum by the last digit.
class HeadlineBar : public QWidget {
  Q_OBJECT
 public:
  explicit HeadlineBar(QWidget* parent = nullptr);
  void setTheme(const Theme& theme);
  void show(const QString& title, const analysis::WindowFigures& figures, const QString& note);
  void showProblem(const QString& text);  // instead of figures, in the error colour
  [[nodiscard]] QString text() const;     // as one line, for tests and screen readers
  [[nodiscard]] QSize minimumSizeHint() const override;

 protected:
  void paintEvent(QPaintEvent* event) override;

 private:
  struct Part {
    QString name, brief;
    Ink ink;
    Nanoseconds time = 0;
  };
  class Line;
  [[nodiscard]] std::vector<Part> parts() const;
  void drawBar(Canvas& canvas, const QRectF& bar) const;
  const Theme* theme_;
  QString title_, note_, problem_;
  analysis::WindowFigures figures_;
};

// The bar, with boxes to choose the rank and the step that it shows.
class HeadlineStrip : public QWidget {
  Q_OBJECT
 public:
  explicit HeadlineStrip(SelectionContext& context, QWidget* parent = nullptr);
  void setTheme(const Theme& theme) { bar_->setTheme(theme); }
  // Shows a range while it is dragged; nullopt: shows the selection again.
  void showRange(std::optional<analysis::Interval> range);
  [[nodiscard]] HeadlineBar& bar() { return *bar_; }

 private:
  void fill();    // fills the boxes after the run changed
  void update();  // after the selection changed
  SelectionContext& context_;
  QComboBox* ranks_;
  QComboBox* steps_;
  HeadlineBar* bar_;
};

}  // namespace shardlens::gui
