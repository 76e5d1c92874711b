#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <QHBoxLayout>
#include <QHeaderView>
#include <QLabel>
#include <QTableView>
#include <QToolButton>

#include "gui/model/base/in_window.h"
#include "gui/model/base/time_axis.h"
#include "gui/model/base/words.h"
#include "gui/model/tables/table_text.h"
#include "gui/model/what_if/fit_text.h"
#include "gui/view/panels/panel.h"
#include "gui/view/panels/panel_table.h"
#include "gui/view/panels/panel_views.h"
#include "gui/view/widgets/text_lines.h"

namespace shardlens::gui {
namespace {

// The change as a share of the step without it, in percent: "−3.2".
QString share_text(const Proposal& of, Nanoseconds change) {
  return signedPercent(static_cast<double>(change) / static_cast<double>(of.step - of.change));
}

QString waste_text(const sim::FoundWaste& of) {
  return QObject::tr("Waste: %1 %2, %3 a step: %4")
      .arg(words(name_of(of.kind)), table_text(unit_label(of.unit)), durationText(of.lost),
           table_text(of.evidence));
}

QString verdict_of(const Proposal& of) {
  return !of.fits   ? QObject::tr("does not fit")
         : of.found ? QObject::tr("found by the search")
                    : table_text(of.odds.text());
}

// A plan that does not fit has no step.
template <class Text>
std::function<QString(size_t)> if_fits(const PlanProposals& proposals, Text text) {
  return [&proposals, text](size_t r) {
    const Proposal& of = proposals.list()[r];
    return of.fits ? text(of) : QStringLiteral("–");
  };
}

// A change is a difference to another plan, which may have no step.
template <class Text>
std::function<QString(size_t)> if_compared(const PlanProposals& proposals, Text text) {
  return if_fits(proposals,
                 [text](const Proposal& p) { return p.compared ? text(p) : QStringLiteral("–"); });
}

std::function<double(size_t)> key_if_fits(const PlanProposals& proposals,
                                          Nanoseconds Proposal::*value) {
  return [&proposals, value](size_t r) {
    const Proposal& of = proposals.list()[r];
    return of.fits ? static_cast<double>(of.*value) : std::numeric_limits<double>::max();
  };
}

// "layers.0 all-gather forward 1.2 ms, …"
QString hides_text(const Proposal& of) {
  QStringList out;
  for (const sim::HiddenTime& hidden : of.hides) {
    out.append(QStringLiteral("%1 %2 %3")
                   .arg(table_text(unit_label(hidden.unit)), words(hidden.collective),
                        durationText(hidden.time)));
  }
  return out.join(QStringLiteral(", "));
}

std::vector<ColumnTable::Column> proposal_columns(const PlanProposals& proposals) {
  const auto of = [&proposals](size_t r) -> const Proposal& { return proposals.list()[r]; };
  return {
      {QObject::tr("Plan"), [of](size_t r) { return table_text(of(r).title.toStdString()); }},
      {QObject::tr("Δ step"),
       if_compared(proposals,
                   [](const Proposal& p) {
                     return changeText(static_cast<double>(p.step),
                                       static_cast<double>(p.step - p.change));
                   }),
       key_if_fits(proposals, &Proposal::change), true,
       QObject::tr("Predicted change of the step")},
      {QObject::tr("Verdict"), [of](size_t r) { return verdict_of(of(r)); }, nullptr, false,
       QObject::tr(
           "A change pays or loses if its sign is certain to 99 %, that is, if its 99 % bound "
           "is on the same side of zero; otherwise probably, with the odds of this sign"),
       ColumnTable::Scale::kNone, true},
      {QObject::tr("90 % interval"),
       if_compared(proposals,
                   [](const Proposal& p) {
                     return p.interval ? QObject::tr("%1 to %2 %")
                                             .arg(share_text(p, p.interval->low),
                                                  share_text(p, p.interval->high))
                                       : QStringLiteral("–");
                   }),
       nullptr, true, QObject::tr("Of the change; see shardlens docs simulator")},
      {QObject::tr("99 % bound"),
       if_compared(proposals,
                   [](const Proposal& p) {
                     return p.bound ? QObject::tr("%1 %").arg(share_text(p, *p.bound))
                                    : QStringLiteral("–");
                   }),
       nullptr, true, QObject::tr("Of the change, on the side of zero")},
      {QObject::tr("Step"),
       if_fits(proposals, [](const Proposal& p) { return durationText(p.step); }),
       key_if_fits(proposals, &Proposal::step),
       true,
       {},
       ColumnTable::Scale::kDuration},
      {QObject::tr("Peak"),
       [of](size_t r) {
         const Proposal& p = of(r);
         return p.fits ? bytesText(p.peak) : needText(p.peak, p.reserved, p.available);
       },
       [of](size_t r) { return static_cast<double>(of(r).peak); }, true,
       QObject::tr("Allocated on the rank that needs the most; of a plan that does not fit, and "
                   "of how much"),
       ColumnTable::Scale::kNone, true},
      {QObject::tr("Hides"), [of](size_t r) { return hides_text(of(r)); }, nullptr, false,
       QObject::tr("Exposed communication that the change hides or makes unnecessary")}};
}

// Plans that advise and the search propose; a double click makes one a version of the plan.
class AdvicePanel final : public Panel {
 public:
  explicit AdvicePanel(const PanelContext& context);

  void becameVisible() override { adviseOnce(); }

 protected:
  void fitColumns() override;
  void widthChanged() override;

