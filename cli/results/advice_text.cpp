#include "cli/results/advice_text.h"

#include <cstdlib>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/base/format_bytes.h"
#include "core/base/show.h"
#include "sim/scenario/uncertainty.h"

namespace shardlens::cli {
namespace {

using report::Align;
using report::format_duration;

std::string signed_duration(Nanoseconds value) {
  return (value > 0 ? "+" : "") + format_duration(value);
}

Shown changes_table(const sim::Advice& advice,
                    const std::vector<sim::AdvisedChange>& changes,
                    const char* heading,
                    bool numbered,
                    report::Style style) {
  const bool measured = !changes.empty() && changes.front().measured_change.has_value();
  std::vector<report::Table::Column> columns{
      {heading, Align::kLeft},   {"step"},           {"change"}, {"90 % from"}, {"to"},
      {"verdict", Align::kLeft}, {"peak allocated"}, {"change"}};
  if (measured) {
    columns.push_back({"measured"});
  }
  report::Table table(std::move(columns));
  size_t number = 0;
  for (const sim::AdvisedChange& each : changes) {
    const auto own = static_cast<double>(each.duration - each.change);
    const auto share = [own](Nanoseconds change) {
      return fmt::format("{:+.1f} %", 100 * static_cast<double>(change) / own);
    };
    const Bytes more = each.peak_allocated - advice.peak_allocated;
    std::vector<std::string> cells{
        numbered ? fmt::format("{}  {}", ++number, each.title) : each.title,
        format_duration(each.duration),
        share(each.change),
        share(each.interval.low),
        share(each.interval.high),
        each.odds.text(),
        format_bytes(each.peak_allocated),
        more == 0 ? "" : (more > 0 ? "+" : "-") + format_bytes(std::abs(more))};
    if (each.measured_change) {
      cells.push_back(fmt::format("{} ± {}", signed_duration(*each.measured_change),
                                  format_duration(each.measured_error.value_or(0))));
    }
    table.row(std::move(cells));
  }
  return table.render(style);
}

// What few recorded steps mean for the intervals; "": there are enough.
Shown note_on_steps(size_t steps) {
  if (steps == 0 || steps >= sim::Uncertainty::kEnoughSteps) {
    return {};
  }
  return steps == 1 ? Shown(
                          "The intervals do not contain the noise of steps, because only one was "
                          "recorded; record 8 or more.\n")
                    : show(
                          "The intervals are wide because {} steps hardly show how much "
                          "steps differ; record 8 or more.\n",
                          steps);
}

// What the verdicts mean.
Shown rule(const sim::Advice& advice) {
  if (advice.changes.empty() && advice.others.empty()) {
    return {};
  }
  return show(
      "pays, loses: the sign of the change is certain to 99 %; otherwise its odds are given; no "
      "difference: less than {} % of a step is expected. The interval is that of the expected "
      "change, not of the difference of two runs.\n",
      100 * sim::kLeastDifference);
}

// What each change hides, and the lines that make it.
Shown details(const std::vector<sim::AdvisedChange>& changes, report::Style style) {
  Shown out;
  size_t number = 0;
  for (const sim::AdvisedChange& each : changes) {
    out += show("\n{}\n", report::bold(show("{}  {}", ++number, each.title), style));
    for (const sim::HiddenTime& hidden : each.hides) {
      out += show("   exposes {} less: {} of {}\n", format_duration(hidden.time), hidden.collective,
                  hidden.unit.empty() ? "(root)" : hidden.unit);
    }
    for (const std::string& line : each.lines) {
      out += show("     {}\n", line);
    }
  }
  return out;
}

// The changes whose price rests on sizes far outside the measured ones; "": there are none.
Shown extrapolated_table(const sim::Advice& advice, report::Style style) {
  report::Table table({{"priced beyond what was measured", Align::kLeft}, {"", Align::kLeft}});
  bool any = false;
  for (const auto* changes : {&advice.changes, &advice.others}) {
    for (const sim::AdvisedChange& each : *changes) {
      for (const sim::Extrapolation& work : each.extrapolated) {
        if (work.is_far()) {
          table.row({each.title, sim::far_extrapolations_text({&work, 1})});
          any = true;
        }
      }
    }
  }
  return any ? "\n" + table.render(style) : Shown();
}

}  // namespace

Shown advice_text(const sim::Advice& advice, const std::string& source, report::Style style) {
  Shown out = show("{}  {} measured, {} simulated: {:+.1f} % ({}); peak {} allocated{}\n\n",
                   report::bold("baseline", style), format_duration(advice.baseline.measured),
                   format_duration(advice.baseline.simulated), advice.baseline.error() * 100,
                   advice.baseline.measured_text(source), format_bytes(advice.peak_allocated),
                   advice.fits ? "" : ", which does not fit");
  if (const std::string doubt = advice.baseline.doubt_text(); !doubt.empty()) {
    out += show("{}\n", doubt);
  }
  const Shown note = note_on_steps(advice.baseline.one_pass ? 0 : advice.steps);
  if (advice.changes.empty()) {
    out += advice.fits ? Literal("No change is predicted to pay.\n") : Literal("No change fits.\n");
    out += note;
  } else {
    out += changes_table(advice, advice.changes,
                         advice.fits ? "change predicted to pay" : "what fits", true, style);
    if (advice.is_uncertain()) {
      out += "The simulator's error for the run as it is is larger than these gains.\n";
    }
    out += note;
    out += details(advice.changes, style);
  }
  if (!advice.others.empty()) {
    out += "\n" + changes_table(advice, advice.others, "other changes", false, style);
  }
  out += rule(advice);
  out += extrapolated_table(advice, style);
  if (advice.all_gathers_block) {
    out +=
        "\nThe host waits for each all-gather where it is issued, as PyTorch's FSDP does over "
        "Gloo, so prefetch hides nothing.\n";
  }
  if (!advice.unknown.empty()) {
    report::Table table({{"not predicted", Align::kLeft}, {"reason", Align::kLeft}});
    for (const sim::UnknownChange& each : advice.unknown) {
      table.row({each.title, each.reason});
    }
    out += "\n" + table.render(style);
  }
  if (!advice.waste.empty()) {
    report::Table table(
        {{"waste", Align::kLeft}, {"where", Align::kLeft}, {"lost a step"}, {"", Align::kLeft}});
    for (const sim::FoundWaste& each : advice.waste) {
      table.row({std::string(name_of(each.kind)), each.unit.empty() ? "(root)" : each.unit,
                 format_duration(each.lost), each.evidence});
    }
    out += "\n" + table.render(style);
  }
  return out;
}

}  // namespace shardlens::cli
