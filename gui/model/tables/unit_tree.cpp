#include "gui/model/tables/unit_tree.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "core/base/dtype.h"
#include "core/plan/parameter_groups.h"
#include "gui/model/base/shown_text.h"
#include "gui/model/base/time_axis.h"
#include "gui/model/details/block_words.h"
#include "gui/model/what_if/module_edits.h"
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

QString duration_or_dash(Nanoseconds value, Nanoseconds largest) {
  return value == 0 ? QStringLiteral("–") : durationText(value, largest);
}

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
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

UnitTree::UnitTree(QObject* parent)
    : TreeModel(
          {{tr("Module"), tr("A module and its type; blocks with the same structure are folded")},
           {tr("Units"), tr("How the plan treats the module, or the number of units within the "
                            "row; bold: edited")},
           {tr("Parameters"),
            tr("Size of all parameters within the row, unsharded, in the master dtype"), true},
           {tr("Compute"), tr("Compute time of the row's units, forward and backward"), true},
           {tr("Gather ▨"), tr("Exposed time of the row's all-gathers"), true},
           {tr("Reduce ▨"), tr("Exposed time of the row's reduce-scatters and all-reduces"), true},
           {tr("Exposed ▨"),
            tr("Exposed communication of the row's units; the top rows sum to the headline"),
            true}},
          parent) {}

void UnitTree::show(RunPointer run, size_t rank, const PlanPointer& recovered) {
  beginResetModel();
  run_ = run != nullptr && rank < run->ranks.size() ? std::move(run) : nullptr;
  plan_ = plan_of(run_);
  plan_ = plan_ == nullptr ? recovered : plan_;
  rank_ = rank;
  clearRows();
  nodes_.clear();
  if (run_ != nullptr) {
    plan_ != nullptr ? addModules() : addUnits();
    addOwners();
    fold();
    findOwners();
    sumUp(run_->ranks[rank_]->figures.units);
  }
  endResetModel();
}

int UnitTree::addNode(int parent, Node node) {
  nodes_.push_back(std::move(node));
  return addRow(parent);
}

void UnitTree::addModules() {
  const plan::ResolvedPlan& plan = *plan_;
  std::map<uint32_t, std::string> unit_of_module;
  for (const plan::Unit& unit : plan.units) {
    for (const uint32_t module : unit.modules) {
      unit_of_module.emplace(module, unit.fqn);
    }
  }
  const std::set<uint32_t> ignored(plan.ignored_parameters.begin(), plan.ignored_parameters.end());
  std::vector<int> node_of(plan.tree.modules.size(), -1);
  for (uint32_t m = 0; m < plan.tree.modules.size(); ++m) {
    const plan::Module& module = plan.tree.modules[m];
    Node node;
    const size_t dot = module.fqn.rfind('.');
    node.name =
        module.fqn.empty()
            ? tr("model")
            : shown_text(dot == std::string::npos ? module.fqn : module.fqn.substr(dot + 1));
    // A plan recovered from a trace has no module types.
    node.type = plan_of(run_) == nullptr ? QString() : shown_text(module.type);
    node.module = static_cast<int>(m);
    if (const auto unit = unit_of_module.find(m); unit != unit_of_module.end()) {
      node.unit = unit->second;
    }
    const std::vector<uint32_t> parameters = plan.tree.subtree_parameters(m);
    node.ignored = !parameters.empty() && std::ranges::all_of(parameters, [&ignored](uint32_t p) {
      return ignored.contains(p);
    });
    for (const uint32_t p : parameters) {
      node.bytes += plan.tree.parameters[p].numel * size_of(plan.tree.parameters[p].dtype);
    }
    node_of[m] = addNode(m == 0 ? kTop : node_of[module.parent], std::move(node));
  }
}

