#include "gui/model/tables/ownership_table.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <QRectF>

#include "core/base/dtype.h"
#include "gui/model/base/time_axis.h"
#include "gui/model/lanes/residency.h"

namespace shardlens::gui {
namespace {

QString shape_text(const std::vector<int64_t>& shape) {
  QStringList parts;
  for (const int64_t size : shape) {
    parts.append(QString::number(size));
  }
  return QStringLiteral("[%1]").arg(parts.join(QStringLiteral(", ")));
}

// "12–24" of elements, or the indices of each dimension, "[0–24, 45–90]".
QString elements_text(const plan::HeldPart& part, const std::vector<int64_t>& shape) {
  if (const auto range = part.elements(shape)) {
    return QStringLiteral("%1–%2").arg(range->first).arg(range->second);
  }
  QStringList boxes;
  for (const Box& box : part.boxes) {
    QStringList dims;
    for (size_t dim = 0; dim < box.shape.size(); ++dim) {
      dims.append(
          QStringLiteral("%1–%2").arg(box.offset[dim]).arg(box.offset[dim] + box.shape[dim]));
    }
    boxes.append(QStringLiteral("[%1]").arg(dims.join(QStringLiteral(", "))));
  }
  return boxes.join(QStringLiteral(" "));
}

QRectF part_area(const plan::HeldPart& part, const std::vector<int64_t>& shape) {
  if (part.boxes.empty()) {
    return {};
  }
  if (const auto range = part.elements(shape)) {
    const auto all = static_cast<double>(numel_of(shape));
    return {static_cast<double>(range->first) / all, 0,
            static_cast<double>(range->second - range->first) / all, 1};
  }
  const Box& box = part.boxes.front();
  QRectF out(0, 0, 1, 1);
  bool across = true;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    if (box.shape[dim] == shape[dim]) {
      continue;
    }
    const auto all = static_cast<double>(shape[dim]);
    const double begin = static_cast<double>(box.offset[dim]) / all;
    const double size = static_cast<double>(box.shape[dim]) / all;
    out = across ? QRectF(begin, 0, size, 1) : QRectF(out.x(), begin, out.width(), size);
    across = false;
  }
  return out;
}

}  // namespace

UnitStates unit_states(std::span<const Residency> residencies, Nanoseconds instant) {
  using State = OwnershipTable::State;
  UnitStates states;
  for (const Residency& held : residencies) {  // by start, and those of a unit do not overlap
    if (held.usable <= instant) {
      states[held.unit] = instant < held.when.end ? State::kUnsharded : State::kSharded;
    }
  }
  return states;
}

void OwnershipTable::show(RunPointer run,
                          size_t rank,
                          const std::optional<std::string>& unit,
                          Nanoseconds instant,
                          const PlanPointer& recovered) {
  run = run != nullptr && rank < run->ranks.size() ? std::move(run) : nullptr;
  const PlanPointer own = plan_of(run);
  const PlanPointer plan = own == nullptr ? recovered : own;
  // A reset would take away the view's current row and interrupt a double click.
  if (run != nullptr && run == shown_ && rank == rank_ && unit == unit_ && plan == plan_) {
    if (instant != instant_ && !rows_.empty()) {
      setInstant(rank, instant);
      emit dataChanged(index(0, 0), index(rowCount() - 1, columnCount() - 1));
    }
    return;
  }
  beginResetModel();
  run_ = shown_ = std::move(run);
  plan_ = plan;
  rank_ = rank;
  unit_ = unit;
  rows_.clear();
  states_.clear();
  why_ = run_ == nullptr ? tr("No run is open.") : QString();
  if (run_ != nullptr && plan_ == nullptr) {
    why_ = tr(
        "Ownership needs the run's plan. A capture directory contains it. For PyTorch's traces it "
        "is recovered if they have the shapes of operators and the sizes of collectives "
        "(record_shapes=True).");
    if (!run_->run.plan_problem.empty()) {
      why_ = tr("The plan.json next to the traces could not be used: %1")
                 .arg(QString::fromStdString(run_->run.plan_problem));
    }
    run_.reset();
  }
  if (run_ != nullptr) {
    list(unit);
    sumUp();
    setInstant(rank, instant);
  }
  endResetModel();
}

