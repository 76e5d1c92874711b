#include "gui/model/tables/roofline_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "gui/model/base/time_axis.h"
#include "gui/model/run/run_notes.h"
#include "gui/model/tables/table_text.h"
#include "gui/model/what_if/plan_state.h"
#include "profiler/report/table.h"

namespace shardlens::gui {
namespace {

const char* kind_words(plan::OperatorKind kind) {
  constexpr const char* kNames[] = {"matrix products", "attention", "embedding", "norms",
                                    "element-wise",    "loss",      "optimizer"};
  return kNames[static_cast<size_t>(kind)];
}

// "1.23 T", "45.6 G": of FLOPs.
QString count_text(double value) {
  constexpr std::array<std::pair<double, const char*>, 4> kScales{
      {{1e15, "P"}, {1e12, "T"}, {1e9, "G"}, {1e6, "M"}}};
  for (const auto& [scale, letter] : kScales) {
    if (value >= scale) {
      return QStringLiteral("%1 %2").arg(value / scale, 0, 'f', 2).arg(QLatin1String(letter));
    }
  }
  return QString::number(value, 'f', 0);
}

QString share_text(double share, bool known) {
  return known ? QString::fromStdString(report::format_percent(share)) : QStringLiteral("–");
}

QString group_name(const sim::OperatorWork& work, RooflineGrouping grouping) {
  switch (grouping) {
    case RooflineGrouping::kUnit:
      return table_text(unit_label(work.unit));
    case RooflineGrouping::kModule:
      return work.module.empty() ? QObject::tr("(module not known)") : table_text(work.module);
    case RooflineGrouping::kKind:
      return QObject::tr(kind_words(work.kind));
    case RooflineGrouping::kOperator:
      break;
  }
  return table_text(work.name);
}

}  // namespace

std::optional<sim::HardwareSpec> recorded_gpu(const RunData& run) {
  if (run.run.traces.empty()) {
    return std::nullopt;
  }
  const nlohmann::json list =
      nlohmann::json::parse(run.run.traces.front().metadata.device_properties, nullptr, false);
  if (!list.is_array() || list.empty() || !list[0].is_object()) {
    return std::nullopt;
  }
  const auto name = list[0].find("name");
  const auto memory = list[0].find("totalGlobalMem");
  if (name == list[0].end() || !name->is_string()) {
    return std::nullopt;
  }
  const bool sized = memory != list[0].end() && memory->is_number_integer();
  return sim::hardware_of_device(name->get<std::string>(), sized ? memory->get<Bytes>() : 0);
}

std::vector<ColumnTable::Column> RooflineTable::columns(const RooflineTable* of) {
  const auto row = [of](size_t r) -> const Row& { return of->list_[r]; };
  const auto number = [](const QString& title, auto text, auto key, const QString& help) {
    return Column{title, std::move(text), std::move(key), true, help};
  };
  return {
      {tr("What"), [row](size_t r) { return row(r).name; }},
      {tr("Time"), [row](size_t r) { return durationText(std::llround(row(r).time)); },
       [row](size_t r) { return row(r).time; }, true,
       tr("Of the operators in a step, without launches and waits"), Scale::kDuration},
      number(
          tr("Share"), [row](size_t r) { return share_text(row(r).share, true); },
          [row](size_t r) { return row(r).share; }, tr("Of the time of all operators")),
      number(
          tr("FLOPs"), [row](size_t r) { return count_text(row(r).flops); },
          [row](size_t r) { return row(r).flops; },
          tr("Of matrix products and attention in a step, with what runs again in backward")),
      number(
          tr("TFLOP/s"), [row](size_t r) { return QString::number(row(r).tflops(), 'f', 1); },
          [row](size_t r) { return row(r).tflops(); }, {}),
      number(
          tr("Of peak"), [row](size_t r) { return share_text(row(r).ofPeak(), row(r).isKnown()); },
          [row](size_t r) { return row(r).ofPeak(); },
          tr("The time that the FLOPs take at the vendor's rate in their dtype, as a share of the "
             "time")),
      number(
          tr("FLOP/byte"), [row](size_t r) { return QString::number(row(r).intensity(), 'f', 1); },
          [row](size_t r) { return row(r).intensity(); },
          tr("FLOPs for each byte that is read or written, each tensor once")),
      number(
          tr("Of roofline"),
          [row](size_t r) { return share_text(row(r).ofRoofline(), row(r).isKnown()); },
          [row](size_t r) { return row(r).ofRoofline(); },
          tr("The least time that FLOPs and bytes allow at the vendor's rates, summed over the "
             "operators, as a share of the time")),
      {tr("Bound by"),
       [row](size_t r) {
         return !row(r).isKnown()                 ? QStringLiteral("–")
                : row(r).compute >= row(r).memory ? tr("compute")
                                                  : tr("memory");
       }},
      number(
          tr("Count"), [row](size_t r) { return QString::number(std::llround(row(r).count)); },
          [row](size_t r) { return row(r).count; }, tr("Operators in a step")),
  };
}

RooflineTable::RooflineTable(QObject* parent) : ColumnTable(columns(this), parent) {}

void RooflineTable::add(const std::vector<sim::OperatorWork>& work,
                        const std::optional<sim::HardwareSpec>& hardware,
                        RooflineGrouping grouping,
                        bool measured) {
  std::map<QString, size_t> rows;
  std::vector<Row> list;
  double all = 0;
  for (const sim::OperatorWork& each : work) {
    const auto [at, is_new] = rows.try_emplace(group_name(each, grouping), list.size());
    if (is_new) {
      list.emplace_back();
      list.back().name = at->first;
      list.back().measured = measured;
    }
    Row& row = list[at->second];
    row.count += each.count;
    row.flops += each.flops;
    row.bytes += each.bytes;
    row.time += each.time;
    all += each.time;
    if (each.time >= row.most) {
      row.most = each.time;
      row.unit = each.unit;
    }
    if (hardware) {
      const sim::LeastTime least = sim::least_time(each, hardware->gpu);
      row.compute += least.compute;
      row.memory += least.memory;
      row.roofline += least.roofline();
    }
  }
  std::ranges::stable_sort(list, std::ranges::greater{}, &Row::time);
  for (Row& row : list) {
    row.share = all > 0 ? row.time / all : 0;
    list_.push_back(std::move(row));
  }
}

RooflineTable::Row RooflineTable::total(const std::vector<Row>& rows, bool measured) {
  Row out;
  for (const Row& row : rows) {
    if (row.measured == measured) {
      out.flops += row.flops;
      out.bytes += row.bytes;
      out.time += row.time;
      out.compute += row.compute;
      out.memory += row.memory;
      out.roofline += row.roofline;
    }
  }
  return out;
}

QString RooflineTable::totalText(bool measured, const QString& what) const {
  const Row sum = total(list_, measured);
  const auto& gpu = measured ? run_gpu_ : plan_gpu_;
  const QString rates = gpu ? tr(", %1 of the peak of %2, %3 of its roofline")
                                  .arg(share_text(sum.ofPeak(), true), table_text(gpu->gpu.name),
                                       share_text(sum.ofRoofline(), true))
                            : QString();
  return tr("%1: %2 FLOPs in %3 of operators%4.")
      .arg(what, count_text(sum.flops), durationText(std::llround(sum.time)), rates);
}

void RooflineTable::show(const SelectionContext& selection,
                         const PlanSession& session,
                         RooflineGrouping grouping) {
  list_.clear();
  run_gpu_.reset();
  plan_gpu_.reset();
  QStringList sentences;
  std::vector<Section> sections(2);
  const RunPointer& run = selection.run();
  if (session.recorded() != nullptr && run != nullptr && session.run() == run) {
    run_gpu_ = recorded_gpu(*run);
    add(sim::measured_work(session.recorded()->observation()), run_gpu_, grouping, true);
    sections[0].title = is_simulated(*run) ? tr("The run's step, simulated") : tr("Recorded");
    sentences.append(totalText(true, sections[0].title));
    if (!run_gpu_) {
      sentences.append(
          tr("The GPU of the run is not known, so what it could reach is not known either."));
    }
  }
  const size_t measured = list_.size();
  const PlanVersion* now = session.current();
  if (now != nullptr && now->hasStep()) {
    try {
      plan_gpu_ = spec_of(now->state.machine);
    } catch (const Error&) {
      plan_gpu_.reset();  // the version's error names what is wrong with the file
    }
    plan_gpu_ = plan_gpu_ ? plan_gpu_ : run_gpu_;  // the machine of the run
    add(now->work, plan_gpu_, grouping, false);
    sections[1].title = tr("v%1, simulated").arg(now - session.versions().data());
    sentences.append(totalText(false, sections[1].title));
    if (now->prediction.mfu) {
      sentences.append(
          tr("MFU of the whole step: %1.").arg(share_text(*now->prediction.mfu, true)));
    }
    if (!plan_gpu_ && measured == 0) {
      sentences.append(
          tr("Choose a GPU under Machine in What if to see which share of its rates "
             "is reached."));
    }
  }
  sections[0].rows.resize(measured);
  sections[1].rows.resize(list_.size() - measured);
  std::iota(sections[0].rows.begin(), sections[0].rows.end(), 0U);
  std::iota(sections[1].rows.begin(), sections[1].rows.end(), static_cast<uint32_t>(measured));
  summary_ = sentences.isEmpty()
                 ? (session.isOpen() ? tr("The plan is not simulated.") : session.why())
                 : sentences.join(u' ');
  reset(std::move(sections));
}

}  // namespace shardlens::gui