void UnitTree::addUnits() {
  const std::vector<UnitFigures>& units = run_->ranks[rank_]->figures.units;
  std::set<std::string> unit_names;
  std::map<std::string, std::set<std::string>> below;  // components below each prefix
  for (const UnitFigures& unit : units) {
    if (plan::is_expert_group(unit.fqn)) {
      continue;
    }
    unit_names.insert(unit.is_unit ? unit.fqn : "");
    for (size_t dot = unit.fqn.find('.'); unit.is_unit && dot != std::string::npos;
         dot = unit.fqn.find('.', dot + 1)) {
      below[unit.fqn.substr(0, dot)].insert(
          unit.fqn.substr(dot + 1, unit.fqn.find('.', dot + 1) - dot - 1));
    }
  }
  // A prefix that only leads to one other has no row: "model" and "layers" become "model.layers".
  // Numbers keep their rows, because blocks are folded by them.
  const auto only_leads_on = [&](const std::string& prefix) {
    const std::set<std::string>& next = below[prefix];
    return next.size() == 1 && !unit_names.contains(prefix) && !is_number(*next.begin()) &&
           !is_number(prefix.substr(prefix.rfind('.') + 1));
  };
  std::map<std::string, int> known;
  const std::function<int(const std::string&)> node_for = [&](const std::string& fqn) -> int {
    if (const auto found = known.find(fqn); found != known.end()) {
      return found->second;
    }
    size_t dot = fqn.rfind('.');
    while (dot != std::string::npos && only_leads_on(fqn.substr(0, dot))) {
      dot = dot == 0 ? std::string::npos : fqn.rfind('.', dot - 1);
    }
    int parent = kTop;
    if (dot != std::string::npos) {
      parent = node_for(fqn.substr(0, dot));
    } else if (!fqn.empty() && known.contains("")) {
      parent = known[""];
    }
    Node node;
    node.name = fqn.empty() ? tr("model")
                            : shown_text(dot == std::string::npos ? fqn : fqn.substr(dot + 1));
    return known[fqn] = addNode(parent, std::move(node));
  };
  for (const bool root : {true, false}) {
    for (const UnitFigures& unit : units) {
      if (unit.is_unit && unit.fqn.empty() == root && !plan::is_expert_group(unit.fqn)) {
        Node& found = node(node_for(unit.fqn));
        found.unit = unit.fqn;
        found.bytes = gathered_bytes(unit);
      }
    }
  }
}

// Adds rows for owners that are not modules of the tree: sections, and units that are not in the
// plan (DDP's buckets).
void UnitTree::addOwners() {
  for (const UnitFigures& unit : run_->ranks[rank_]->figures.units) {
    const bool known = std::any_of(nodes_.begin(), nodes_.end(),
                                   [name = std::string(plan::unit_of_group(unit.fqn))](
                                       const Node& n) { return n.unit == name; });
    if (!known) {
      Node owner;
      owner.name = shown_text(unit_label(unit.fqn));
      owner.unit = unit.fqn;
      owner.type = unit.is_unit ? QString() : tr("outside the units");
      addNode(kTop, std::move(owner));
    }
  }
}

// Two subtrees have the same structure if their signatures are equal.
std::string UnitTree::signature(int id) const {
  const Node& of = node(id);
  std::string text =
      of.type.toStdString() + ":" + std::to_string(of.bytes) + (of.unit ? "u" : "") + "(";
  for (const int child : childrenOf(id)) {
    text += node(child).name.toStdString() + signature(child) + ",";
  }
  return text + ")";
}

std::vector<int> UnitTree::folded(std::vector<int> siblings) {
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
    node(siblings[i]).name.toInt(&numbered);
    const std::vector<int> equal(siblings.begin() + static_cast<std::ptrdiff_t>(i),
                                 siblings.begin() + static_cast<std::ptrdiff_t>(end));
    if (numbered && equal.size() >= kFoldFrom) {
      Node fold;
      fold.name = QStringLiteral("%1 … %2").arg(node(equal.front()).name, node(equal.back()).name);
      fold.type = tr("%1 identical").arg(equal.size());
      fold.several = true;
      for (const int child : equal) {
        fold.bytes += node(child).bytes;
      }
      nodes_.push_back(std::move(fold));
      out.push_back(addLooseRow());
      setChildren(out.back(), equal);
    } else {
      out.insert(out.end(), equal.begin(), equal.end());
    }
    i = end;
  }
  return out;
}

void UnitTree::fold() {
  const int count = static_cast<int>(nodes_.size());
  for (int id = 0; id < count; ++id) {
    setChildren(id, folded(childrenOf(id)));
  }
  setChildren(kTop, folded(childrenOf(kTop)));
}

void UnitTree::findOwners() {
  const std::function<void(int, const std::optional<std::string>&)> visit =
      [&](int id, const std::optional<std::string>& around) {
        Node& row = node(id);
        const std::optional<std::string> here = row.unit      ? row.unit
                                                : row.ignored ? std::nullopt
                                                              : around;
        row.owner = row.several ? std::nullopt : here;
        for (const int child : childrenOf(id)) {
          visit(child, here);
        }
      };
  for (const int id : childrenOf(kTop)) {
    visit(id, std::nullopt);
  }
}

