#include "gui/model/tables/event_groups.h"

#include <algorithm>
#include <utility>

#include "gui/model/base/time_axis.h"
#include "gui/model/tables/event_table.h"
#include "gui/model/tables/table_text.h"
#include "profiler/report/table.h"

namespace shardlens::gui {
namespace {

// The keys by which a rank's events are summed up: a number for each event, and the names of the
// numbers.
class Keys {
 public:
  Keys(const RankData& rank, EventGrouping by) : trace_(rank.trace), by_(by) {
    if (by == EventGrouping::kUnit) {
      owners_ = event_owners(rank);
    }
  }
  [[nodiscard]] size_t size() const {
    switch (by_) {
      case EventGrouping::kName:
        return trace_.strings.size();
      case EventGrouping::kCategory:
        return EventTest::kCategories;
      case EventGrouping::kTrack:
        return trace_.tracks.size();
      case EventGrouping::kUnit:
        break;
    }
    return owners_.names.size();
  }
  [[nodiscard]] uint32_t of(uint32_t event) const {
    const trace::Event& each = trace_.events[event];
    switch (by_) {
      case EventGrouping::kName:
        return each.name;
      case EventGrouping::kCategory:
        return EventTest::category_of(each);
      case EventGrouping::kTrack:
        return each.track;
      case EventGrouping::kUnit:
        break;
    }
    return owners_.owner[event];
  }
  // The name of the key of `event`.
  [[nodiscard]] QString name(uint32_t event) const {
    const trace::Event& each = trace_.events[event];
    switch (by_) {
      case EventGrouping::kName:
        return table_text(trace_.name(each));
      case EventGrouping::kCategory:
        return table_text(trace_.category(each));
      case EventGrouping::kTrack:
        return track_name(trace_, trace_.tracks[each.track]);
      case EventGrouping::kUnit:
        break;
    }
    return owners_.names[owners_.owner[event]];
  }

