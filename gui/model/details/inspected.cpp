#include "gui/model/details/inspected.h"

#include <algorithm>
#include <array>

#include <QLocale>

#include "core/base/dtype.h"
#include "core/layout/shard_layout.h"
#include "gui/model/base/in_window.h"
#include "gui/model/base/shown_text.h"
#include "gui/model/base/time_axis.h"
#include "gui/model/base/words.h"
#include "gui/model/details/block_words.h"
#include "gui/model/details/idle_reason.h"
#include "gui/model/details/launch_ends.h"
#include "gui/model/details/missing_data.h"
#include "profiler/analysis/figures/figure_table.h"
#include "profiler/report/table.h"

namespace shardlens::gui {
namespace {

using analysis::Collective;

QString escaped(std::string_view view) {
  return shown_text(view).toHtmlEscaped();
}

class Sheet {
 public:
  explicit Sheet(const QString& title)
      : html_(QStringLiteral(
                  "<h3 style='margin:2px 0 6px 0'>%1</h3><table cellspacing='0' cellpadding='2'>")
                  .arg(title)) {}
  void row(const QString& name, const QString& value) {
    html_ += QStringLiteral(
                 "<tr><td style='padding-right:14px'><span "
                 "class='name'>%1</span></td><td>%2</td></tr>")
                 .arg(name, value);
  }
  void rank(const RankData& of) { row(QObject::tr("rank"), QString::number(of.figures.rank)); }
  void section(const QString& title) {
    html_ += QStringLiteral("<tr><td colspan='2'><b>%1</b></td></tr>").arg(title);
  }
  [[nodiscard]] QString done() const { return html_ + QStringLiteral("</table>"); }