 private:
  // A user who opens the panel wants the advice.
  void adviseOnce() {
    if (isVisible() && proposals().canAdvise() && proposals().note().isEmpty()) {
      proposals().advise();
    }
  }
  void showProposals();
  void showNote() {
    note_->setText(with_breaks(text()));
    QStringList all;
    for (const sim::FoundWaste& waste : proposals().waste()) {
      all.append(waste_text(waste));
    }
    note_->setToolTip(all.join(u'\n'));
  }
  [[nodiscard]] QString text() const;
  ColumnTable model_;
  QTableView* table_ = make_table(model_, tr("Proposed plans"));
  QLabel* note_ = make_note();
  std::vector<int> elided_;
  size_t shown_ = 0;  // proposals at the last fitColumns()
  bool was_busy_ = false, was_searching_ = false;
};

AdvicePanel::AdvicePanel(const PanelContext& context)
    : Panel(context), model_(proposal_columns(proposals())) {
  model_.setEmphasis([this](size_t r) { return proposals().list()[r].pays; });
  model_.setErrors([this](size_t r) { return !proposals().list()[r].fits; });
  model_.setTooltip([this](size_t r) {
    return tr("%1\nA double click makes it a version in What if.")
        .arg(table_text(proposals().list()[r].title.toStdString()));
  });
  setView(*table_);
  connect(table_, &QTableView::activated, this, [this](const QModelIndex& index) {
    if (!model_.isTitle(index)) {
      proposals().take(model_.rowAt(index));
    }
  });
  auto* bar = new QWidget;
  auto* row = new QHBoxLayout(bar);
  row->setContentsMargins(8, 2, 8, 2);
  for (QToolButton* each :
       {commandButton(tr("Advise"), "plan.advise"), commandButton(tr("Find best"), "plan.search"),
        commandButton(tr("Stop"), "plan.stop")}) {
    row->addWidget(each);
  }
  row->addWidget(note_, 1);
  stack({bar, table_});
  watchWidth();
  connect(&proposals(), &PlanProposals::changed, this, &AdvicePanel::showProposals);
  connect(&session(), &PlanSession::observed, this, [this] {
    showNote();
    adviseOnce();
  });
  connect(&session(), &PlanSession::stateChanged, this, &AdvicePanel::showNote);
  showProposals();
}

// Only predicted changes have an interval; those of a search have none. A verdict is never cut: its
// end says how likely it is.
void AdvicePanel::fitColumns() {
  constexpr int kVerdict = 2, kInterval = 3, kBound = 4;
  const bool none = std::ranges::none_of(
      proposals().list(), [](const Proposal& each) { return each.interval.has_value(); });
  for (const int column : {kInterval, kBound}) {
    table_->setColumnHidden(column, none);
  }
  elided_ = fit_columns(*table_);
  std::erase(elided_, kVerdict);
  table_->resizeColumnToContents(kVerdict);
}

// The plan takes what the other columns leave.
void AdvicePanel::widthChanged() {
  constexpr int kTitle = 0, kNarrowest = 220, kNarrowestLast = 80;
  share_width(*table_, elided_);
  int room = table_->viewport()->width() - kNarrowestLast;
  for (int column = kTitle + 1; column + 1 < model_.columnCount(); ++column) {
    room -= table_->isColumnHidden(column) ? 0 : table_->columnWidth(column);
  }
  const int wanted = view()->sizeHintForColumn(kTitle) + 8;
  table_->setColumnWidth(kTitle, std::clamp(wanted, kNarrowest, std::max(kNarrowest, room)));
}

QString AdvicePanel::text() const {
  if (!session().isOpen()) {
    return session().isObserving() ? tr("The machine is calibrated from the run …")
                                   : in_window(session().why());
  }
  QString out = in_window(proposals().note());
  if (out.isEmpty()) {
    return proposals().canAdvise()
               ? tr("Which changes of the run's plan would pay, and which plan is the best?")
               : tr("Find best searches for the best plan; advice needs a recorded run.");
  }
  // The largest of each kind; all are in the tooltip, so that the table keeps its room.
  std::map<analysis::WasteKind, int> of_kind;
  for (const sim::FoundWaste& waste : proposals().waste()) {
    if (++of_kind[waste.kind] == 1) {
      out += u'\n' + waste_text(waste);
    }
  }
  const auto more = std::ssize(proposals().waste()) - std::ssize(of_kind);
  return more > 0 ? out + tr("\nand %1 more").arg(more) : out;
}

void AdvicePanel::showProposals() {
  const size_t count = proposals().list().size();
  const bool busy = proposals().isBusy();
  if (!busy) {
    ColumnTable::Section changes{tr("Changes of this plan"), {}}, found{tr("Search"), {}};
    for (uint32_t i = 0; i < count; ++i) {
      (proposals().list()[i].found ? found : changes).rows.push_back(i);
    }
    model_.reset(std::vector{std::move(changes), std::move(found)});
  }
  showNote();
  if (count != std::exchange(shown_, count)) {
    fitColumns();
    widthChanged();
  }
  // If the user waits here for the plans, the best one gets the focus: Enter makes it a version.
  // The window may be behind another one meanwhile, so this does not ask for the keyboard.
  const bool waits = isAncestorOf(window()->focusWidget());
  const bool searched = std::exchange(was_searching_, proposals().isSearching());
  if (std::exchange(was_busy_, busy) && !busy && count > 0 && waits) {
    const std::vector<Proposal>& list = proposals().list();
    const auto found = std::ranges::find(list, true, &Proposal::found);
    const bool best = searched && found != list.end();  // advice is listed before it
    table_->setFocus();
    table_->setCurrentIndex(model_.indexOf(best ? static_cast<size_t>(found - list.begin()) : 0));
  }
}

}  // namespace

PanelPointer make_advice_panel(const PanelContext& context) {
  return std::make_unique<AdvicePanel>(context);
}

}  // namespace shardlens::gui
