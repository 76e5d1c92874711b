#include "gui/model/compare/comparison_tree.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "gui/model/base/shown_text.h"
#include "gui/model/base/time_axis.h"
#include "gui/model/base/words.h"

namespace shardlens::gui {
namespace {

QString unit_text(const std::string& fqn) {
  return shown_text(check::unit_name(fqn));
}

QString time_text(const std::optional<double>& value, double largest) {
  return value ? durationText(std::llround(*value), std::llround(largest)) : QStringLiteral("–");
}

QString change_text(double delta, double largest) {
  return deltaText(std::llround(delta), std::llround(largest));
}

void add_to(std::optional<double>& sum, const std::optional<double>& value) {
  if (value) {
    sum = sum.value_or(0) + *value;
  }
}

}  // namespace

ComparisonTree::ComparisonTree(QObject* parent)
    : TreeModel(
          {{tr("What"), tr("Matched by phase, unit, kind and occurrence, never by time; the "
                           "largest change first")},
           {tr("A"), tr("Time per step in run A, the open run"), true},
           {tr("B"), tr("Time per step in run B"), true},
           {tr("Δ"), tr("B minus A: ▲ longer, ▼ shorter"), true},
           {tr("Exposed A ▨"), tr("Time per step in A that did not overlap with compute"), true},
           {tr("Exposed B ▨"), tr("Time per step in B that did not overlap with compute"), true},
           {tr("Δ exposed"), tr("Exposed time in B minus exposed time in A"), true}},
          parent) {}

void ComparisonTree::Row::add(const Row& row) {
  add_to(a, row.a);
  add_to(b, row.b);
  add_to(exposed_a, row.exposed_a);
  add_to(exposed_b, row.exposed_b);
  delta += row.delta;
  within_noise = within_noise && row.within_noise;
}

ComparisonTree::Row ComparisonTree::row_of(const check::ItemChange& item) const {
  Row row;
  QStringList parts;
  if (by_ != By::kUnit) {
    parts.append(unit_text(item.key.unit));
  }
  if (by_ != By::kKind) {
    parts.append(words(item.key.kind));
  }
  if (by_ != By::kPhase) {
    parts.append(words(item.key.section));
  }
  row.what = parts.join(QStringLiteral(", "));
  if (item.key.occurrence > 0) {
    row.what += QStringLiteral(" #%1").arg(item.key.occurrence + 1);
  }
  row.unit = item.key.unit;
  row.a = item.baseline;
  row.b = item.candidate;
  row.exposed_a = item.baseline_exposed;
  row.exposed_b = item.candidate_exposed;
  row.delta = item.delta;
  row.within_noise = item.matched() && item.within_noise;
  return row;
}

std::vector<ComparisonTree::Group> ComparisonTree::groups_of(
    const check::Comparison& comparison) const {
  std::vector<Group> groups;
  std::map<std::string, size_t> known;
  const auto add = [&](const std::string& key, const QString& title, Row row) {
    const auto [found, fresh] = known.emplace(key, groups.size());
    if (fresh) {
      Group& group = groups.emplace_back();
      group.sum.what = title;
      group.sum.within_noise = true;
      if (by_ == By::kUnit) {
        group.sum.unit = row.unit;
      }
    }
    Group& group = groups[found->second];
    group.sum.add(row);
    group.rows.push_back(std::move(row));
  };
  if (by_ == By::kStep) {
    for (const check::AttributionRow& part : comparison.result.attribution) {
      Row row;
      row.what = unit_text(part.unit);
      row.unit = part.unit;
      row.a = part.baseline;
      row.b = part.candidate;
      row.delta = part.delta;
      add(part.part, words(part.part), std::move(row));
    }
    return groups;
  }
  for (const check::ItemChange& item : comparison.items) {
    const std::string& key = by_ == By::kUnit    ? item.key.unit
                             : by_ == By::kPhase ? item.key.section
                                                 : item.key.kind;
    add(key, by_ == By::kUnit ? unit_text(key) : words(key), row_of(item));
  }
  return groups;
}

void ComparisonTree::show(std::shared_ptr<const check::Comparison> comparison, By by) {
  beginResetModel();
  by_ = by;
  clearRows();
  rows_.clear();
  largest_ = 0;
  std::vector<Group> groups = comparison == nullptr ? std::vector<Group>() : groups_of(*comparison);
  const auto larger = [](const Row& x, const Row& y) {
    return std::abs(x.delta) > std::abs(y.delta);
  };
  std::stable_sort(groups.begin(), groups.end(),
                   [&](const Group& x, const Group& y) { return larger(x.sum, y.sum); });
  for (Group& group : groups) {
    std::stable_sort(group.rows.begin(), group.rows.end(), larger);
    largest_ = std::max(largest_, std::abs(group.sum.delta));
    const int parent = addRow(kTop);
    rows_.push_back(std::move(group.sum));
    for (Row& row : group.rows) {
      addRow(parent);
      rows_.push_back(std::move(row));
    }
  }
  findLargest();
  endResetModel();
}

void ComparisonTree::findLargest() {
  largest_of_ = {};
  for (const Row& row : rows_) {
    largest_of_.time = std::max({largest_of_.time, row.a.value_or(0), row.b.value_or(0)});
    largest_of_.delta = std::max(largest_of_.delta, std::abs(row.delta));
    largest_of_.exposed =
        std::max({largest_of_.exposed, row.exposed_a.value_or(0), row.exposed_b.value_or(0)});
    largest_of_.exposed_delta = std::max(largest_of_.exposed_delta, std::abs(row.exposed_delta()));
  }
}

double ComparisonTree::deltaAt(const QModelIndex& index) const {
  return index.isValid() ? at(index).delta : 0;
}

std::optional<std::string> ComparisonTree::unitAt(const QModelIndex& index) const {
  return index.isValid() ? at(index).unit : std::nullopt;
}

QVariant ComparisonTree::shown(const Row& row, int column) const {
  switch (column) {
    case kWhat:
      return row.what;
    case kA:
      return time_text(row.a, largest_of_.time);
    case kB:
      return time_text(row.b, largest_of_.time);
    case kDelta:
      return by_ != By::kStep && !row.a   ? tr("only in B")
             : by_ != By::kStep && !row.b ? tr("only in A")
                                          : change_text(row.delta, largest_of_.delta);
    case kExposedA:
      return time_text(row.exposed_a, largest_of_.exposed);
    case kExposedB:
      return time_text(row.exposed_b, largest_of_.exposed);
    default:
      return row.exposed_a || row.exposed_b
                 ? change_text(row.exposed_delta(), largest_of_.exposed_delta)
                 : QStringLiteral("–");
  }
}

QVariant ComparisonTree::data(const QModelIndex& index, int role) const {
  if (!checkIndex(index, CheckIndexOption::IndexIsValid)) {
    return {};
  }
  const Row& row = at(index);
  const bool unmatched = by_ != By::kStep && (!row.a || !row.b);
  switch (role) {
    case Qt::DisplayRole:
      return shown(row, index.column());
    case Qt::ToolTipRole:
      return unmatched          ? tr("%1: only in one of the runs").arg(row.what)
             : row.within_noise ? tr("%1: the change is within noise").arg(row.what)
                                : row.what;
    case Qt::TextAlignmentRole:
      return alignment(index.column());
    case kShareRole:
      return largest_ == 0 ? 0.0 : std::min(1.0, std::abs(row.delta) / largest_);
    case kNoiseRole:
      return row.within_noise;
    case kUnmatchedRole:
      return unmatched;
    default:
      return {};
  }
}

}  // namespace shardlens::gui
