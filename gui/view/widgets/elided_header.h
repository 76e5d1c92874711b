#pragma once

#include <QHeaderView>

class QTableView;

namespace shardlens::gui {

// A header whose titles end with "…" where they are too long for their column; the tooltip has the
// whole title. With a style sheet Qt ignores textElideMode() and cuts the title at any letter.
class ElidedHeader : public QHeaderView {
  Q_OBJECT
 public:
  explicit ElidedHeader(QWidget* parent = nullptr);
  // The title as it is drawn.
  [[nodiscard]] QString shownTitle(int section) const;

 protected:
  void initStyleOptionForIndex(QStyleOptionHeader* option, int section) const override;
  bool viewportEvent(QEvent* event) override;

 private:
  [[nodiscard]] QString title(int section) const;
};

// Gives the table such a header, with the properties of a table's own header.
void elide_header(QTableView& view);

}  // namespace shardlens::gui
