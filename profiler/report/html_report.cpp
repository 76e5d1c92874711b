#include "profiler/report/html_report.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/json/json_dump.h"
#include "profiler/analysis/figures/figure_table.h"
#include "profiler/report/analysis_report.h"
#include "profiler/report/report_page.h"

namespace shardlens::report {
namespace {

using analysis::Interval;
using analysis::IntervalSet;
using analysis::RankAnalysis;
using analysis::UnitSpan;
using nlohmann::ordered_json;

constexpr int kSpanKinds = 7;
// Resolution, in parts of a step, at which sets of instants are drawn.
constexpr Nanoseconds kParts = 3000;
constexpr size_t kLeastSpan = 20;  // bytes of the shortest span: "[0,0,0,0,0,0,0,0,0,0]"

// Assigns numbers to names, so that each name is written once.
class Names {
 public:
  size_t id(const std::string& name) {
    const auto [it, fresh] = ids_.try_emplace(name, list_.size());
    if (fresh) {
      list_.push_back(name);
    }
    return it->second;
  }
  [[nodiscard]] const std::vector<std::string>& list() const { return list_; }

 private:
  std::map<std::string, size_t> ids_;
  std::vector<std::string> list_;
};

// Starts and ends of the intervals within the window, relative to it; gaps shorter than `gap` are
// closed.
ordered_json instants(const IntervalSet& set, const Interval& window, Nanoseconds gap) {
  std::vector<Nanoseconds> flat;
  auto it = std::upper_bound(set.begin(), set.end(), window.start,
                             [](Nanoseconds t, const Interval& i) { return t < i.end; });
  for (; it != set.end() && it->start < window.end; ++it) {
    const Nanoseconds start = std::max(it->start, window.start) - window.start;
    const Nanoseconds end = std::min(it->end, window.end) - window.start;
    if (!flat.empty() && start - flat.back() < gap) {
      flat.back() = end;
    } else {
      flat.push_back(start);
      flat.push_back(end);
    }
  }
  return flat;
}

// Finds the spans of a window: a tree of the latest ends of spans, which are by start.
//
// Complexity  O(log n) per span found.
class SpanFinder {
 public:
  explicit SpanFinder(const std::vector<UnitSpan>& spans) : spans_(spans) {
    while (leaves_ < spans.size()) {
      leaves_ *= 2;
    }
    latest_.assign(2 * leaves_, std::numeric_limits<Nanoseconds>::min());
    for (size_t i = 0; i < spans.size(); ++i) {
      latest_[leaves_ + i] = spans[i].when.end;
    }
    for (size_t i = leaves_; i-- > 1;) {
      latest_[i] = std::max(latest_[2 * i], latest_[2 * i + 1]);
    }
  }

  // The spans that overlap the window, by start; nullopt: more than `most`.
  [[nodiscard]] std::optional<std::vector<const UnitSpan*>> within(const Interval& window,
                                                                   size_t most) const {
    const auto last = std::partition_point(
        spans_.begin(), spans_.end(), [&](const UnitSpan& s) { return s.when.start < window.end; });
    std::vector<const UnitSpan*> out;
    add(1, leaves_, static_cast<size_t>(last - spans_.begin()), window.start, most, out);
    return out.size() > most ? std::nullopt : std::optional(std::move(out));
  }

 private:
  // The spans below a node with `width` leaves, that are before place `last` and end after `start`.
  // They are added up to one more than `most`.
  void add(size_t node,
           size_t width,
           size_t last,
           Nanoseconds start,
           size_t most,
           std::vector<const UnitSpan*>& out) const {
    const size_t first = node * width - leaves_;  // nodes of `width` leaves follow each other
    if (first >= last || latest_[node] <= start || out.size() > most) {
      return;
    }
    if (width == 1) {
      out.push_back(&spans_[first]);
      return;
    }
    add(2 * node, width / 2, last, start, most, out);
    add(2 * node + 1, width / 2, last, start, most, out);
  }

  const std::vector<UnitSpan>& spans_;
  size_t leaves_ = 1;
  std::vector<Nanoseconds> latest_;  // by node; the children of node i are 2i and 2i + 1
};

class StepDrawing {
 public:
  StepDrawing(const RankAnalysis& rank, Names& owners)
      : rank_(rank), owners_(owners), finder_(rank.detail->spans) {
    exposed_ = analysis::subtract(rank.detail->communication, rank.detail->compute);
  }

