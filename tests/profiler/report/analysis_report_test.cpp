#include "profiler/report/analysis_report.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/format_bytes.h"
#include "profiler/report/csv.h"
#include "profiler/report/table.h"
#include "tests/profiler/analysis/trace_builder.h"

namespace shardlens::report {
namespace {

using nlohmann::json;
using test::TraceBuilder;
using testing::HasSubstr;

analysis::Analysis sample() {
  TraceBuilder b;
  b.step(1, 0, 1000);
  b.hook(Hook::kPreForward, "layers.0, \"x\"", 5);
  b.collective({.fqn = "layers.0, \"x\"", .issued = 10, .start = 12, .end = 60, .waited = 15});
  b.op("aten::mm", 100, 300);
  b.communication({.kind = CollectiveKind::kAllReduce, .issued = 400, .start = 400, .end = 433}, 0);
  return analysis::analyze(trace::Run::of({b.finish()}));
}

std::set<std::string> keys(const json& object) {
  std::set<std::string> out;
  for (const auto& [key, value] : object.items()) {
    out.insert(key);
  }
  return out;
}

// Keys as docs/reference/metrics.md has them.
TEST(AnalysisJsonTest, HasTheDocumentedSchema) {
  const json out = json::parse(analysis_json(sample()));
  EXPECT_EQ(keys(out), (std::set<std::string>{"schema", "ranks", "causes", "clocks", "stragglers",
                                              "matched", "diagnostics"}));
  EXPECT_EQ(out.at("schema"), 1);
  const std::set<std::string> figures{
      "span_ns",         "compute_ns", "comm_ns",       "overlap_ns",  "exposed_comm_ns",
      "exposed_copy_ns", "idle_ns",    "overlap_ratio", "collectives", "idle"};
  std::set<std::string> rank_keys = figures, step_keys = figures;
  rank_keys.insert({"rank", "steps", "units", "blocks", "groups", "communication", "waste",
                    "frozen_views", "order", "event_wait", "launch", "memory"});
  step_keys.insert("step");
  const json& rank = out.at("ranks").at(0);
  EXPECT_EQ(keys(rank), rank_keys);
  EXPECT_EQ(keys(rank.at("steps").at(0)), step_keys);
  EXPECT_EQ(keys(rank.at("collectives").at("all_gather")),
            (std::set<std::string>{"count", "bytes", "busy_ns", "exposed_ns", "matched",
                                   "transfer_ns", "wait_ns", "algbw_gbps", "busbw_gbps"}));
  EXPECT_EQ(keys(rank.at("communication").at(0)),
            (std::set<std::string>{"purpose", "group", "ranks", "kind", "count", "bytes", "busy_ns",
                                   "exposed_ns"}));
  const json& unit = rank.at("units").at(0);
  EXPECT_EQ(unit.at("fqn"), "layers.0, \"x\"");
  EXPECT_EQ(keys(unit),
            (std::set<std::string>{"fqn", "all_gather_forward", "all_gather_backward",
                                   "reduce_scatter", "compute_forward_ns", "compute_backward_ns",
                                   "compute_ns", "exposed_copy_ns"}));
  EXPECT_EQ(keys(unit.at("all_gather_forward")),
            (std::set<std::string>{"count", "bytes", "busy_ns", "exposed_ns", "lead_ns", "cause",
                                   "issued_by"}));
  EXPECT_TRUE(unit.at("reduce_scatter").is_null());
  EXPECT_EQ(unit.at("all_gather_forward").at("cause"), "first_of_the_step");
  EXPECT_EQ(out.at("causes").at("first_of_the_step"),
            "first all-gather of the step: nothing runs before it");
  EXPECT_EQ(unit.at("all_gather_forward").at("issued_by"), "own");
  EXPECT_EQ(unit.at("all_gather_forward").at("lead_ns"), 15 - 60);
  EXPECT_EQ(keys(rank.at("order")),
            (std::set<std::string>{"planned_vs_issued", "issued_vs_started", "observed"}));
  EXPECT_EQ(keys(rank.at("order").at("issued_vs_started")),
            (std::set<std::string>{"compared", "first_difference"}));
  EXPECT_EQ(rank.at("order").at("issued_vs_started").at("compared"), 1);
  EXPECT_TRUE(rank.at("order").at("issued_vs_started").at("first_difference").is_null());
  for (const json& d : out.at("diagnostics")) {
    EXPECT_EQ(keys(d), (std::set<std::string>{"severity", "message", "count"}));
  }
}

TEST(AnalysisJsonTest, FiguresAreThoseOfTheAnalysis) {
  const json rank = json::parse(analysis_json(sample())).at("ranks").at(0);
  EXPECT_EQ(rank.at("span_ns"), 1000);
  EXPECT_EQ(rank.at("compute_ns"), 200);
  EXPECT_EQ(rank.at("exposed_comm_ns"), 48 + 33);
  EXPECT_EQ(rank.at("idle_ns"), 1000 - 200 - 81);
  EXPECT_EQ(rank.at("overlap_ratio"), 0.0);
  EXPECT_EQ(rank.at("collectives").at("all_reduce").at("exposed_ns"), 33);
}

TEST(AnalysisJsonTest, ADifferenceOfOrdersIsSpelledOut) {
  analysis::Analysis result = sample();
  result.ranks[0].order.planned_vs_issued = {
      3, analysis::Difference{2,
                              1,
                              analysis::OrderEntry{CollectiveKind::kAllGather, ""},
                              std::nullopt,
                              {{{CollectiveKind::kAllGather, ""}, 2, 1}}}};
  const json check =
      json::parse(analysis_json(result)).at("ranks").at(0).at("order").at("planned_vs_issued");
  EXPECT_EQ(
      check.at("first_difference"),
      (json{{"step", 2},
            {"index", 1},
            {"expected", "all_gather (root)"},
            {"found", nullptr},
            {"counts", {{{"collective", "all_gather (root)"}, {"expected", 2}, {"found", 1}}}}}));
  const std::string text = analysis_text(result, {});
  EXPECT_THAT(text, HasSubstr("differs first in step 2 at collective 2: planned all_gather (root), "
                              "issued nothing more; all_gather (root): planned 2 times, issued 1 "
                              "times"));
}

TEST(AnalysisCsvTest, QuotesAsRfc4180) {
  const std::string csv = analysis_csv(sample(), By::kUnit);
  EXPECT_THAT(
      csv, HasSubstr("rank,unit,part,count,bytes,busy_ns,exposed_ns,lead_ns,cause,issued_by\r\n"));
  EXPECT_THAT(
      csv, HasSubstr("0,\"layers.0, "
                     "\"\"x\"\"\",all_gather_forward,1,400,48,48,-45,first_of_the_step,own\r\n"));
  EXPECT_THAT(analysis_csv(sample(), By::kStep),
              HasSubstr("0,1,1000,200,81,0,81,0,719,0,719,0,0,0\r\n"));
  EXPECT_THAT(analysis_csv(sample(), By::kCollective), HasSubstr("0,all_reduce,1,400,33,33,0,,,"));
  EXPECT_THAT(analysis_csv(sample(), By::kStream), HasSubstr("0,communicator shard,81\r\n"));
  EXPECT_THAT(analysis_csv(sample(), By::kGroup),
              HasSubstr("rank,group,with,both_ns,group_ns,other_ns\r\n"));
}

TEST(AnalysisCsvTest, NamesAreNeitherFormulasNorEscapes) {
  EXPECT_EQ(csv_cell("=HYPERLINK(\"x\")"), "\"'=HYPERLINK(\"\"x\"\")\"");
  EXPECT_EQ(csv_cell("@SUM(1)"), "'@SUM(1)");
  EXPECT_EQ(csv_cell("+1"), "'+1");
  EXPECT_EQ(csv_cell("-1"), "'-1");
  EXPECT_EQ(csv_cell("\t=1"), "\\t=1");
  EXPECT_EQ(csv_cell("a\x1b[31m\n::error::b"), "a\\x1b[31m\\n::error::b");
  EXPECT_EQ(csv_cell("layers.0=1"), "layers.0=1");
}

TEST(CsvTest, HasTextNumbersAndEmptyCells) {
  constexpr std::string_view kColumns[] = {"unit", "ns", "ratio", "lead"};
  Csv table(kColumns);
  table.row("a,b", -5, 0.25, std::optional<int64_t>(-7));
  table.cell(std::string("=c"));
  table.cell(std::optional<double>());
  table.cell(1.5);
  table.cell(1);
  table.end_row();
  EXPECT_EQ(table.take(), "unit,ns,ratio,lead\r\n\"a,b\",-5,0.25,-7\r\n'=c,,1.5,1\r\n");
}

TEST(CsvTest, RowsHaveAllColumns) {
  constexpr std::string_view kColumns[] = {"rank", "ns"};
  Csv table(kColumns);
  EXPECT_ANY_THROW(table.row(1));
}

TEST(AnalysisTextTest, SaysHowMuchWasHiddenAndWhy) {
  const std::string text = analysis_text(sample(), {});
  EXPECT_THAT(text, HasSubstr("exposed communication"));
  EXPECT_THAT(text, HasSubstr("first all-gather of the step"));
  EXPECT_THAT(text, HasSubstr("planned and issued order not compared"));
  EXPECT_THAT(text, HasSubstr("issued and started order agree on 1 collectives"));
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_THAT(analysis_text(sample(), {.style = {.escapes = true}}), HasSubstr("\x1b[1m"));
}

TEST(AnalysisTextTest, RowsLeftOutAreSummedUp) {
  const std::string text = analysis_text(sample(), {.top = 1});
  EXPECT_THAT(text, HasSubstr("(1 more)"));
}

TEST(TableTest, AlignsAndCountsCodePoints) {
  Table table({{"name", Align::kLeft}, {"n"}});
  table.row({"µs", "1"});
  table.row({"long name", "23"});
  table.row({"evil\n\x1b[31m", "4"});
  table.row({"::error::", "5"});
  EXPECT_EQ(table.render({}).text(),
            "name             n\n"
            "µs               1\n"
            "long name       23\n"
            "evil\\n\\x1b[31m   4\n"
            "\\x3a:error::     5\n");
}

TEST(TableTest, FitsAWidthByBreakingTitlesThenNames) {
  Table table({{"unit", Align::kLeft}, {"exposed communication"}, {"what may help", Align::kLeft}});
  table.row({"model.layers.0", "12.345 ms", "prefetch it"});
  table.row({"  b", "1 ms", ""});
  const std::string whole =
      "unit            exposed communication  what may help\n"
      "model.layers.0              12.345 ms  prefetch it\n"
      "  b                              1 ms\n";
  EXPECT_EQ(table.render({}).text(), whole);
  EXPECT_EQ(table.render({.width = 52}).text(), whole);
  EXPECT_EQ(table.render({.width = 44}).text(),
            "unit                  exposed  what may help\n"
            "                communication\n"
            "model.layers.0      12.345 ms  prefetch it\n"
            "  b                      1 ms\n");
  EXPECT_EQ(table.render({.width = 41}).text(),
            "unit                 exposed  what may\n"
            "               communication  help\n"
            "model.layers.      12.345 ms  prefetch it\n"
            "0\n"
            "  b                     1 ms\n");
  // Numbers are not broken.
  Table numbers({{"a"}, {"b"}});
  numbers.row({"1,234,567 ms", "2 s"});
  EXPECT_EQ(numbers.render({.width = 5}).text(),
            "           a    b\n"
            "1,234,567 ms  2 s\n");
  Table times({{"exposed", Align::kLeft}});
  times.row({"gather_parameters 0.040 ms"});
  EXPECT_EQ(times.render({.width = 21}).text(),
            "exposed\n"
            "gather_parameters\n"
            "0.040 ms\n");
}

TEST(TableTest, NoBrokenLineIsACommandOfARunner) {
  Table table({{"name", Align::kLeft}, {"n"}});
  table.row({"a name that is long ::error::x", "1"});
  EXPECT_THAT(table.render({.width = 15}).text(), testing::Not(HasSubstr("\n::error")));
}

TEST(TableTest, RoundedPartsSumToTheRoundedTotal) {
  const std::vector<Nanoseconds> parts{1499, 1499, 1499,
                                       3};  // 4500: 5 microseconds when rounded once
  const auto rounded = round_to_microseconds(parts);
  EXPECT_EQ(rounded[0] + rounded[1] + rounded[2] + rounded[3], 5000);
  EXPECT_EQ(rounded[3], 0);
}

TEST(TableTest, FormatsQuantities) {
  EXPECT_EQ(format_duration(1'234'567), "1.235 ms");
  EXPECT_EQ(format_duration(-45), "0.000 ms");
  EXPECT_EQ(format_duration(-45'000), "-0.045 ms");
  EXPECT_EQ(format_duration(12'345'678'901), "12.346 s");
  EXPECT_EQ(format_bytes(812), "812 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_percent(std::nullopt), "-");
}

}  // namespace
}  // namespace shardlens::report
