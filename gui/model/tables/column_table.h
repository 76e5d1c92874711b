#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include <QAbstractTableModel>
#include <QString>

#include "core/base/units.h"

namespace shardlens::gui {

// A table whose columns are functions of the row number. Sorting permutes the row numbers, so that
// a row takes four bytes and no cell is stored.
class ColumnTable : public QAbstractTableModel {
  Q_OBJECT
 public:
  // How a column shows its keys, which are nanoseconds. All rows have one unit, so that their
  // digits compare; a text "–" stays.
  enum class Scale : uint8_t {
    kNone,      // shows the text
    kDuration,  // as durationText() of the key and the largest one
    kInstant,   // the unit of the largest key, to the microsecond
    kEvent,     // "1234.567 µs": to the nanosecond, whatever the longest event is
  };
  struct Column {
    QString title;
    std::function<QString(size_t row)> text;
    // Sort key; nullptr: sorted by the text.
    std::function<double(size_t row)> key = nullptr;
    bool right = false;  // right-aligned, for numbers
    QString help = {};   // tooltip of the title
    Scale scale = Scale::kNone;
    bool can_fail = false;  // see setErrors()
  };
  // Rows below a title of their own.
  struct Section {
    QString title;
    std::vector<uint32_t> rows;
  };
  static constexpr int kRowRole = Qt::UserRole;           // the row's number before sorting
  static constexpr int kEmphasisRole = Qt::UserRole + 1;  // bool: the row is emphasized
  static constexpr int kErrorRole = Qt::UserRole + 2;     // bool: the cell is in the error colour
  static constexpr int kTitleRole = Qt::UserRole + 3;     // bool: the row is a section's title

  explicit ColumnTable(std::vector<Column> columns, QObject* parent = nullptr);

  // Shows rows 0 … count − 1 of the data that the functions now read.
  void reset(size_t count);
  // Shows these rows, in this order.
  void reset(std::vector<uint32_t> rows);
  // Shows the sections that have rows, each below its title. Titles can be neither selected nor
  // reached with the keyboard, are no part of copies, and stay where they are when rows are sorted.
  void reset(std::vector<Section> sections);
  void setTooltip(std::function<QString(size_t row)> tooltip) { tooltip_ = std::move(tooltip); }
  void setEmphasis(std::function<bool(size_t row)> emphasis) { emphasis_ = std::move(emphasis); }
  // Rows whose cells in columns with Column::can_fail are in the error colour.
  void setErrors(std::function<bool(size_t row)> errors) { errors_ = std::move(errors); }
  [[nodiscard]] size_t rowAt(const QModelIndex& index) const;  // not of a title
  [[nodiscard]] bool isTitle(const QModelIndex& index) const;
  [[nodiscard]] QModelIndex indexOf(size_t row) const;  // invalid: the row is not shown

  [[nodiscard]] int rowCount(const QModelIndex& parent = {}) const override;
  [[nodiscard]] int columnCount(const QModelIndex& parent = {}) const override;
  [[nodiscard]] QVariant data(const QModelIndex& index, int role) const override;
  [[nodiscard]] Qt::ItemFlags flags(const QModelIndex& index) const override;
  [[nodiscard]] QVariant headerData(int section,
                                    Qt::Orientation orientation,
                                    int role) const override;
  // The order also applies to later reset()s; column −1: unsorted.
  void sort(int column, Qt::SortOrder order) override;

 private:
  // A title's number in rows_ is kTitle + its position in titles_; numbers of rows are smaller.
  static constexpr uint32_t kTitle = 1U << 31U;
  void show(std::vector<uint32_t> rows, std::vector<QString> titles);
  void sortRows();
  void sortRange(size_t begin, size_t end);  // of rows_, without titles
  [[nodiscard]] QString textOf(const Column& column, size_t row) const;
  std::vector<Column> columns_;
  std::vector<uint32_t> rows_;
  std::vector<QString> titles_;
  std::vector<Nanoseconds> largest_;  // by column, of durations
  int sorted_by_ = -1;
  Qt::SortOrder sorted_ = Qt::AscendingOrder;
  std::function<QString(size_t)> tooltip_;
  std::function<bool(size_t)> emphasis_, errors_;
};

// The whole model as CSV (RFC 4180), without titles of sections; for trees the first column is
// indented by depth.
[[nodiscard]] QByteArray to_csv(const QAbstractItemModel& model);

}  // namespace shardlens::gui