void UnitTree::sumUp(const std::vector<UnitFigures>& units) {
  std::map<std::string, const UnitFigures*> by_fqn;
  for (const UnitFigures& unit : units) {
    by_fqn.emplace(unit.fqn, &unit);
  }
  const std::function<void(int)> visit = [&](int id) {
    Node& sum = node(id);
    sum.units = sum.unit && !sum.unit->starts_with("<") ? 1 : 0;
    sum.compute = sum.gather = sum.reduce = sum.other = 0;
    for (const std::string& name : sum.unit
                                       ? std::vector{*sum.unit, plan::expert_group_of(*sum.unit)}
                                       : std::vector<std::string>()) {
      const auto own = by_fqn.find(name);
      if (own == by_fqn.end()) {
        continue;
      }
      const UnitFigures& unit = *own->second;
      sum.compute += unit.compute;
      sum.gather += exposed_of(unit, UnitPart::kAllGatherForward) +
                    exposed_of(unit, UnitPart::kAllGatherBackward);
      sum.reduce +=
          exposed_of(unit, UnitPart::kReduceScatter) + exposed_of(unit, UnitPart::kAllReduce);
      sum.other += exposed_of(unit, UnitPart::kOther);
    }
    for (const int child : childrenOf(id)) {
      visit(child);
      const Node& of = node(child);
      sum.units += of.units;
      sum.compute += of.compute;
      sum.gather += of.gather;
      sum.reduce += of.reduce;
      sum.other += of.other;
    }
  };
  largest_ = 0;
  largest_of_ = {};
  for (const int id : childrenOf(kTop)) {
    visit(id);
    const Node& top = node(id);
    largest_ = std::max(largest_, top.exposed());
    largest_of_.compute = std::max(largest_of_.compute, top.compute);
    largest_of_.gather = std::max(largest_of_.gather, top.gather);
    largest_of_.reduce = std::max(largest_of_.reduce, top.reduce);
  }
  describeBlocks(units);
}