 private:
  const trace::Trace& trace_;
  EventGrouping by_;
  EventOwners owners_;
};

}  // namespace

EventOwners event_owners(const RankData& rank) {
  EventOwners out;
  const auto& units = rank.timeline.fsdp.units;
  for (const auto& unit : units) {
    out.names.push_back(table_text(unit_label(unit.fqn)));
  }
  for (int i = 0; i < analysis::kSectionCount; ++i) {
    const auto section = static_cast<analysis::Section>(i);
    out.names.push_back(section == analysis::Section::kNone
                            ? QStringLiteral("(none)")
                            : u'<' + table_text(name_of(section)) + u'>');
  }
  const auto number = [&units](const analysis::Owner& owner) {
    return owner.unit != kNoUnit
               ? owner.unit
               : static_cast<uint32_t>(units.size()) + static_cast<uint32_t>(owner.section);
  };
  const trace::Trace& trace = rank.trace;
  out.owner.resize(trace.events.size());
  std::vector<size_t> near(trace.tracks.size(), 0);
  for (uint32_t i = 0; i < trace.events.size(); ++i) {
    const trace::Event& event = trace.events[i];
    out.owner[i] = number(rank.timeline.sections.at(event.track, event.start, near[event.track]));
  }
  for (const auto* events : {&rank.timeline.host_events, &rank.timeline.device_events}) {
    for (const analysis::DeviceEvent& each : *events) {
      out.owner[each.event] = number(rank.timeline.place(each).owner);
    }
  }
  return out;
}

std::optional<analysis::Interval> event_window(const SelectionContext& selection, size_t rank) {
  if (!selection.current().range && !selection.current().step) {
    return std::nullopt;
  }
  const RankData& of = *selection.run()->ranks[rank];
  if (selection.current().range) {
    return selection.run()->own(of, *selection.current().range);
  }
  const analysis::IntervalSet step = selection.windowOf(rank);
  return step.empty() ? analysis::Interval{} : step.front();
}

std::vector<ColumnTable::Column> EventGroups::columns(const EventGroups* of) {
  const auto row = [of](size_t r) -> const Group& { return of->groups_[r]; };
  const auto mean = [row](size_t r) { return row(r).sum / std::max<int64_t>(1, row(r).count); };
  const auto duration = [](const QString& title, auto value, const QString& help, Scale scale) {
    return Column{title,
                  [value](size_t r) { return durationText(value(r)); },
                  [value](size_t r) { return static_cast<double>(value(r)); },
                  true,
                  help,
                  scale};
  };
  const auto share = [of, row](size_t r) {
    return of->total_ == 0 ? 0.0
                           : static_cast<double>(row(r).sum) / static_cast<double>(of->total_);
  };
  return {
      {tr("What"), [row](size_t r) { return row(r).name; }},
      {tr("Count"), [row](size_t r) { return QString::number(row(r).count); },
       [row](size_t r) { return static_cast<double>(row(r).count); }, true},
      duration(
          tr("Sum"), [row](size_t r) { return row(r).sum; },
          tr("Of the durations; events within others count too"), Scale::kDuration),
      {tr("Share"),
       [share](size_t r) { return QString::fromStdString(report::format_percent(share(r))); },
       share, true,
       tr("Of the summed durations of all events of the chosen category, whatever their names")},
      duration(tr("Mean"), mean, {}, Scale::kEvent),
      duration(
          tr("Min"), [row](size_t r) { return row(r).least; }, {}, Scale::kEvent),
      duration(
          tr("Max"), [row](size_t r) { return row(r).most; },
          tr("The longest event; a click on the row selects it"), Scale::kEvent),
  };
}

EventGroups::EventGroups(QObject* parent) : ColumnTable(columns(this), parent) {}

void EventGroups::addRank(const SelectionContext& selection,
                          size_t rank,
                          std::map<QString, size_t>& rows) {
  const RankData& of = *run_->ranks[rank];
  const trace::Trace& trace = of.trace;
  EventFilter filter = asked_.filter;
  filter.window = event_window(selection, rank);
  EventTest test(trace, filter);
  const Keys keys(of, asked_.by);
  std::vector<Group> found(keys.size());
  for (uint32_t i = 0; i < trace.events.size(); ++i) {
    const trace::Event& event = trace.events[i];
    if (!test.isInside(event)) {
      continue;
    }
    total_ += event.duration;
    if (!test.isNamed(event)) {
      continue;
    }
    Group& group = found[keys.of(i)];
    group.sum += event.duration;
    group.least = group.count == 0 ? event.duration : std::min(group.least, event.duration);
    if (group.count == 0 || event.duration > group.most) {
      group.most = event.duration;
      group.longest = {rank, Lane::Source::kEvents, i};
    }
    ++group.count;
  }
  for (Group& group : found) {
    if (group.count == 0) {
      continue;
    }
    count_ += group.count;
    sum_ += group.sum;
    group.name = keys.name(group.longest.ref);
    const auto [at, is_new] = rows.try_emplace(group.name, groups_.size());
    if (is_new) {
      groups_.push_back(std::move(group));
      continue;
    }
    Group& sum = groups_[at->second];
    sum.count += group.count;
    sum.sum += group.sum;
    sum.least = std::min(sum.least, group.least);
    if (group.most > sum.most) {
      sum.most = group.most;
      sum.longest = group.longest;
    }
  }
}

void EventGroups::show(const SelectionContext& selection, const Asked& asked) {
  if (selection.rank() == nullptr) {
    clear();
    return;
  }
  const size_t rank = selection.current().rank;
  std::vector<analysis::IntervalSet> windows;
  for (size_t i = 0; i < selection.run()->ranks.size(); ++i) {
    windows.push_back(asked.all_ranks || i == rank ? selection.windowOf(i)
                                                   : analysis::IntervalSet());
  }
  if (selection.run() == run_ && (rank == rank_ || asked.all_ranks) && asked == asked_ &&
      windows == windows_) {
    return;
  }
  clear();
  run_ = selection.run();
  rank_ = rank;
  asked_ = asked;
  windows_ = std::move(windows);
  std::map<QString, size_t> rows;
  for (size_t i = 0; i < run_->ranks.size(); ++i) {
    if (asked.all_ranks || i == rank) {
      addRank(selection, i, rows);
    }
  }
  std::stable_sort(groups_.begin(), groups_.end(),
                   [](const Group& a, const Group& b) { return a.sum > b.sum; });
  reset(groups_.size());
}

void EventGroups::clear() {
  run_.reset();
  windows_.clear();
  groups_.clear();
  count_ = 0;
  sum_ = total_ = 0;
  reset(0);
}

QModelIndex EventGroups::indexOf(const Selection::Item& item) const {
  if (run_ == nullptr || item.source != Lane::Source::kEvents || item.rank >= run_->ranks.size()) {
    return {};
  }
  const RankData& of = *run_->ranks[item.rank];
  const bool by_unit = asked_.by == EventGrouping::kUnit;
  const std::string owner = by_unit ? of.owner_of_event(item.ref) : std::string();
  const QString name = by_unit ? (owner.empty() ? QStringLiteral("(none)") : table_text(owner))
                               : Keys(of, asked_.by).name(item.ref);
  const auto found = std::ranges::find(groups_, name, &Group::name);
  return found == groups_.end()
             ? QModelIndex()
             : ColumnTable::indexOf(static_cast<size_t>(found - groups_.begin()));
}

}  // namespace shardlens::gui