void OwnershipTable::list(const std::optional<std::string>& unit) {
  ownership_ = plan::Ownership(plan());
  rows_ = plan::parameter_places(plan());
  const bool known = unit && std::any_of(plan().units.begin(), plan().units.end(),
                                         [&](const plan::Unit& u) { return u.fqn == *unit; });
  if (known) {
    std::erase_if(rows_, [&](const plan::ParameterPlace& row) {
      return row.unit == kNoUnit || plan().units[row.unit].fqn != *unit;
    });
  }
}

void OwnershipTable::setInstant(size_t rank, Nanoseconds instant) {
  instant_ = instant;
  states_.clear();
  const UnitStates by_unit = unit_states(run_->ranks[rank]->residencies, instant);
  for (const plan::Unit& each : plan().units) {
    const auto at = by_unit.find(each.fqn);
    states_.push_back(at == by_unit.end() ? State::kUnknown : at->second);
  }
}

std::optional<std::string> OwnershipTable::unitAt(const QModelIndex& index) const {
  const UnitId unit = rows_[static_cast<size_t>(index.row())].unit;
  return unit == kNoUnit ? std::nullopt : std::optional(plan().units[unit].fqn);
}

int OwnershipTable::rowCount(const QModelIndex& parent) const {
  return parent.isValid() ? 0 : static_cast<int>(rows_.size());
}

int OwnershipTable::columnCount(const QModelIndex& parent) const {
  return parent.isValid()
             ? 0
             : kFixedColumns + (run_ == nullptr ? 0 : static_cast<int>(plan().world_size));
}

plan::HeldPart OwnershipTable::part(const QModelIndex& index) const {
  return ownership_.part(rows_[static_cast<size_t>(index.row())], index.column() - kFixedColumns);
}

// The text of a fixed column: the parameter, its shape or its state.
QVariant OwnershipTable::fixedText(const QModelIndex& index, int role) const {
  const plan::ParameterPlace& row = rows_[static_cast<size_t>(index.row())];
  const plan::Parameter& parameter = plan().tree.parameters[row.parameter];
  const bool ignored = row.unit == kNoUnit;
  const QString name = QString::fromStdString(parameter.fqn);
  switch (index.column()) {
    case 0:
      return role != Qt::ToolTipRole ? name
             : ignored ? tr("%1: ignored by the plan, every rank holds all of it").arg(name)
                       : tr("%1, in unit %2")
                             .arg(name, QString::fromStdString(unit_label(*unitAt(index))));
    case 1:
      return shape_text(parameter.shape);
    default:
      return ignored                             ? tr("ignored")
             : stateAt(index) == State::kUnknown ? tr("–")
             : stateAt(index) == State::kSharded ? tr("sharded")
                                                 : tr("unsharded");
  }
}

QString OwnershipTable::partHelp(const QModelIndex& index) const {
  const plan::ParameterPlace& row = rows_[static_cast<size_t>(index.row())];
  const plan::Parameter& parameter = plan().tree.parameters[row.parameter];
  const plan::HeldPart held = part(index);
  const QString name = QString::fromStdString(parameter.fqn);
  if (held.boxes.empty()) {
    return tr("no elements of %1: this rank's shard holds other parameters or padding").arg(name);
  }
  if (row.unit == kNoUnit) {
    return held.numel() == parameter.numel ? tr("all %1 elements").arg(parameter.numel)
                                           : tr("%1 of %2, %3 of %4 elements")
                                                 .arg(elements_text(held, parameter.shape), name)
                                                 .arg(held.numel())
                                                 .arg(parameter.numel);
  }
  const auto range = held.elements(parameter.shape);
  const QString elements =
      range
          ? tr("elements [%1, %2) of %3").arg(range->first).arg(range->second).arg(parameter.numel)
          : tr("elements %1, %2 of %3")
                .arg(elements_text(held, parameter.shape))
                .arg(held.numel())
                .arg(parameter.numel);
  const Bytes bytes = size_of(plan().master_dtype(row.unit));  // that of the shard
  return tr("%1, bytes [%2, %3) of the rank's shard%4")
      .arg(elements)
      .arg(held.shard_begin * bytes)
      .arg((held.shard_begin + held.numel()) * bytes)
      .arg(held.padding > 0 ? tr(", then %1 of padding").arg(held.padding) : QString());
}

