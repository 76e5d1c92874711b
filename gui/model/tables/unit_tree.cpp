#include "gui/model/tables/unit_tree.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "core/base/dtype.h"
#include "core/base/format_bytes.h"
#include "gui/model/base/time_axis.h"
#include "gui/model/plan/module_edits.h"
#include "gui/model/tables/column_header.h"
#include "profiler/report/table.h"

namespace shardlens::gui {
namespace {

using analysis::PartFigures;
using analysis::UnitFigures;
using analysis::UnitPart;

Nanoseconds exposed_of(const UnitFigures& unit, UnitPart part) {
  const std::optional<PartFigures>& figures = unit.parts[static_cast<size_t>(part)];
  return figures ? figures->exposed : 0;
}

QString duration_or_dash(Nanoseconds value) {
  return value == 0 ? QStringLiteral("–") : durationText(value);
}

// Bytes of one all-gather of the unit, for runs without a plan.
Bytes gathered_bytes(const UnitFigures& unit) {
  for (const auto& part : unit.parts) {
    if (part && part->count > 0 && part->bytes > 0) {
      return part->bytes / part->count;
    }
  }
  return 0;
}

}  // namespace

void UnitTree::show(RunPointer run, size_t rank, const PlanPointer& recovered) {
  beginResetModel();
  run_ = run != nullptr && rank < run->ranks.size() ? std::move(run) : nullptr;
  plan_ = plan_of(run_);
  plan_ = plan_ == nullptr ? recovered : plan_;
  rank_ = rank;
  nodes_.clear();
  top_.clear();
  if (run_ != nullptr) {
    plan_ != nullptr ? addModules() : addUnits();
    addOwners();
    fold();
    sumUp(run_->ranks[rank_]->figures.units);
  }
  endResetModel();
}

int UnitTree::addNode(int parent, Node node) {
  const int id = static_cast<int>(nodes_.size());
  node.parent = parent;
  nodes_.push_back(std::move(node));
  (parent < 0 ? top_ : nodes_[static_cast<size_t>(parent)].children).push_back(id);
  return id;
}

void UnitTree::addModules() {
  const plan::ResolvedPlan& plan = *plan_;
  std::map<uint32_t, std::string> unit_of_module;
  for (const plan::Unit& unit : plan.units) {
    for (const uint32_t module : unit.modules) {
      unit_of_module.emplace(module, unit.fqn);
    }
  }
  std::vector<int> node_of(plan.tree.modules.size(), -1);
  for (uint32_t m = 0; m < plan.tree.modules.size(); ++m) {
    const plan::Module& module = plan.tree.modules[m];
    Node node;
    const size_t dot = module.fqn.rfind('.');
    node.name = module.fqn.empty()
                    ? tr("model")
                    : QString::fromStdString(dot == std::string::npos ? module.fqn
                                                                      : module.fqn.substr(dot + 1));
    // A plan recovered from a trace has no module types.
    node.type = plan_of(run_) == nullptr ? QString() : QString::fromStdString(module.type);
    node.module = static_cast<int>(m);
    if (const auto unit = unit_of_module.find(m); unit != unit_of_module.end()) {
      node.unit = unit->second;
    }
    for (const uint32_t p : plan.tree.subtree_parameters(m)) {
      node.bytes += plan.tree.parameters[p].numel * size_of(DType::kF32);
    }
    node_of[m] = addNode(m == 0 ? -1 : node_of[module.parent], std::move(node));
  }
}

void UnitTree::addUnits() {
  std::map<std::string, int> known;
  const std::function<int(const std::string&)> node_for = [&](const std::string& fqn) -> int {
    if (const auto found = known.find(fqn); found != known.end()) {
      return found->second;
    }
    const size_t dot = fqn.rfind('.');
    int parent = -1;
    if (dot != std::string::npos) {
      parent = node_for(fqn.substr(0, dot));
    } else if (!fqn.empty() && known.contains("")) {
      parent = known[""];
    }
    Node node;
    node.name = fqn.empty()
                    ? tr("model")
                    : QString::fromStdString(dot == std::string::npos ? fqn : fqn.substr(dot + 1));
    return known[fqn] = addNode(parent, std::move(node));
  };
  const std::vector<UnitFigures>& units = run_->ranks[rank_]->figures.units;
  for (const bool root : {true, false}) {
    for (const UnitFigures& unit : units) {
      if (unit.is_unit && unit.fqn.empty() == root) {
        Node& node = nodes_[static_cast<size_t>(node_for(unit.fqn))];
        node.unit = unit.fqn;
        node.bytes = gathered_bytes(unit);
      }
    }
  }
}

// Adds rows for owners that are not modules of the tree: sections, and units that are not in the
// plan (DDP's buckets).
void UnitTree::addOwners() {
  for (const UnitFigures& unit : run_->ranks[rank_]->figures.units) {
    const bool known = std::any_of(nodes_.begin(), nodes_.end(),
                                   [&unit](const Node& n) { return n.unit == unit.fqn; });
    if (!known) {
      Node node;
      node.name = QString::fromStdString(unit_label(unit.fqn));
      node.unit = unit.fqn;
      node.type = unit.is_unit ? QString() : tr("outside the units");
      addNode(-1, std::move(node));
    }
  }
}

// Two subtrees have the same structure if their signatures are equal.
std::string UnitTree::signature(int id) const {
  const Node& node = nodes_[static_cast<size_t>(id)];
  std::string text =
      node.type.toStdString() + ":" + std::to_string(node.bytes) + (node.unit ? "u" : "") + "(";
  for (const int child : node.children) {
    text += nodes_[static_cast<size_t>(child)].name.toStdString() + signature(child) + ",";
  }
  return text + ")";
}

std::vector<int> UnitTree::folded(int parent, std::vector<int> siblings) {
  std::vector<int> out;
  std::vector<std::string> signatures;
  for (const int id : siblings) {
    signatures.push_back(signature(id));
  }
  for (size_t i = 0; i < siblings.size();) {
    size_t end = i + 1;
    while (end < siblings.size() && signatures[end] == signatures[i]) {
      ++end;
    }
    bool numbered = true;
    nodes_[static_cast<size_t>(siblings[i])].name.toInt(&numbered);
    if (numbered && end - i >= kFoldFrom) {
      Node fold;
      fold.name =
          QStringLiteral("%1 … %2").arg(nodes_[static_cast<size_t>(siblings[i])].name,
                                        nodes_[static_cast<size_t>(siblings[end - 1])].name);
      fold.type = tr("%1 identical").arg(end - i);
      fold.parent = parent;
      fold.children.assign(siblings.begin() + static_cast<std::ptrdiff_t>(i),
                           siblings.begin() + static_cast<std::ptrdiff_t>(end));
      const int id = static_cast<int>(nodes_.size());
      for (const int child : fold.children) {
        nodes_[static_cast<size_t>(child)].parent = id;
        fold.bytes += nodes_[static_cast<size_t>(child)].bytes;
      }
      nodes_.push_back(std::move(fold));
      out.push_back(id);
    } else {
      out.insert(out.end(), siblings.begin() + static_cast<std::ptrdiff_t>(i),
                 siblings.begin() + static_cast<std::ptrdiff_t>(end));
    }
    i = end;
  }
  return out;
}

void UnitTree::fold() {
  const size_t count = nodes_.size();
  for (size_t i = 0; i < count; ++i) {
    std::vector<int> children = folded(static_cast<int>(i), nodes_[i].children);
    nodes_[i].children = std::move(children);
  }
  top_ = folded(-1, top_);
  const auto number = [this](const std::vector<int>& list) {
    for (size_t row = 0; row < list.size(); ++row) {
      nodes_[static_cast<size_t>(list[row])].row = static_cast<int>(row);
    }
  };
  number(top_);
  for (const Node& node : nodes_) {
    number(node.children);
  }
}

void UnitTree::sumUp(const std::vector<UnitFigures>& units) {
  std::map<std::string, const UnitFigures*> by_fqn;
  for (const UnitFigures& unit : units) {
    by_fqn.emplace(unit.fqn, &unit);
  }
  const std::function<void(int)> visit = [&](int id) {
    Node& node = nodes_[static_cast<size_t>(id)];
    node.units = node.unit && !node.unit->starts_with("<") ? 1 : 0;
    node.compute = node.gather = node.reduce = node.other = 0;
    if (const auto own = node.unit ? by_fqn.find(*node.unit) : by_fqn.end(); own != by_fqn.end()) {
      const UnitFigures& unit = *own->second;
      node.compute = unit.compute;
      node.gather = exposed_of(unit, UnitPart::kAllGatherForward) +
                    exposed_of(unit, UnitPart::kAllGatherBackward);
      node.reduce =
          exposed_of(unit, UnitPart::kReduceScatter) + exposed_of(unit, UnitPart::kAllReduce);
      node.other = exposed_of(unit, UnitPart::kOther);
    }
    for (const int child : node.children) {
      visit(child);
      const Node& of = nodes_[static_cast<size_t>(child)];
      node.units += of.units;
      node.compute += of.compute;
      node.gather += of.gather;
      node.reduce += of.reduce;
      node.other += of.other;
    }
  };
  largest_ = 0;
  for (const int id : top_) {
    visit(id);
    largest_ = std::max(largest_, nodes_[static_cast<size_t>(id)].exposed());
  }
}

void UnitTree::setWindow(const analysis::IntervalSet& window) {
  if (run_ == nullptr) {
    return;
  }
  const RankData& rank = *run_->ranks[rank_];
  if (window == rank.timeline.span) {
    sumUp(rank.figures.units);
  } else {
    const analysis::FrozenViews* frozen =
        rank.figures.frozen_views ? &*rank.figures.frozen_views : nullptr;
    sumUp(analysis::unit_figures(rank.trace, rank.timeline, rank.partition, window, {frozen}));
  }
  tellAll();
}

void UnitTree::setPlan(const plan::ResolvedPlan* edited) {
  if (run_ == nullptr || plan_ == nullptr) {
    return;
  }
  const plan::ResolvedPlan& own = *plan_;
  for (Node& node : nodes_) {
    node.plan.clear();
    node.changed = false;
    if (node.module >= 0 && edited != nullptr &&
        edited->tree.modules.size() == own.tree.modules.size()) {
      const auto module = static_cast<uint32_t>(node.module);
      node.plan = module_plan_text(*edited, module);
      node.changed = node.plan != module_plan_text(own, module);
    }
  }
  for (Node& node : nodes_) {  // folded rows show the text that all their rows share
    if (node.module < 0 && !node.children.empty()) {
      const Node& first = nodes_[static_cast<size_t>(node.children.front())];
      node.changed = false;
      node.plan = first.plan;
      for (const int child : node.children) {
        const Node& of = nodes_[static_cast<size_t>(child)];
        node.changed = node.changed || of.changed;
        node.plan = of.plan == node.plan ? node.plan : tr("differ");
      }
    }
  }
  tellAll();
}

std::vector<std::string> UnitTree::modulesAt(const QModelIndex& index) const {
  std::vector<std::string> out;
  const auto add = [&](const Node& node) {
    if (node.module >= 0) {
      out.push_back(plan_->tree.modules[static_cast<size_t>(node.module)].fqn);
    }
  };
  if (index.isValid()) {
    const Node& node = at(index);
    add(node);
    for (size_t i = 0; node.module < 0 && i < node.children.size(); ++i) {
      add(nodes_[static_cast<size_t>(node.children[i])]);
    }
  }
  return out;
}

void UnitTree::tellAll() {
  const std::function<void(const QModelIndex&)> tell = [&](const QModelIndex& parent) {
    const int rows = rowCount(parent);
    if (rows > 0) {
      emit dataChanged(index(0, 0, parent), index(rows - 1, kColumnCount - 1, parent));
    }
    for (int row = 0; row < rows; ++row) {
      tell(index(row, 0, parent));
    }
  };
  tell({});
}

QModelIndex UnitTree::indexOf(const std::string& unit) const {
  for (size_t id = 0; id < nodes_.size(); ++id) {
    if (nodes_[id].unit == unit) {
      return createIndex(nodes_[id].row, 0, static_cast<quintptr>(id));
    }
  }
  return {};
}

std::optional<std::string> UnitTree::unitAt(const QModelIndex& index) const {
  return index.isValid() ? at(index).unit : std::nullopt;
}

Nanoseconds UnitTree::exposedAt(const QModelIndex& index) const {
  return index.isValid() ? at(index).exposed() : 0;
}

std::vector<std::string> UnitTree::unitsWithin(const QModelIndex& index) const {
  std::vector<std::string> out;
  const std::function<void(int)> visit = [&](int id) {
    const Node& node = nodes_[static_cast<size_t>(id)];
    if (node.unit) {
      out.push_back(*node.unit);
    }
    std::for_each(node.children.begin(), node.children.end(), visit);
  };
  if (index.isValid()) {
    visit(static_cast<int>(index.internalId()));
  }
  return out;
}

QModelIndex UnitTree::index(int row, int column, const QModelIndex& parent) const {
  if (!hasIndex(row, column, parent)) {
    return {};
  }
  const std::vector<int>& list = parent.isValid() ? at(parent).children : top_;
  return createIndex(row, column, static_cast<quintptr>(list[static_cast<size_t>(row)]));
}

QModelIndex UnitTree::parent(const QModelIndex& index) const {
  if (!index.isValid() || at(index).parent < 0) {
    return {};
  }
  const int parent = at(index).parent;
  return createIndex(nodes_[static_cast<size_t>(parent)].row, 0, static_cast<quintptr>(parent));
}

int UnitTree::rowCount(const QModelIndex& parent) const {
  if (parent.column() > 0) {
    return 0;
  }
  return static_cast<int>(parent.isValid() ? at(parent).children.size() : top_.size());
}

int UnitTree::columnCount(const QModelIndex& /*parent*/) const {
  return kColumnCount;
}

QVariant UnitTree::data(const QModelIndex& index, int role) const {
  if (!checkIndex(index, CheckIndexOption::IndexIsValid)) {
    return {};
  }
  const Node& node = at(index);
  switch (role) {
    case Qt::DisplayRole:
      switch (index.column()) {
        case kName:
          return node.type.isEmpty() ? node.name
                                     : QStringLiteral("%1  %2").arg(node.name, node.type);
        case kUnits:
          return node.module < 0 && node.units > 1 ? QString::number(node.units)
                 : !node.plan.isEmpty()            ? node.plan
                 : node.changed                    ? tr("no unit")
                 : node.units == 0                 ? QString()
                 : node.units == 1 && node.unit    ? tr("unit")
                                                   : QString::number(node.units);
        case kBytes:
          return node.bytes == 0 ? QStringLiteral("–")
                                 : QString::fromStdString(format_bytes(node.bytes));
        case kCompute:
          return duration_or_dash(node.compute);
        case kGather:
          return duration_or_dash(node.gather);
        case kReduce:
          return duration_or_dash(node.reduce);
        default:
          return duration_or_dash(node.exposed());
      }
    case Qt::ToolTipRole:
      if (index.column() == kUnits && !node.plan.isEmpty()) {
        return node.changed ? tr("The edited plan: %1").arg(node.plan) : node.plan;
      }
      return node.unit ? tr("unit %1").arg(QString::fromStdString(unit_label(*node.unit)))
                       : QVariant();
    case Qt::TextAlignmentRole:
      return static_cast<int>((index.column() > kUnits ? Qt::AlignRight : Qt::AlignLeft) |
                              Qt::AlignVCenter);
    case kUnitRole:
      return node.unit ? QVariant(QString::fromStdString(*node.unit)) : QVariant();
    case kChangedRole:
      return node.changed && index.column() == kUnits;
    case kIsUnitRole:
      return node.unit.has_value();
    case kShareRole:
      return largest_ == 0 ? 0.0
                           : static_cast<double>(node.exposed()) / static_cast<double>(largest_);
    default:
      return {};
  }
}

QVariant UnitTree::headerData(int section, Qt::Orientation orientation, int role) const {
  if (orientation != Qt::Horizontal) {
    return {};
  }
  constexpr const char* kTitles[] = {"Module",   "Units",    "Parameters", "Compute",
                                     "Gather ▨", "Reduce ▨", "Exposed ▨"};
  constexpr const char* kHelp[] = {
      "A module and its type; blocks with the same structure are folded",
      "How the plan treats the module, or the number of units within the row; bold: edited",
      "Size of all parameters within the row, unsharded, in the master dtype",
      "Compute time of the row's units, forward and backward",
      "Exposed time of the row's all-gathers",
      "Exposed time of the row's reduce-scatters and all-reduces",
      "Exposed communication of the row's units; the top rows sum to the headline"};
  return header_of(tr(kTitles[section]), tr(kHelp[section]), section > kUnits, role);
}

}  // namespace shardlens::gui