// Each block's text is at the lowest row that contains all of its units.
void UnitTree::describeBlocks(const std::vector<UnitFigures>& units) {
  std::map<std::string, uint32_t> numbers;
  for (uint32_t i = 0; i < units.size(); ++i) {
    numbers.emplace(units[i].fqn, i);
  }
  const std::vector<analysis::BlockFigures> blocks = analysis::block_figures(units);
  std::vector<size_t> block_of(units.size(), blocks.size());
  for (size_t b = 0; b < blocks.size(); ++b) {
    for (const uint32_t unit : blocks[b].units) {
      block_of[unit] = b;
    }
  }
  // Returns how many units of each block are within the row.
  const std::function<std::map<size_t, size_t>(int)> visit = [&](int id) {
    std::map<size_t, size_t> within;
    node(id).blocks.clear();
    const auto own = node(id).unit ? numbers.find(*node(id).unit) : numbers.end();
    if (own != numbers.end() && block_of[own->second] < blocks.size()) {
      ++within[block_of[own->second]];
    }
    for (const int child : childrenOf(id)) {
      for (const auto& [block, count] : visit(child)) {
        within[block] += count;
      }
    }
    std::erase_if(within, [&](const auto& each) {
      const auto& [number, count] = each;
      const analysis::BlockFigures& block = blocks[number];
      if (count < block.units.size()) {
        return false;
      }
      const QString outliers = outliers_text(units, block);
      QString& text = node(id).blocks;
      text += (text.isEmpty() ? QString() : QStringLiteral("\n")) +
              tr("%1: exposed %2").arg(shown_text(block.name), spread_text(units, block.exposed));
      text += outliers.isEmpty() ? QString() : tr("; far from the others: %1").arg(outliers);
      return true;
    });
    return within;
  };
  for (const int id : childrenOf(kTop)) {
    visit(id);
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
  emitAllChanged();
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
  for (size_t id = 0; id < nodes_.size();
       ++id) {  // folded rows show the text that all their rows share
    const std::vector<int>& children = childrenOf(static_cast<int>(id));
    Node& row = nodes_[id];
    if (row.module < 0 && !children.empty()) {
      row.changed = false;
      row.plan = node(children.front()).plan;
      for (const int child : children) {
        row.changed = row.changed || node(child).changed;
        row.plan = node(child).plan == row.plan ? row.plan : tr("differ");
      }
    }
  }
  emitAllChanged();
}

std::vector<std::string> UnitTree::modulesAt(const QModelIndex& index) const {
  std::vector<std::string> out;
  const auto add = [&](const Node& of) {
    if (of.module >= 0) {
      out.push_back(plan_->tree.modules[static_cast<size_t>(of.module)].fqn);
    }
  };
  if (index.isValid()) {
    add(at(index));
    if (at(index).module < 0) {
      for (const int child : childrenOf(rowAt(index))) {
        add(node(child));
      }
    }
  }
  return out;
}

QModelIndex UnitTree::indexOf(const std::string& unit) const {
  const std::string name(plan::unit_of_group(unit));
  for (size_t id = 0; id < nodes_.size(); ++id) {
    if (nodes_[id].unit == name) {
      return indexOfRow(static_cast<int>(id));
    }
  }
  return {};
}

std::optional<std::string> UnitTree::unitAt(const QModelIndex& index) const {
  return index.isValid() ? at(index).owner : std::nullopt;
}

std::optional<std::string> UnitTree::unitOfModule(const std::string& fqn) const {
  for (const Node& row : nodes_) {
    if (row.module >= 0 && plan_->tree.modules[static_cast<size_t>(row.module)].fqn == fqn) {
      return row.owner;
    }
  }
  return std::nullopt;
}

Nanoseconds UnitTree::exposedAt(const QModelIndex& index) const {
  return index.isValid() ? at(index).exposed() : 0;
}

std::vector<std::string> UnitTree::unitsWithin(const QModelIndex& index) const {
  std::vector<std::string> out;
  const std::function<void(int)> visit = [&](int id) {
    if (node(id).unit) {
      out.push_back(*node(id).unit);
    }
    std::for_each(childrenOf(id).begin(), childrenOf(id).end(), visit);
  };
  if (index.isValid()) {
    visit(rowAt(index));
  }
  return out;
}

QVariant UnitTree::textOf(const Node& node, int column) const {
  switch (column) {
    case kName:
      return node.type.isEmpty() ? node.name : QStringLiteral("%1  %2").arg(node.name, node.type);
    case kUnits:
      return node.module < 0 && node.units > 1 ? QString::number(node.units)
             : !node.plan.isEmpty()            ? node.plan
             : node.changed                    ? tr("no unit")
             : node.units == 0                 ? QString()
             : node.units == 1 && node.unit    ? tr("unit")
                                               : QString::number(node.units);
    case kBytes:
      return node.bytes == 0 ? QStringLiteral("–") : bytesText(node.bytes);
    case kCompute:
      return duration_or_dash(node.compute, largest_of_.compute);
    case kGather:
      return duration_or_dash(node.gather, largest_of_.gather);
    case kReduce:
      return duration_or_dash(node.reduce, largest_of_.reduce);
    default:
      return duration_or_dash(node.exposed(), largest_);
  }
}

QVariant UnitTree::data(const QModelIndex& index, int role) const {
  if (!checkIndex(index, CheckIndexOption::IndexIsValid)) {
    return {};
  }
  const Node& row = at(index);
  switch (role) {
    case Qt::DisplayRole:
      return textOf(row, index.column());
    case Qt::ToolTipRole:
      if (index.column() == kUnits && !row.plan.isEmpty()) {
        return row.changed ? tr("The edited plan: %1").arg(row.plan) : row.plan;
      }
      if (row.owner) {
        const QString unit =
            (row.unit ? tr("unit %1") : tr("in unit %1")).arg(shown_text(unit_label(*row.owner)));
        return row.blocks.isEmpty() ? unit : unit + QStringLiteral("\n") + row.blocks;
      }
      return row.blocks.isEmpty() ? QVariant() : row.blocks;
    case Qt::TextAlignmentRole:
      return alignment(index.column());
    case kUnitRole:
      return row.unit ? QVariant(QString::fromStdString(*row.unit)) : QVariant();
    case kChangedRole:
      return row.changed && index.column() == kUnits;
    case kIsUnitRole:
      return row.unit.has_value();
    case kShareRole:
      return largest_ == 0 ? 0.0
                           : static_cast<double>(row.exposed()) / static_cast<double>(largest_);
    default:
      return {};
  }
}

}  // namespace shardlens::gui
