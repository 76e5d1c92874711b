#include "profiler/report/check_report.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/base/show.h"
#include "core/json/json_dump.h"
#include "profiler/report/check_memory.h"

namespace shardlens::report {
namespace {

using check::AttributionRow;
using check::CheckResult;
using check::MetricResult;
using check::StructuralDifference;
using check::Verdict;
using Json = nlohmann::ordered_json;

Nanoseconds whole(double ns) {
  return static_cast<Nanoseconds>(std::llround(ns));
}

Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

Json share(double value, const MetricResult& m) {
  return m.effect.baseline > 0 ? number(value / m.effect.baseline) : Json(nullptr);
}

std::string word_of(const MetricResult& m) {
  if (m.gates) {
    return std::string(name_of(m.verdict));
  }
  if (!m.effect.measurable()) {
    return "unknown";
  }
  return !m.moved() ? "within noise" : m.effect.change > 0 ? "higher" : "lower";
}

std::string ms(double ns) {
  return std::isfinite(ns) ? fmt::format("{:.3f} ms", ns / 1e6) : "-";
}
std::string signed_ms(double ns) {
  return std::isfinite(ns) ? fmt::format("{:+.3f} ms", ns / 1e6) : "-";
}
std::string signed_percent(const MetricResult& m) {
  return m.effect.baseline > 0 ? fmt::format("{:+.1f} %", 100 * m.effect.change / m.effect.baseline)
                               : "-";
}
std::string interval(const MetricResult& m) {
  return std::isfinite(m.half_width)
             ? fmt::format("{:+.3f} … {:+.3f} ms", (m.effect.change - m.half_width) / 1e6,
                           (m.effect.change + m.half_width) / 1e6)
             : "-";
}

std::string ranks_text(const std::vector<int64_t>& ranks) {
  return ranks.size() > 4 ? fmt::format("{} ranks", ranks.size())
                          : fmt::format("{}", fmt::join(ranks, ", "));
}

// The group of a part: "compute", "exposed", "copy" or "idle".
std::string group_of(const AttributionRow& row) {
  return row.unit == "<idle>"              ? "idle"
         : row.part.starts_with("compute") ? "compute"
         : row.part == "copy"              ? "copy"
                                           : "exposed";
}

// "ΔT = Δcompute + Δexposed + Δcopy + Δidle" for the rows of one metric, in microseconds rounded so
// that they sum.
struct Sum {
  std::vector<std::string> groups;
  std::vector<Nanoseconds> rounded;
  Nanoseconds total = 0;
};
Sum sum_of(const std::vector<AttributionRow>& rows, check::Metric metric) {
  std::map<std::string, double> groups;
  for (const AttributionRow& row : rows) {
    if (row.metric == metric) {
      groups[group_of(row)] += row.delta;
    }
  }
  Sum sum;
  std::vector<Nanoseconds> exact;
  for (const char* name : {"compute", "exposed", "copy", "idle"}) {
    if (groups.contains(name)) {
      sum.groups.emplace_back(name);
      exact.push_back(whole(groups[name]));
    }
  }
  sum.rounded = round_to_microseconds(exact);
  for (const Nanoseconds part : sum.rounded) {
    sum.total += part;
  }
  return sum;
}

std::string sum_text(const std::vector<AttributionRow>& rows, check::Metric metric) {
  const Sum sum = sum_of(rows, metric);
  std::string out =
      fmt::format("{} {} =", name_of(metric), signed_ms(static_cast<double>(sum.total)));
  for (size_t i = 0; i < sum.groups.size(); ++i) {
    out += fmt::format(" {} {:+.3f}", sum.groups[i], static_cast<double>(sum.rounded[i]) / 1e6);
  }
  return out;
}

std::vector<check::Metric> attributed(const CheckResult& result) {
  std::vector<check::Metric> out;
  for (const AttributionRow& row : result.attribution) {
    if (std::find(out.begin(), out.end(), row.metric) == out.end()) {
      out.push_back(row.metric);
    }
  }
  return out;
}

Shown metrics_table(const CheckResult& result, Style style) {
  Table table({{"metric", Align::kLeft},
               {"baseline"},
               {"candidate"},
               {"change"},
               {""},
               {"interval"},
               {"threshold"},
               {"verdict", Align::kLeft}});
  for (const MetricResult& m : result.metrics) {
    if (!m.gates && m.effect.baseline == 0 && m.effect.candidate == 0) {
      continue;
    }
    table.row({std::string(name_of(m.metric)), ms(m.effect.baseline), ms(m.effect.candidate),
               signed_ms(m.effect.change), signed_percent(m), interval(m),
               m.gates ? ms(m.threshold) : "", word_of(m)});
    if (m.gates && m.verdict == Verdict::kRegression) {
      table.highlight();
    }
  }
  return table.render(style);
}

// The largest rows in microseconds. The rest is summed in one row, so that the column sums to the
// change.
std::vector<AttributionRow> largest(const std::vector<AttributionRow>& rows,
                                    check::Metric metric,
                                    size_t most) {
  std::vector<AttributionRow> out;
  AttributionRow rest{metric, "", "", 0};
  size_t left_out = 0;
  for (const AttributionRow& row : rows) {
    if (row.metric != metric) {
      continue;
    }
    if (out.size() < most) {
      out.push_back(row);
    } else {
      rest.delta += row.delta;
      ++left_out;
    }
  }
  if (left_out > 0) {
    rest.unit = fmt::format("{} more", left_out);
    out.push_back(rest);
  }
  std::vector<Nanoseconds> exact;
  for (const AttributionRow& row : out) {
    exact.push_back(whole(row.delta));
  }
  exact = round_to_microseconds(exact);
  for (size_t i = 0; i < out.size(); ++i) {
    out[i].delta = static_cast<double>(exact[i]);
  }
  return out;
}

// One line of text for JUnit, escaped, so that it has no control characters, which XML 1.0 does not
// allow.
std::string xml(std::string_view text) {
  std::string out;
  for (const char c : escaped(text)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

constexpr size_t kLongestText =
    1000;  // of a sentence in Markdown, whose names may be of any length

// Whether the character at `at` and what follows it are the middle of what GitHub, GitLab or
// Markdown itself makes a link of: "@name", "#1", "!1", "GH-1", "http://", "www.".
bool becomes_link(std::string_view text, size_t at) {
  const std::string_view next = text.substr(at + 1);
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  switch (text[at]) {
    case '@':
    case '#':
    case '!':
      return !next.empty() && next[0] != ' ';
    case ':':
      return next.starts_with("//");
    case 'H':
    case 'h':
      return next.size() > 1 && next[0] == '-' && digit(next[1]);
    case 'W':
    case 'w':
      return at >= 2 && (text[at - 1] | 0x20) == 'w' && (text[at - 2] | 0x20) == 'w' &&
             next.starts_with('.');
    default:
      return false;
  }
}

// Text for Markdown in which untrusted names are neither links, mentions, references to issues,
// pictures, code, HTML nor cells. Links are looked for in what Markdown makes, so a backslash would
// not help: a space of no width keeps their parts apart.
std::string cell(std::string_view text) {
  const std::string shown = elided(escaped(text), kLongestText);
  std::string out;
  for (size_t i = 0; i < shown.size(); ++i) {
    const char c = shown[i];
    const bool in_front = i == 0 && std::string_view("-+=_#").find(c) != std::string_view::npos;
    if (in_front || std::string_view("\\|`*[]~").find(c) != std::string_view::npos) {
      out += '\\';
      out += c;
    } else if (c == '<' || c == '>' || c == '&') {
      out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : "&amp;";
    } else {
      out += c;
    }
    if (becomes_link(shown, i)) {
      out += "&#8203;";
    }
  }
  return out;
}

std::string xml_lines(const std::vector<std::string>& lines) {
  std::string out;
  for (const std::string& line : lines) {
    out += (out.empty() ? "" : "\n") + xml(line);
  }
  return out;
}

std::string unit_of(const StructuralDifference& d) {
  return d.kind == "stream" || d.kind == "unsharded_bytes" ? "(all)" : check::unit_name(d.unit);
}

std::string difference_text(const StructuralDifference& d) {
  return fmt::format("{} {}: {} (baseline: {})", d.kind, unit_of(d), d.candidate, d.baseline);
}

constexpr size_t kMostRows = 12;

}  // namespace

std::string check_json(const CheckResult& result) {
  Json metrics = Json::array(), structural = Json::array(), attribution = Json::array();
  for (const MetricResult& m : result.metrics) {
    Json row{{"name", name_of(m.metric)},
             {"gates", m.gates},
             {"baseline", m.effect.baseline},
             {"candidate", m.effect.candidate},
             {"change", share(m.effect.change, m)},
             {"ci", Json::array({share(m.effect.change - m.half_width, m),
                                 share(m.effect.change + m.half_width, m)})},
             {"threshold", m.gates ? share(m.threshold, m) : Json(nullptr)},
             {"verdict", word_of(m)},
             {"change_ns", m.effect.change},
             {"ci_ns", Json::array({number(m.effect.change - m.half_width),
                                    number(m.effect.change + m.half_width)})},
             {"threshold_ns", m.gates ? number(m.threshold) : Json(nullptr)},
             {"detectable_ns", m.detectable ? number(*m.detectable) : Json(nullptr)},
             {"upper_bound_ns", m.upper ? number(*m.upper) : Json(nullptr)},
             {"enough", m.enough ? Json(*m.enough) : Json(nullptr)}};
    metrics.push_back(std::move(row));
  }
  for (const StructuralDifference& d : result.structural) {
    structural.push_back({{"kind", d.kind},
                          {"unit", d.unit},
                          {"baseline", d.baseline},
                          {"candidate", d.candidate},
                          {"ranks", d.ranks}});
  }
  for (const AttributionRow& row : result.attribution) {
    attribution.push_back({{"metric", name_of(row.metric)},
                           {"unit", row.unit},
                           {"part", row.part},
                           {"delta_ns", row.delta}});
  }
  return plan::json_text(Json{{"schema", 1},
                              {"verdict", name_of(result.verdict)},
                              {"reason", result.reason},
                              {"metrics", metrics},
                              {"structural", structural},
                              {"memory", memory_json(result.memory)},
                              {"attribution", attribution},
                              {"causes", result.causes},
                              {"notes", result.notes},
                              {"runs",
                               {{"baseline", result.baseline_runs},
                                {"candidate", result.candidate_runs},
                                {"steps", result.steps},
                                {"baseline_sessions", result.baseline_sessions},
                                {"candidate_sessions", result.candidate_sessions},
                                {"by_sessions", result.by_sessions}}},
                              {"alpha", result.alpha}}) +
         "\n";
}

Shown check_text(const CheckResult& result, Style style) {
  // `compare` has no reason, because it gives no verdict.
  Shown out = result.reason.empty()
                  ? Shown()
                  : bold(show("{}: {}", name_of(result.verdict), result.reason), style) + "\n";
  for (const std::string& cause : result.causes) {
    out += show("  {}\n", cause);
  }
  if (!result.metrics.empty()) {
    out += show("\n{} and {} runs of {} steps{}\n", result.baseline_runs, result.candidate_runs,
                result.steps,
                result.reason.empty()
                    ? ""
                    : fmt::format("; false alarms at most {:g} %", 100 * result.alpha));
    out += metrics_table(result, style);
  }
  if (!result.structural.empty()) {
    Table table({{"structure", Align::kLeft},
                 {"unit", Align::kLeft},
                 {"baseline", Align::kLeft},
                 {"candidate", Align::kLeft},
                 {"ranks", Align::kLeft}});
    for (const StructuralDifference& d : result.structural) {
      table.row({d.kind, unit_of(d), d.baseline, d.candidate, ranks_text(d.ranks)});
    }
    out += show("\n{}", table.render(style));
  }
  if (!result.memory.empty()) {
    out += show("\n{}", memory_table(result.memory, style));
  }
  for (const check::Metric metric : attributed(result)) {
    out += show("\n{}\n", sum_text(result.attribution, metric));
    Table table({{"unit", Align::kLeft}, {"part", Align::kLeft}, {"change"}});
    for (const AttributionRow& row : largest(result.attribution, metric, kMostRows)) {
      table.row({check::unit_name(row.unit), row.part, signed_ms(row.delta)});
    }
    out += table.render(style);
  }
  for (const std::string& note : result.notes) {
    out += show("note: {}\n", note);
  }
  return out;
}

std::string check_junit(const CheckResult& result) {
  int tests = 0, failures = 0, skipped = 0;
  std::string cases;
  const auto add = [&](std::string_view name, Verdict verdict, const std::string& message,
                       const std::vector<std::string>& details) {
    ++tests;
    cases += fmt::format("  <testcase classname=\"shardlens.check\" name=\"{}\" time=\"0\">", name);
    if (verdict == Verdict::kRegression) {
      ++failures;
      cases += fmt::format("<failure message=\"{}\" type=\"regression\">{}</failure>", xml(message),
                           xml_lines(details));
    } else if (verdict == Verdict::kInconclusive) {
      ++skipped;
      cases += fmt::format("<skipped message=\"{}\"/>", xml(message));
    }
    cases += "</testcase>\n";
  };
  const bool memory =
      std::ranges::any_of(result.memory, [](auto& m) { return m.allowed.has_value(); });
  if (result.metrics.empty() && !memory) {
    add("comparison", result.verdict, result.reason, result.causes);
  } else {
    std::vector<std::string> lines = result.causes;
    for (const StructuralDifference& d : result.structural) {
      lines.push_back(difference_text(d));
    }
    if (result.structure) {
      add("structure", result.structural.empty() ? Verdict::kPass : Verdict::kRegression,
          result.reason, lines);
    }
    if (memory) {
      const std::vector<std::string> above = memory_above(result.memory);
      add("peak_memory", above.empty() ? Verdict::kPass : Verdict::kRegression,
          memory_reason(result.memory), above);
    }
    for (const MetricResult& m : result.metrics) {
      if (m.gates) {
        add(name_of(m.metric), m.verdict,
            fmt::format("{} {} → {} ({}), threshold {}", name_of(m.metric), ms(m.effect.baseline),
                        ms(m.effect.candidate), signed_ms(m.effect.change), ms(m.threshold)),
            result.causes);
      }
    }
    if (result.verdict == Verdict::kInconclusive && skipped == 0) {  // a gate was not measured
      add("comparison", result.verdict, result.reason, {});
    }
  }
  return fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      "<testsuites tests=\"{0}\" failures=\"{1}\" skipped=\"{2}\">\n"
      "<testsuite name=\"shardlens check\" tests=\"{0}\" failures=\"{1}\" errors=\"0\" "
      "skipped=\"{2}\" time=\"0\">\n{3}</testsuite>\n</testsuites>\n",
      tests, failures, skipped, cases);
}

std::string check_markdown(const CheckResult& result) {
  constexpr std::string_view kSigns[] = {"✅", "❌", "⚠️"};
  std::string out =
      fmt::format("### {} shardlens check: {}\n\n{}\n", kSigns[static_cast<size_t>(result.verdict)],
                  name_of(result.verdict), cell(result.reason));
  for (const std::string& cause : result.causes) {
    out += fmt::format("\n- {}", cell(cause));
  }
  if (!result.metrics.empty()) {
    out +=
        "\n\n| metric | baseline | candidate | change | interval | verdict |\n"
        "|---|---:|---:|---:|---:|---|\n";
    for (const MetricResult& m : result.metrics) {
      if (m.gates || m.moved()) {
        out += fmt::format("| {} | {} | {} | {} | {} | {} |\n", name_of(m.metric),
                           ms(m.effect.baseline), ms(m.effect.candidate),
                           signed_ms(m.effect.change), interval(m), word_of(m));
      }
    }
  }
  if (!result.structural.empty()) {
    out += "\n| structure | unit | baseline | candidate |\n|---|---|---|---|\n";
    for (const StructuralDifference& d : result.structural) {
      out += fmt::format("| {} | {} | {} | {} |\n", d.kind, cell(unit_of(d)), cell(d.baseline),
                         cell(d.candidate));
    }
  }
  if (!result.memory.empty()) {
    out +=
        "\n| peak memory | baseline | candidate | change | allowed | verdict |\n"
        "|---|---:|---:|---:|---:|---|\n";
    for (const MemoryRow& row : memory_rows(result.memory)) {
      out += fmt::format("| {} | {} | {} | {} | {} | {} |\n", cell(row.place), row.baseline,
                         row.candidate, row.change, row.allowed, row.verdict);
    }
  }
  for (const check::Metric metric : attributed(result)) {
    out += fmt::format("\n{}\n\n| unit | part | change |\n|---|---|---:|\n",
                       cell(sum_text(result.attribution, metric)));
    for (const AttributionRow& row : largest(result.attribution, metric, kMostRows)) {
      out += fmt::format("| {} | {} | {} |\n", cell(check::unit_name(row.unit)), cell(row.part),
                         signed_ms(row.delta));
    }
  }
  if (!result.notes.empty()) {
    out += "\n";
    for (const std::string& note : result.notes) {
      out += fmt::format("- {}\n", cell(note));
    }
  }
  return out;
}

}  // namespace shardlens::report