  // nullopt: the step has more than `most` spans.
  [[nodiscard]] std::optional<ordered_json> step(const std::optional<int64_t>& number,
                                                 const Interval& window,
                                                 size_t most = std::numeric_limits<size_t>::max() -
                                                               1) {
    const auto spans = finder_.within(window, most);
    if (!spans) {
      return std::nullopt;
    }
    const Nanoseconds gap = window.length() / kParts;
    ordered_json out;
    out["step"] = number ? ordered_json(*number) : ordered_json(nullptr);
    out["length"] = window.length();
    out["merged"] = gap;
    out["compute"] = instants(rank_.detail->compute, window, gap);
    out["copy"] = instants(rank_.detail->copy, window, gap);
    out["exposed"] = instants(exposed_, window, 0);
    out["regions"] = regions(window);
    out["spans"] = ordered_json::array();
    for (const UnitSpan* span : *spans) {
      out["spans"].push_back(span_json(*span, window.start));
    }
    return out;
  }

 private:
  // [kind, owner, start, length, exposed, cause (-1: none), issued, section, busy, needed], and how
  // the owner was found, if that was by an annotation or an order.
  ordered_json span_json(const UnitSpan& span, Nanoseconds zero) {
    const auto since = [zero](const std::optional<Nanoseconds>& time) {
      return time ? ordered_json(*time - zero) : ordered_json(nullptr);
    };
    ordered_json out{static_cast<int>(span.kind),
                     owners_.id(span.owner),
                     span.when.start - zero,
                     span.when.length(),
                     span.exposed,
                     span.cause ? static_cast<int>(*span.cause) : -1,
                     since(span.issued),
                     static_cast<int>(span.section),
                     span.busy,
                     since(span.needed_at)};
    if (span.basis != analysis::Basis::kNone) {
      out.push_back(name_of(span.basis));
    }
    return out;
  }

  // [name, start, length] of those that overlap the window.
  [[nodiscard]] ordered_json regions(const Interval& window) const {
    ordered_json out = ordered_json::array();
    for (const analysis::Region& each : rank_.detail->regions) {
      if (each.when.start < window.end && each.when.end > window.start) {
        out.push_back({each.name, each.when.start - window.start, each.when.length()});
      }
    }
    return out;
  }

  const RankAnalysis& rank_;
  Names& owners_;
  SpanFinder finder_;
  IntervalSet exposed_;
};

// Allocated bytes over time, for each device.
ordered_json memory_json(const RankAnalysis& rank) {
  ordered_json out = ordered_json::array();
  for (const analysis::MemoryFigures& device : rank.memory) {
    ordered_json points = ordered_json::array();
    for (const analysis::MemoryPoint& point : device.timeline) {
      points.push_back({point.time - device.timeline.front().time, point.allocated});
    }
    const std::string name =
        device.device +
        (device.from_driver ? " (from the driver, since recording began)" : std::string());
    out.push_back({{"device", name}, {"points", std::move(points)}});
  }
  return out;
}

// The whole time of the rank as one window, for traces without steps.
Interval whole(const RankAnalysis& rank) {
  std::optional<Interval> hull;
  for (const IntervalSet* set :
       {&rank.detail->compute, &rank.detail->communication, &rank.detail->copy}) {
    if (!set->empty()) {
      const Interval own{set->front().start, set->back().end};
      hull = hull ? Interval{std::min(hull->start, own.start), std::max(hull->end, own.end)} : own;
    }
  }
  return hull.value_or(Interval{0, 1});
}

// The order in which steps get a timeline while there is room: the first and the last step, then
// those with the most exposed communication.
std::vector<size_t> by_interest(const RankAnalysis& rank) {
  std::vector<size_t> order(rank.steps.size());
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
  }
  const auto rate = [&](size_t i) {
    const bool end = i == 0 || i + 1 == rank.steps.size();
    return std::pair(end ? 0 : 1, -rank.steps[i].figures.exposed_comm);
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return rate(a) < rate(b); });
  return order;
}