 private:
  QString html_;
};

QString instant(const RunData& run, const RankData& rank, Nanoseconds own) {
  return timeText(run.shown(rank, {own, own}).start, 1e3);
}

QString launched_name(const RankData& rank, const Selection::Item& launched) {
  const uint32_t event =
      is_collective(launched) ? rank.timeline.collectives[launched.ref].event : launched.ref;
  return escaped(rank.trace.name(rank.trace.events[event]));
}

// "cudaLaunchKernel in aten::mm"
QString launch_text(const RankData& rank, uint32_t call) {
  const trace::Event& event = rank.trace.events[call];
  QString text = escaped(rank.trace.name(event));
  const auto op = rank.operator_at(event.track, event.start);
  return op ? QObject::tr("%1 in %2").arg(text, escaped(rank.trace.name(rank.trace.events[*op])))
            : text;
}

// How the unit was found, where no range of the host shows it.
void basis_row(analysis::Basis basis, Sheet& sheet) {
  const QString text = basis == analysis::Basis::kAnnotation ? QObject::tr("by an annotation")
                       : basis == analysis::Basis::kOrder
                           ? QObject::tr("by its place in the order (hatched in the timeline)")
                       : basis == analysis::Basis::kAmbiguous
                           ? QObject::tr("several are possible (grey in the timeline)")
                           : QString();
  if (!text.isEmpty()) {
    sheet.row(QObject::tr("unit found"), text);
  }
}

QString of_collective(const RunData& run, const RankData& rank, uint32_t index) {
  const Collective& c = rank.timeline.collectives[index];
  Sheet sheet(
      QStringLiteral("%1 (%2)").arg(label_of(c), escaped(unit_label(rank.owner_of(index)))));
  sheet.rank(rank);
  const Nanoseconds exposed = length_of(rank.exposed(index));
  sheet.row(
      QObject::tr("exposed"),
      QObject::tr("<b>%1</b> of %2").arg(durationText(exposed), durationText(c.when.length())));
  if (const CollectiveSpan* span = rank.span_of(index)) {
    if (span->cause) {
      sheet.row(QObject::tr("cause"),
                QStringLiteral("<b>%1</b>: %2")
                    .arg(escaped(words_of(*span->cause)), escaped(explanation_of(*span->cause))));
      const std::string_view helps = remedy_of(*span->cause, span->part);
      if (!helps.empty()) {
        sheet.row(QObject::tr("what may help"), in_window(escaped(helps)));
      }
    }
    if (const auto slack = rank.slack_of(index)) {
      sheet.row(QObject::tr("slack"),
                *slack < 0 ? QObject::tr("%1, it ended too late").arg(durationText(*slack))
                           : durationText(*slack));
    }
    if (span->step) {
      sheet.row(QObject::tr("step"), QString::number(*span->step));
    }
  }
  basis_row(c.basis, sheet);
  if (c.issued) {
    sheet.row(QObject::tr("issued"),
              QObject::tr("%1, started %2 later")
                  .arg(instant(run, rank, *c.issued), durationText(c.when.start - *c.issued)));
  }
  sheet.row(QObject::tr("ran"),
            QObject::tr("%1 to %2")
                .arg(instant(run, rank, c.when.start), instant(run, rank, c.when.end)));
  if (c.needed_at) {
    sheet.row(QObject::tr("needed at"), instant(run, rank, *c.needed_at));
  }
  if (c.issued_by) {
    sheet.row(QObject::tr("issued by"), escaped(schedule::name_of(*c.issued_by)));
  }
  if (c.bytes > 0) {
    const double seconds = static_cast<double>(c.when.length()) * 1e-9;
    sheet.row(QObject::tr("message"),
              QObject::tr("%1, %2 GB/s over its duration")
                  .arg(bytesText(c.bytes))
                  .arg(static_cast<double>(c.bytes) / 1e9 / std::max(seconds, 1e-12), 0, 'f', 2));
  }
  if (c.ranks > 0) {
    sheet.row(QObject::tr("ranks in the group"), QString::number(c.ranks));
  }
  if (const auto ends = launch_ends(rank, {0, Lane::Source::kCollectives, index})) {
    sheet.row(QObject::tr("launched by"), launch_text(rank, ends->call.ref));
  }
  if (c.limiter_wait > 0) {
    sheet.row(QObject::tr("waited for limiter"), durationText(c.limiter_wait));
  }
  if (c.last_start && *c.last_start > c.when.start) {
    sheet.row(QObject::tr("last rank started"),
              QObject::tr("%1 after this one").arg(durationText(*c.last_start - c.when.start)));
  }
  return sheet.done();
}

QString of_event(const RunData& run, const RankData& rank, uint32_t index) {
  const trace::Event& event = rank.trace.events[index];
  Sheet sheet(escaped(rank.trace.name(event)));
  sheet.rank(rank);
  sheet.row(QObject::tr("category"), escaped(rank.trace.category(event)));
  const std::string owner = rank.owner_of_event(index);
  if (!owner.empty()) {
    sheet.row(QObject::tr("unit"), escaped(owner));
  }
  basis_row(rank.basis_of_event(index), sheet);
  sheet.row(QObject::tr("duration"), durationText(event.duration));
  sheet.row(QObject::tr("ran"),
            QObject::tr("%1 to %2")
                .arg(instant(run, rank, event.start), instant(run, rank, event.end())));
  if (const auto step = rank.step_at(event.start)) {
    sheet.row(QObject::tr("step"), QString::number(rank.figures.steps[*step].step));
  }
  if (const trace::DeviceArgs* device = rank.trace.device(event)) {
    sheet.row(QObject::tr("stream"), QString::number(device->stream));
    if (device->bytes >= 0) {
      sheet.row(QObject::tr("bytes"), bytesText(device->bytes));
    }
  }
  const Selection::Item item{0, Lane::Source::kEvents, index};
  if (const auto ends = launch_ends(rank, item)) {
    const Nanoseconds later =
        interval_of(rank, ends->launched).start - rank.trace.events[ends->call.ref].start;
    if (device_event_of(rank.trace, rank.timeline, index)) {
      sheet.row(QObject::tr("launched by"), launch_text(rank, ends->call.ref));
      sheet.row(QObject::tr("launched"),
                QObject::tr("%1 before it began").arg(durationText(later)));
    } else {
      sheet.row(QObject::tr("launched first"),
                QObject::tr("%1, which began %2 later")
                    .arg(launched_name(rank, ends->launched), durationText(later)));
    }
  } else if (device_event_of(rank.trace, rank.timeline, index) &&
             !rank.trace.metadata.simulated()) {
    sheet.row(QObject::tr("launched by"), why_no_launch());
  }
  if (event.correlation != 0) {
    sheet.row(QObject::tr("correlation"), QString::number(event.correlation));
  }
  return sheet.done();
}

QString of_residency(const RunData& run, const RankData& rank, uint32_t index) {
  const Residency& held = rank.residencies[index];
  Sheet sheet(QObject::tr("parameters of unit %1").arg(escaped(unit_label(held.unit))));
  sheet.rank(rank);
  sheet.row(QObject::tr("gathering"), durationText(held.usable - held.when.start));
  sheet.row(QObject::tr("gathered"),
            QObject::tr("<b>%1</b>, %2 to %3")
                .arg(durationText(held.when.end - held.usable), instant(run, rank, held.usable),
                     instant(run, rank, held.when.end)));
  if (run.run.planned) {
    const plan::ResolvedPlan& plan = run.run.planned->plan;
    for (UnitId id = 0; id < plan.units.size(); ++id) {
      if (plan.units[id].fqn == held.unit) {
        const plan::ShardLayout layout = plan.layout(id);
        const Bytes full = layout.padded_numel() * size_of(plan.param_dtype(id));
        sheet.row(QObject::tr("all parameters"), bytesText(full));
        sheet.row(QObject::tr("this rank's shard"),
                  bytesText(layout.shard_numel() * size_of(plan.master_dtype(id))));
      }
    }
  }
  int64_t others = 0;
  for (const Residency& each : rank.residencies) {
    others += each.when.start < held.when.end && held.when.start < each.when.end ? 1 : 0;
  }
  sheet.row(QObject::tr("units at the same time"), QObject::tr("%1 others").arg(others - 1));
  return sheet.done();
}

QString of_idle(const RunData& run, const RankData& rank, uint32_t index) {
  const analysis::IdlePart& part = rank.idle()[index];
  Sheet sheet(QObject::tr("idle, %1").arg(idle_words(part.cause)));
  sheet.rank(rank);
  sheet.row(QObject::tr("duration"),
            QStringLiteral("<b>%1</b>").arg(durationText(part.when.length())));
  sheet.row(QObject::tr("cause"), idle_explanation(part.cause));
  const IdleReason reason = idle_reason(rank, index);
  if (reason.host != trace::kNoIndex) {
    sheet.row(QObject::tr("the host was in"),
              escaped(rank.trace.name(rank.trace.events[reason.host])));
  } else if (part.cause == analysis::IdleCause::kHostLate) {
    sheet.row(QObject::tr("the host was in"), QObject::tr("no operator and no call (Python)"));
  }
  if (reason.ended_by) {
    const analysis::DeviceEvent& next = rank.timeline.device_events[*reason.ended_by];
    sheet.row(QObject::tr("next"), escaped(rank.trace.name(rank.trace.events[next.event])));
    if (next.launch != trace::kNoIndex) {
      sheet.row(QObject::tr("launched by"), launch_text(rank, next.launch));
      sheet.row(
          QObject::tr("launched"),
          QObject::tr("%1 before it began").arg(durationText(next.when.start - next.launched)));
    }
  }
  sheet.row(QObject::tr("from, to"),
            QObject::tr("%1 to %2")
                .arg(instant(run, rank, part.when.start), instant(run, rank, part.when.end)));
  return sheet.done();
}

// Adds equal blocks with their median, and the worst one with its name.
void add_block(Sheet& sheet, const RankData& rank, const analysis::BlockFigures& block) {
  const std::vector<analysis::UnitFigures>& units = rank.figures.units;
  sheet.section(QObject::tr("blocks alike, %1").arg(escaped(block.name)));
  sheet.row(QObject::tr("compute"), spread_text(units, block.compute).toHtmlEscaped());
  sheet.row(QObject::tr("exposed"), spread_text(units, block.exposed).toHtmlEscaped());
  for (size_t i = 0; i < block.parts.size(); ++i) {
    if (const auto& part = block.parts[i]) {
      sheet.row(words(name_of(static_cast<analysis::UnitPart>(i))).toHtmlEscaped(),
                spread_text(units, *part).toHtmlEscaped());
    }
  }
  if (!block.outliers.empty()) {
    sheet.row(QObject::tr("far from the others"),
              QStringLiteral("<b>%1</b>").arg(outliers_text(units, block).toHtmlEscaped()));
  }
}

// Adds when the rank had all parameters of the unit.
void add_gathered(Sheet& sheet, const RunData& run, const RankData& rank, const std::string& unit) {
  constexpr int kListed = 4;
  QStringList times;
  int count = 0;
  for (const Residency& held : rank.residencies) {
    if (held.unit == unit && ++count <= kListed) {
      times.append(QObject::tr("%1 to %2")
                       .arg(instant(run, rank, held.usable), instant(run, rank, held.when.end)));
    }
  }
  if (count > kListed) {
    times.append(QObject::tr("%1 more").arg(count - kListed));
  }
  if (count > 0) {
    sheet.row(QObject::tr("gathered"), times.join(QStringLiteral("<br>")));
  }
}

// Adds the model's parameters that the rank keeps between steps.
void add_kept(Sheet& sheet, const plan::ResolvedPlan& plan, int64_t rank) {
  Bytes kept = 0, all = 0;
  for (UnitId unit = 0; unit < plan.units.size(); ++unit) {
    const plan::ShardLayout layout = plan.layout(unit);
    const Bytes element = size_of(plan.master_dtype(unit));
    for (size_t i = 0; i < plan.units[unit].parameters.size(); ++i) {
      kept += layout.slice(rank % layout.ranks(), i).numel * element;
      all += plan.tree.parameters[plan.units[unit].parameters[i]].numel * element;
    }
  }
  sheet.row(QObject::tr("keeps"),
            QObject::tr("<b>%1</b> of the parameters' %2").arg(bytesText(kept), bytesText(all)));
}

QString of_unit(const RunData& run, const RankData& rank, const std::string& unit) {
  const auto found =
      std::find_if(rank.figures.units.begin(), rank.figures.units.end(),
                   [&unit](const analysis::UnitFigures& u) { return u.fqn == unit; });
  Sheet sheet(QObject::tr("unit %1, all steps").arg(escaped(unit_label(unit))));
  sheet.rank(rank);
  if (found == rank.figures.units.end()) {
    sheet.row(QObject::tr("figures"), QObject::tr("no events of this unit on this rank"));
    return sheet.done();
  }
  sheet.row(QObject::tr("compute"),
            QObject::tr("%1 (forward %2, backward %3)")
                .arg(durationText(found->compute), durationText(found->compute_forward),
                     durationText(found->compute_backward)));
  sheet.row(QObject::tr("exposed"),
            QStringLiteral("<b>%1</b>").arg(durationText(found->exposed())));
  for (int i = 0; i < analysis::kUnitPartCount; ++i) {
    const auto& part = found->parts[static_cast<size_t>(i)];
    if (!part) {
      continue;
    }
    sheet.section(words(name_of(static_cast<analysis::UnitPart>(i))).toHtmlEscaped());
    sheet.row(QObject::tr("count, bytes"),
              QObject::tr("%1, %2").arg(part->count).arg(bytesText(part->bytes)));
    sheet.row(
        QObject::tr("busy, exposed"),
        QObject::tr("%1, <b>%2</b>").arg(durationText(part->busy), durationText(part->exposed)));
    if (part->lead) {
      sheet.row(QObject::tr("lead, median"), durationText(*part->lead));
    }
    if (part->cause) {
      sheet.row(QObject::tr("cause"),
                QStringLiteral("<b>%1</b>: %2")
                    .arg(escaped(words_of(*part->cause)), escaped(explanation_of(*part->cause))));
    }
  }
  add_gathered(sheet, run, rank, unit);
  const auto number = static_cast<uint32_t>(found - rank.figures.units.begin());
  for (const analysis::BlockFigures& block : rank.figures.blocks) {
    if (std::ranges::find(block.units, number) != block.units.end()) {
      add_block(sheet, rank, block);
    }
  }
  return sheet.done();
}

QString of_rank(const RunData& run, const RankData& rank, const PlanPointer& recovered) {
  Sheet sheet(QObject::tr("rank %1").arg(rank.figures.rank));
  const analysis::WindowFigures& f = rank.figures.figures;
  if (!rank.trace.metadata.source.empty()) {
    sheet.row(QObject::tr("trace"), escaped(rank.trace.metadata.source));
  }
  sheet.row(QObject::tr("events"),
            QLocale().toString(static_cast<qlonglong>(rank.trace.events.size())));
  if (!rank.trace.metadata.backend.empty()) {
    sheet.row(QObject::tr("backend"), escaped(rank.trace.metadata.backend));
  }
  if (run.run.planned) {
    add_kept(sheet, run.run.planned->plan, rank.figures.rank);
  } else if (recovered != nullptr) {
    add_kept(sheet, *recovered, rank.figures.rank);
  }
  sheet.row(QObject::tr("compute from"),
            rank.figures.device ? QObject::tr("kernels of the device")
                                : QObject::tr("operators of the host (no device in the trace)"));
  for (const analysis::FigureRow& row : analysis::figure_table()) {
    sheet.row(QObject::tr(row.label.data()),
              row.time != nullptr ? durationText(row.time(f))
                                  : QString::fromStdString(report::format_percent(row.ratio(f))));
  }
  for (const auto& [kind, figures] : f.collectives) {
    sheet.row(words(name_of(kind)).toHtmlEscaped(),
              QObject::tr("%1, %2, exposed <b>%3</b>")
                  .arg(countText(figures.count, QObject::tr("call"), QObject::tr("calls")),
                       durationText(figures.busy), durationText(figures.exposed)));
  }
  for (const analysis::StragglerFigures& straggler : run.analysis.matching.stragglers) {
    if (straggler.rank == rank.figures.rank && straggler.last > 0) {
      sheet.row(
          QObject::tr("started last"),
          QObject::tr("in %1, delayed others by %2")
              .arg(countText(straggler.last, QObject::tr("collective"), QObject::tr("collectives")),
                   durationText(straggler.held_up)));
    }
  }
  for (const analysis::BlockFigures& block : rank.figures.blocks) {
    add_block(sheet, rank, block);
  }
  return sheet.done();
}

}  // namespace

QString inspected(const SelectionContext& context, const PlanPointer& recovered) {
  const RankData* rank = context.rank();
  if (rank == nullptr) {
    return {};
  }
  const Selection& chosen = context.current();
  const RunData& run = *context.run();
  if (chosen.item && chosen.item->source == Lane::Source::kEvents) {
    return of_event(run, *rank, chosen.item->ref);
  }
  if (chosen.item && is_collective(*chosen.item)) {
    return of_collective(run, *rank, chosen.item->ref);
  }
  if (chosen.item && chosen.item->source == Lane::Source::kResidency) {
    return of_residency(run, *rank, chosen.item->ref);
  }
  if (chosen.item && chosen.item->source == Lane::Source::kIdle) {
    return of_idle(run, *rank, chosen.item->ref);
  }
  return chosen.unit ? of_unit(run, *rank, *chosen.unit) : of_rank(run, *rank, recovered);
}

}  // namespace shardlens::gui