OwnershipTable::State OwnershipTable::stateAt(const QModelIndex& index) const {
  const UnitId unit = rows_[static_cast<size_t>(index.row())].unit;
  return unit == kNoUnit ? State::kUnknown : states_[unit];
}

QVariant OwnershipTable::data(const QModelIndex& index, int role) const {
  if (!checkIndex(index, CheckIndexOption::IndexIsValid)) {
    return {};
  }
  if (role == kStateRole) {
    return static_cast<int>(stateAt(index));
  }
  if (index.column() < kFixedColumns) {
    return role == Qt::DisplayRole || role == Qt::ToolTipRole ? fixedText(index, role) : QVariant();
  }
  const std::vector<int64_t>& shape =
      plan().tree.parameters[rows_[static_cast<size_t>(index.row())].parameter].shape;
  switch (role) {
    case Qt::DisplayRole: {
      const plan::HeldPart held = part(index);
      return held.boxes.empty() ? QStringLiteral("∅") : elements_text(held, shape);
    }
    case Qt::ToolTipRole:
      return partHelp(index);
    case kPartRole:
      return part_area(part(index), shape);
    case Qt::TextAlignmentRole:
      return static_cast<int>(Qt::AlignCenter);
    default:
      return {};
  }
}

Bytes OwnershipTable::kept(int64_t rank) const {
  return kept_[static_cast<size_t>(rank)];
}

// In the dtype of the shards, without padding. Headers are painted often, so all ranks at once.
void OwnershipTable::sumUp() {
  kept_.assign(static_cast<size_t>(plan().world_size), 0);
  whole_ = 0;
  for (const plan::ParameterPlace& row : rows_) {
    const plan::Parameter& parameter = plan().tree.parameters[row.parameter];
    whole_ += parameter.numel *
              size_of(row.unit == kNoUnit ? parameter.dtype : plan().master_dtype(row.unit));
    const DType dtype = row.unit == kNoUnit ? parameter.dtype : plan().master_dtype(row.unit);
    for (size_t rank = 0; rank < kept_.size(); ++rank) {
      kept_[rank] += ownership_.part(row, static_cast<int64_t>(rank)).numel() * size_of(dtype);
    }
  }
}

int OwnershipTable::columnOfRank() const {
  return run_ != nullptr && shownRank() < plan().world_size
             ? kFixedColumns + static_cast<int>(shownRank())
             : 0;
}

QString OwnershipTable::summary() const {
  if (run_ == nullptr || rows_.empty()) {
    return {};
  }
  QString out = tr("%1, %2").arg(
      countText(static_cast<qlonglong>(rows_.size()), tr("parameter"), tr("parameters")),
      bytesText(whole_));
  const auto [least, most] = std::ranges::minmax_element(kept_);
  const QString low = bytesText(*least), high = bytesText(*most);
  if (low == high) {
    return tr("%1; each rank keeps %2").arg(out, high);
  }
  const QString all = tr("%1 to %2").arg(low, high);
  return columnOfRank() == 0 ? tr("%1; the ranks keep %2").arg(out, all)
                             : tr("%1; rank %2 keeps %3, all ranks %4")
                                   .arg(out)
                                   .arg(shownRank())
                                   .arg(bytesText(kept(shownRank())), all);
}

QVariant OwnershipTable::headerData(int section, Qt::Orientation orientation, int role) const {
  if (orientation == Qt::Horizontal && role == Qt::ToolTipRole && section >= kFixedColumns) {
    return tr("rank %1 keeps %2 of the parameters in this table")
        .arg(section - kFixedColumns)
        .arg(bytesText(kept(section - kFixedColumns)));
  }
  if (orientation != Qt::Horizontal || role != Qt::DisplayRole) {
    return {};
  }
  constexpr const char* kTitles[] = {"Parameter", "Shape", "Now"};
  return section < kFixedColumns ? QString::fromUtf8(kTitles[section])
                                 : tr("rank %1: %2")
                                       .arg(section - kFixedColumns)
                                       .arg(bytesText(kept(section - kFixedColumns)));
}

}  // namespace shardlens::gui
