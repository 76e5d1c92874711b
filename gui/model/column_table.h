#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include <QAbstractTableModel>
#include <QString>

namespace shardlens::gui {

// A table by columns of functions: rows are numbers, sorted by permutation, so that a million of
// them cost four bytes each and no cell stands in memory.
class ColumnTable : public QAbstractTableModel {
  Q_OBJECT
 public:
  struct Column {
    QString title;
    std::function<QString(size_t row)> text;
    // What it is sorted by; without, by the text.
    std::function<double(size_t row)> key = nullptr;
    bool right = false;  // numbers
    QString help = {};   // tooltip of the title
  };
  static constexpr int kRowRole = Qt::UserRole;           // the row's number before sorting
  static constexpr int kEmphasisRole = Qt::UserRole + 1;  // bool: the row stands out

  explicit ColumnTable(std::vector<Column> columns, QObject* parent = nullptr);

  // Rows 0 … count − 1 of what the functions now speak of.
  void reset(size_t count);
  // The rows named, in this order.
  void reset(std::vector<uint32_t> rows);
  void setTooltip(std::function<QString(size_t row)> tooltip) { tooltip_ = std::move(tooltip); }
  void setEmphasis(std::function<bool(size_t row)> emphasis) { emphasis_ = std::move(emphasis); }
  [[nodiscard]] size_t rowAt(const QModelIndex& index) const;
  [[nodiscard]] QModelIndex indexOf(size_t row) const;  // invalid: not listed

  [[nodiscard]] int rowCount(const QModelIndex& parent = {}) const override;
  [[nodiscard]] int columnCount(const QModelIndex& parent = {}) const override;
  [[nodiscard]] QVariant data(const QModelIndex& index, int role) const override;
  [[nodiscard]] QVariant headerData(int section,
                                    Qt::Orientation orientation,
                                    int role) const override;
  // Kept for what reset() shows next; column −1: as they come.
  void sort(int column, Qt::SortOrder order) override;

 private:
  void sortRows();
  std::vector<Column> columns_;
  std::vector<uint32_t> rows_;
  int sorted_by_ = -1;
  Qt::SortOrder sorted_ = Qt::AscendingOrder;
  std::function<QString(size_t)> tooltip_;
  std::function<bool(size_t)> emphasis_;
};

// All that the model shows, as RFC 4180 writes it; trees indent the first column by depth.
[[nodiscard]] QByteArray to_csv(const QAbstractItemModel& model);

}  // namespace shardlens::gui