ordered_json rank_json(const RankAnalysis& rank, Names& owners, size_t budget) {
  StepDrawing drawing(rank, owners);
  std::map<size_t, ordered_json> steps;
  size_t used = 0;
  for (const size_t i : by_interest(rank)) {
    const analysis::StepAnalysis& step = rank.steps[i];
    // A step that cannot fit is not drawn at all.
    std::optional<ordered_json> drawn =
        steps.empty() ? drawing.step(step.step, step.window)
                      : drawing.step(step.step, step.window, (budget - used) / kLeastSpan);
    const size_t bytes = drawn ? drawn->dump().size() : 0;
    if (!drawn || (!steps.empty() && used + bytes > budget)) {
      continue;
    }
    used = std::min(used + bytes, budget);
    steps.emplace(i, std::move(*drawn));
  }
  if (rank.steps.empty()) {
    steps.emplace(0, *drawing.step(std::nullopt, whole(rank)));
  }
  ordered_json out{
      {"rank", rank.rank}, {"steps", ordered_json::array()}, {"memory", memory_json(rank)}};
  for (auto& [i, step] : steps) {
    out["steps"].push_back(std::move(step));
  }
  return out;
}

// Escapes JSON for a script element: nothing in it may end the element or begin a comment.
std::string script_safe(const std::string& json) {
  std::string out;
  out.reserve(json.size());
  for (const char c : json) {
    switch (c) {
      case '<':
        out += "\\u003c";
        break;
      case '>':
        out += "\\u003e";
        break;
      case '&':
        out += "\\u0026";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace

std::string html_report(const trace::Run& run,
                        const analysis::Analysis& analysis,
                        const HtmlOptions& options) {
  analysis::Analysis figures = analysis;
  for (RankAnalysis& rank : figures.ranks) {
    rank.detail.reset();  // the page has the spans by step, in "detail"
  }
  Names owners;
  ordered_json data{{"source", run.source},
                    {"analysis", ordered_json::parse(analysis_json(figures))},
                    {"simulated", options.simulated},
                    {"advice", options.advice}};
  data["detail"] = ordered_json::array();
  const size_t share = options.timeline_bytes / std::max<size_t>(1, analysis.ranks.size());
  for (const RankAnalysis& rank : analysis.ranks) {
    data["detail"].push_back(rank_json(rank, owners, share));
  }
  data["figures"] = ordered_json::array();
  for (const analysis::FigureRow& row : analysis::figure_table()) {
    data["figures"].push_back(
        {{"key", row.key}, {"label", row.label}, {"time", row.time != nullptr}});
  }
  data["owners"] = owners.list();
  data["kinds"] = ordered_json::array();
  for (int i = 0; i < kSpanKinds; ++i) {
    data["kinds"].push_back(analysis::name_of(static_cast<UnitSpan::Kind>(i)));
  }
  data["sections"] = ordered_json::array();
  for (int i = 0; i < analysis::kSectionCount; ++i) {
    data["sections"].push_back(analysis::name_of(static_cast<analysis::Section>(i)));
  }
  data["causes"] = ordered_json::array();
  for (int i = 0; i < analysis::kExposedCauseCount; ++i) {
    const auto cause = static_cast<analysis::ExposedCause>(i);
    data["causes"].push_back(analysis::name_of(cause));
    const std::string key(analysis::name_of(cause));
    data["cause_words"][key] = analysis::words_of(cause);
    for (int part = 0; part < analysis::kUnitPartCount; ++part) {
      const auto of = static_cast<analysis::UnitPart>(part);
      data["remedies"][key][std::string(analysis::name_of(of))] = analysis::remedy_of(cause, of);
    }
  }
  for (int i = 0; i < analysis::kWasteKindCount; ++i) {
    const auto kind = static_cast<analysis::WasteKind>(i);
    data["waste_words"][std::string(analysis::name_of(kind))] = analysis::explanation_of(kind);
  }
  const std::string json = script_safe(plan::json_text(data));
  const std::string_view page = report_page();
  const std::string_view mark = "@DATA@";
  const size_t at = page.find(mark);
  return std::string(page.substr(0, at)) + json + std::string(page.substr(at + mark.size()));
}

}  // namespace shardlens::report
