#include "gui/model/tables/column_table.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <utility>

#include "gui/model/base/time_axis.h"
#include "gui/model/tables/column_header.h"

namespace shardlens::gui {
namespace {

constexpr double kNoKey = 1e299;  // keys of rows without a value are greater, or less than −1e299

QByteArray quoted(const QString& text) {
  QString out = text;
  if (out.contains(u'"') || out.contains(u',') || out.contains(u'\n')) {
    out.replace(QStringLiteral("\""), QStringLiteral("\"\""));
    out = QStringLiteral("\"%1\"").arg(out);
  }
  return out.toUtf8();
}

void append_rows(const QAbstractItemModel& model,
                 const QModelIndex& parent,
                 int depth,
                 QByteArray& out) {
  for (int row = 0; row < model.rowCount(parent); ++row) {
    if (model.data(model.index(row, 0, parent), ColumnTable::kTitleRole).toBool()) {
      continue;
    }
    for (int column = 0; column < model.columnCount(parent); ++column) {
      const QModelIndex index = model.index(row, column, parent);
      QString text = model.data(index).toString();
      if (column == 0) {
        text.prepend(QString(2 * depth, u' '));
      }
      out += (column == 0 ? "" : ",") + quoted(text);
    }
    out += "\r\n";
    append_rows(model, model.index(row, 0, parent), depth + 1, out);
  }
}

}  // namespace

ColumnTable::ColumnTable(std::vector<Column> columns, QObject* parent)
    : QAbstractTableModel(parent), columns_(std::move(columns)) {}

void ColumnTable::reset(size_t count) {
  std::vector<uint32_t> rows(std::min<size_t>(count, std::numeric_limits<int>::max()));
  std::iota(rows.begin(), rows.end(), 0U);
  reset(std::move(rows));
}

void ColumnTable::reset(std::vector<uint32_t> rows) {
  show(std::move(rows), {});
}

void ColumnTable::reset(std::vector<Section> sections) {
  std::vector<uint32_t> rows;
  std::vector<QString> titles;
  for (Section& section : sections) {
    if (!section.rows.empty()) {
      rows.push_back(kTitle + static_cast<uint32_t>(titles.size()));
      rows.insert(rows.end(), section.rows.begin(), section.rows.end());
      titles.push_back(std::move(section.title));
    }
  }
  show(std::move(rows), std::move(titles));
}

void ColumnTable::show(std::vector<uint32_t> rows, std::vector<QString> titles) {
  beginResetModel();
  rows_ = std::move(rows);
  titles_ = std::move(titles);
  largest_.assign(columns_.size(), 0);
  for (size_t c = 0; c < columns_.size(); ++c) {
    for (size_t i = 0; columns_[c].scale != Scale::kNone && i < rows_.size(); ++i) {
      const double key = rows_[i] < kTitle ? columns_[c].key(rows_[i]) : 0;
      if (std::abs(key) < kNoKey) {
        largest_[c] = std::max(largest_[c], static_cast<Nanoseconds>(std::abs(key)));
      }
    }
  }
  if (sorted_by_ >= 0) {
    sortRows();
  }
  endResetModel();
}

QString ColumnTable::textOf(const Column& column, size_t row) const {
  const QString text = column.text(row);
  if (column.scale == Scale::kNone || text == QStringLiteral("–")) {
    return text;
  }
  constexpr Nanoseconds kMicroseconds = 99'999;  // are shown as such up to here
  const auto value = static_cast<Nanoseconds>(column.key(row));
  const Nanoseconds largest = largest_[static_cast<size_t>(&column - columns_.data())];
  return column.scale == Scale::kInstant
             ? timeText(value, 1e3, largest)
             : durationText(value, column.scale == Scale::kEvent ? std::min(largest, kMicroseconds)
                                                                 : largest);
}

size_t ColumnTable::rowAt(const QModelIndex& index) const {
  return rows_[static_cast<size_t>(index.row())];
}

bool ColumnTable::isTitle(const QModelIndex& index) const {
  return index.isValid() && rows_[static_cast<size_t>(index.row())] >= kTitle;
}

QModelIndex ColumnTable::indexOf(size_t row) const {
  const auto found = std::find(rows_.begin(), rows_.end(), static_cast<uint32_t>(row));
  return found == rows_.end() ? QModelIndex() : index(static_cast<int>(found - rows_.begin()), 0);
}

int ColumnTable::rowCount(const QModelIndex& parent) const {
  return parent.isValid() ? 0 : static_cast<int>(rows_.size());
}

int ColumnTable::columnCount(const QModelIndex& parent) const {
  return parent.isValid() ? 0 : static_cast<int>(columns_.size());
}

QVariant ColumnTable::data(const QModelIndex& index, int role) const {
  if (!checkIndex(index, CheckIndexOption::IndexIsValid)) {
    return {};
  }
  const Column& column = columns_[static_cast<size_t>(index.column())];
  const size_t row = rowAt(index);
  if (isTitle(index)) {
    return role == kTitleRole                               ? QVariant(true)
           : role == Qt::DisplayRole && index.column() == 0 ? QVariant(titles_[row - kTitle])
                                                            : QVariant();
  }
  switch (role) {
    case Qt::DisplayRole:
      return textOf(column, row);
    case Qt::TextAlignmentRole:
      return static_cast<int>((column.right ? Qt::AlignRight : Qt::AlignLeft) | Qt::AlignVCenter);
    case Qt::ToolTipRole:
      return tooltip_ ? QVariant(tooltip_(row)) : QVariant();
    case kRowRole:
      return static_cast<qulonglong>(row);
    case kEmphasisRole:
      return emphasis_ && emphasis_(row);
    case kErrorRole:
      return column.can_fail && errors_ && errors_(row);
    default:
      return {};
  }
}

Qt::ItemFlags ColumnTable::flags(const QModelIndex& index) const {
  return isTitle(index) ? Qt::ItemNeverHasChildren : QAbstractTableModel::flags(index);
}

QVariant ColumnTable::headerData(int section, Qt::Orientation orientation, int role) const {
  if (orientation != Qt::Horizontal || section < 0 || section >= columnCount()) {
    return {};
  }
  const Column& column = columns_[static_cast<size_t>(section)];
  return header_of(column.title, column.help, column.right, role);
}

void ColumnTable::sortRows() {
  for (size_t begin = 0; begin < rows_.size();) {
    size_t end = begin;
    while (end < rows_.size() && rows_[end] < kTitle) {
      ++end;
    }
    sortRange(begin, end);
    begin = end + 1;
  }
}

void ColumnTable::sortRange(size_t begin, size_t end) {
  const std::span range = std::span(rows_).subspan(begin, end - begin);
  const auto sort_rows = [this, range](const auto& keys) {
    std::vector<uint32_t> permutation(range.size());
    std::iota(permutation.begin(), permutation.end(), 0U);
    std::stable_sort(permutation.begin(), permutation.end(), [&](uint32_t a, uint32_t b) {
      return sorted_ == Qt::AscendingOrder ? keys[a] < keys[b] : keys[b] < keys[a];
    });
    std::vector<uint32_t> sorted;
    sorted.reserve(range.size());
    for (const uint32_t i : permutation) {
      sorted.push_back(range[i]);
    }
    std::ranges::copy(sorted, range.begin());
  };
  const Column& by = columns_[static_cast<size_t>(sorted_by_)];
  if (by.key) {
    std::vector<double> keys;
    keys.reserve(range.size());
    for (const uint32_t row : range) {
      keys.push_back(by.key(row));
    }
    sort_rows(keys);
  } else {
    std::vector<QString> keys;
    keys.reserve(range.size());
    for (const uint32_t row : range) {
      keys.push_back(by.text(row));
    }
    sort_rows(keys);
  }
}

void ColumnTable::sort(int column, Qt::SortOrder order) {
  sorted_by_ = column < columnCount() ? column : -1;
  sorted_ = order;
  if (sorted_by_ < 0) {
    return;
  }
  emit layoutAboutToBeChanged({}, VerticalSortHint);
  const QModelIndexList before = persistentIndexList();
  std::vector<size_t> kept;
  kept.reserve(static_cast<size_t>(before.size()));
  for (const QModelIndex& index : before) {
    kept.push_back(rowAt(index));
  }
  sortRows();
  for (qsizetype i = 0; i < before.size(); ++i) {
    const QModelIndex moved = indexOf(kept[static_cast<size_t>(i)]);
    changePersistentIndex(before[i], moved.siblingAtColumn(before[i].column()));
  }
  emit layoutChanged({}, VerticalSortHint);
}

QByteArray to_csv(const QAbstractItemModel& model) {
  QByteArray out;
  for (int column = 0; column < model.columnCount(); ++column) {
    out += (column == 0 ? "" : ",") + quoted(model.headerData(column, Qt::Horizontal).toString());
  }
  out += "\r\n";
  append_rows(model, {}, 0, out);
  return out;
}

}  // namespace shardlens::gui
