// `shardlens report`: the page is complete, loads nothing, shows the figures of analyze, and names
// from a trace stay text.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/shardlens_command.h"

namespace shardlens {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

const std::string kRecorded = SHARDLENS_TEST_DATA "/pytorch_traces";

class ReportCommandTest : public ShardlensCommandTest {
 protected:
  // Returns what the command wrote to stdout; its messages are in `err_`.
  std::string run(const std::string& arguments, int expected = 0) {
    CommandResult result = ShardlensCommandTest::run(arguments);
    EXPECT_EQ(result.code, expected) << result.err;
    err_ = result.err;
    return result.out;
  }

  std::string page(const std::string& paths) {
    EXPECT_EQ(run("report " + paths + " --out " + folder_ + "/report.html"), "");
    EXPECT_THAT(err_, testing::EndsWith("wrote " + folder_ + "/report.html\n"));
    return text(folder_ + "/report.html");
  }

  static json data_of(const std::string& page) {
    const std::string begin = R"(<script type="application/json" id="data">)";
    const size_t start = page.find(begin) + begin.size();
    return json::parse(page.substr(start, page.find("</script>", start) - start));
  }

  std::string err_;
};

// If --out is a link or a descriptor, the page is written to its target.
TEST_F(ReportCommandTest, OutMayBeALinkOrADescriptor) {
  const std::string trace = kRecorded + "/fsdp2-default";
  const std::string expected = page(trace);
  std::filesystem::create_directory(folder_ + "/pages");
  std::filesystem::create_symlink("pages/new.html", folder_ + "/link.html");
  EXPECT_EQ(run("report " + trace + " --out " + folder_ + "/link.html"), "");
  EXPECT_TRUE(std::filesystem::is_symlink(folder_ + "/link.html"));
  EXPECT_EQ(text(folder_ + "/pages/new.html"), expected);
  EXPECT_EQ(run("report " + trace + " --out /dev/stdout"), expected);
  EXPECT_EQ(run("report " + trace + " --out /dev/fd/3 3>" + folder_ + "/three"), "");
  EXPECT_EQ(text(folder_ + "/three"), expected);
}

// Every element that is opened is closed, in order.
void expect_well_formed(std::string page) {
  static const std::set<std::string> kVoid{"meta", "br", "hr", "img", "input", "link"};
  for (const char* raw : {"script", "style"}) {  // their content is not markup
    const std::string open = std::string("<") + raw, close = std::string("</") + raw + ">";
    for (size_t at = 0; (at = page.find(open, at)) != std::string::npos;) {
      const size_t from = page.find('>', at) + 1, to = page.find(close, from);
      ASSERT_NE(to, std::string::npos) << raw;
      page.erase(from, to - from);
      at = from;
    }
  }
  ASSERT_TRUE(page.starts_with("<!DOCTYPE html>"));
  std::vector<std::string> open;
  const std::regex tag(R"(<(/?)([a-zA-Z0-9]+)([^<>]*)>)");
  for (auto it = std::sregex_iterator(page.begin(), page.end(), tag); it != std::sregex_iterator();
       ++it) {
    const std::string name = (*it)[2];
    if ((*it)[1] == "/") {
      ASSERT_FALSE(open.empty()) << name;
      EXPECT_EQ(open.back(), name);
      open.pop_back();
    } else if (!kVoid.contains(name)) {
      open.push_back(name);
    }
  }
  EXPECT_THAT(open, testing::IsEmpty());
}

void expect_self_contained(std::string page) {
  // The only address in the page is the namespace of SVG, which nothing fetches.
  const std::string svg = "http://www.w3.org/2000/svg";
  for (size_t at = 0; (at = page.find(svg)) != std::string::npos;) {
    page.erase(at, svg.size());
  }
  EXPECT_THAT(page, Not(HasSubstr("://")));
  EXPECT_THAT(page, Not(HasSubstr("@import")));
  EXPECT_FALSE(std::regex_search(page, std::regex(R"((src|href)\s*=\s*["'])")));
  EXPECT_THAT(page, Not(HasSubstr("innerHTML")));
}

// What the page's script needs of a browser: elements that keep their texts.
constexpr const char* kBrowser = R"(
class Element {
  constructor() { this.children = []; this.style = {}; this.clientWidth = 0; }
  append(...added) { this.children.push(...added); }
  replaceChildren(...now) { this.children = now; }
  setAttribute() {}
  removeAttribute() {}
  addEventListener() {}
  set textContent(text) { this.children = [String(text)]; }
  get textContent() {
    return this.children.map(c => c instanceof Element ? c.textContent : c).join(" ");
  }
}
const elements = {}, addEventListener = () => {};
const document = {getElementById: id => elements[id] ??= new Element(),
  createElement: () => new Element(), createElementNS: () => new Element()};
)";

// "compute 575.124" and so on, of each rank, as the line of its parts and their sum is written.
std::vector<std::string> times_in(const std::string& text, const std::string& pattern) {
  const std::regex time(pattern);
  std::vector<std::string> out;
  for (auto it = std::sregex_iterator(text.begin(), text.end(), time); it != std::sregex_iterator();
       ++it) {
    out.push_back((*it)[1].str() + " " + (*it)[2].str());
  }
  return out;
}

// The script of the page runs in Node, with elements that keep their texts.
TEST_F(ReportCommandTest, ThePageShowsTheTimesThatAnalyzePrints) {
  if (std::system("node --version >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "needs node";
  }
  const std::string begin = R"(<script type="application/json" id="data">)", code = "<script>";
  for (const char* run_name : {"fsdp1-full", "fsdp2-default", "fsdp2-memory", "ddp-buckets"}) {
    const std::string path = kRecorded + "/" + run_name, html = page(path);
    const size_t start = html.find(begin) + begin.size(), end = html.find("</script>", start),
                 script = html.find(code, end) + code.size();
    std::string program = html.substr(script, html.find("</script>", script) - script);
    program.erase(0, program.find('\n', program.find("use strict")));
    std::ofstream(folder_ + "/page.js")
        << kBrowser << "document.getElementById('data').textContent = JSON.stringify("
        << html.substr(start, end - start) << ");\n"
        << program << "console.log($('headline').textContent);\n"
        << "console.log(...[1066500, 1066499, -1066500, 2500, 0, null].map(ms));\n";
    ASSERT_EQ(std::system(("node " + folder_ + "/page.js >" + folder_ + "/shown").c_str()), 0);
    // No line ends between a number and its unit.
    const std::string shown =
        std::regex_replace(text(folder_ + "/shown"), std::regex("\u00a0"), " ");
    const std::string names = "(compute|exposed communication|exposed copies|idle|=)";
    const std::vector<std::string> printed =
        times_in(run("analyze " + path), "\n[+ ]? ?" + names + "(?: steps| span)? +([0-9.]+ m?s)");
    EXPECT_EQ(printed.size() % 5, 0U);
    EXPECT_GE(printed.size(), 5U);
    EXPECT_EQ(times_in(shown, names + " ([0-9.]+ m?s)"), printed) << path;
    EXPECT_THAT(shown, HasSubstr("1.067 ms 1.066 ms -1.067 ms 0.003 ms 0.000 ms –"));
  }
}

TEST_F(ReportCommandTest, ShowsWhatAnalyzeSays) {
  for (const std::string& paths : {kRecorded + "/fsdp2-default", kRecorded + "/fsdp1-full",
                                   std::string(SHARDLENS_SOURCE_DIR "/traces/llama-emulated8")}) {
    const std::string html = page(paths);
    expect_well_formed(html);
    expect_self_contained(html);
    const json data = data_of(html), analysis = json::parse(run("analyze --json " + paths));
    EXPECT_EQ(data["analysis"], analysis) << paths;
    ASSERT_EQ(data["detail"].size(), analysis["ranks"].size());
    // The hatched intervals of a step add up to its exposed communication.
    for (size_t rank = 0; rank < data["detail"].size(); ++rank) {
      ASSERT_EQ(data["detail"][rank]["steps"].size(), analysis["ranks"][rank]["steps"].size());
      for (size_t s = 0; s < data["detail"][rank]["steps"].size(); ++s) {
        const json& drawn = data["detail"][rank]["steps"][s];
        const json& step = analysis["ranks"][rank]["steps"][s];
        EXPECT_EQ(drawn["step"], step["step"]);
        int64_t hatched = 0;
        for (size_t i = 0; i < drawn["exposed"].size(); i += 2) {
          hatched += drawn["exposed"][i + 1].get<int64_t>() - drawn["exposed"][i].get<int64_t>();
        }
        EXPECT_EQ(hatched, step["exposed_comm_ns"]) << paths;
      }
    }
  }
}

// The run's own plan comes first, then each plan file, with the figures that simulate prints.
TEST_F(ReportCommandTest, SimulatesPlansOfTheRun) {
  const std::string kept = folder_ + "/kept.json",
                    capture = SHARDLENS_SOURCE_DIR "/traces/llama-emulated8";
  std::ofstream(kept) << R"({"version": 1, "reshard_after_forward": false})";
  for (const std::string& run_path : {capture, kRecorded + "/fsdp2-default"}) {
    EXPECT_TRUE(data_of(page(run_path))["simulated"].is_null());
    const json shown = data_of(page("--plan " + kept + " " + run_path))["simulated"];
    ASSERT_EQ(shown.size(), 2U);
    EXPECT_EQ(shown[1]["title"], kept);
    const std::array flags{std::string(), " --plan " + kept};
    for (size_t i = 0; i < shown.size(); ++i) {
      json figures = shown[i],
           said = json::parse(run("simulate --json --workload " + run_path + flags[i]));
      figures.erase("title");
      said.erase("schema");
      said.erase("lints");  // of the plan, not of its step
      said.erase("memory_by_unit");
      EXPECT_EQ(figures, said) << run_path;
    }
    EXPECT_EQ(data_of(page("--simulate " + run_path))["simulated"], json::array({shown[0]}));
  }
  run("report " + capture + " --plan " + folder_ + "/absent.json --out " + folder_ + "/r.html", 3);
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/r.html"));
}

// The advice is that of the command, without what only it measures.
TEST_F(ReportCommandTest, AdviceIsThatOfAdvise) {
  const std::string capture = SHARDLENS_TEST_DATA "/../../traces/llama-emulated8";
  EXPECT_TRUE(data_of(page(capture))["advice"].is_null());
  const std::string shown = page("--advise " + capture);
  json said = json::parse(run("advise --json " + capture));
  said.erase("mesh");  // another mesh is searched for only by the command
  EXPECT_EQ(data_of(shown)["advice"], said);
  expect_well_formed(shown);
}

TEST_F(ReportCommandTest, HasAMemoryCurveWhereTheTraceHasOne) {
  const json with = data_of(page(kRecorded + "/fsdp1-none")),
             without = data_of(page(kRecorded + "/fsdp1-full"));
  ASSERT_EQ(with["detail"][0]["memory"].size(), 1U);
  EXPECT_GT(with["detail"][0]["memory"][0]["points"].size(), 100U);
  EXPECT_TRUE(without["detail"][0]["memory"].empty());
}

TEST_F(ReportCommandTest, HostileNamesStayText) {
  const std::vector<std::string> names{"</script><img src=x onerror=alert(1)>",
                                       "\"><svg onload=alert(1)>",
                                       "<!--<script>",
                                       "' onmouseover='alert(1)",
                                       std::string("nul\0here", 8),
                                       "层.3 \xE2\x80\xA8 \xF0\x9F\x94\xA5",
                                       "&lt;b&gt;"};
  json events = json::array();
  int64_t time = 0;
  const auto add = [&](const std::string& name, int64_t length, const char* category) {
    events.push_back({{"ph", "X"},
                      {"cat", category},
                      {"name", name},
                      {"pid", 1},
                      {"tid", 1},
                      {"ts", time},
                      {"dur", length}});
  };
  add("ProfilerStep#1", 10000, "user_annotation");
  for (const std::string& name : names) {
    time += 10;
    add("FSDP::pre_forward (" + name + ")", 5, "user_annotation");
    time += 10;
    add("aten::mm", 20, "cpu_op");
    time += 30;
    add("FSDP::post_forward (" + name + ")", 5, "user_annotation");
  }
  const std::string trace = folder_ + "/rank0.json";
  std::ofstream(trace) << json{{"traceEvents", events}}.dump();
  const std::string html = page(trace);
  expect_well_formed(html);
  expect_self_contained(html);
  // The page has its own two scripts and no others.
  size_t scripts = 0;
  for (size_t at = 0; (at = html.find("</script", at)) != std::string::npos; ++at) {
    ++scripts;
  }
  EXPECT_EQ(scripts, 2U);
  for (const char* markup : {"<img", "<svg", "<!--"}) {
    EXPECT_THAT(html, Not(HasSubstr(markup)));
  }
  std::set<std::string> shown;
  const json data = data_of(html);
  for (const json& unit : data["analysis"]["ranks"][0]["units"]) {
    shown.insert(unit["fqn"].get<std::string>());
  }
  for (const std::string& name : names) {
    EXPECT_TRUE(shown.contains(name)) << name;
  }
}

TEST_F(ReportCommandTest, WrongUseSaysSo) {
  run("report " + kRecorded + "/fsdp1-full", 2);  // no --out
  EXPECT_THAT(err_, HasSubstr("--out"));
  run("report " + folder_ + "/absent --out " + folder_ + "/r.html", 3);
  run("report " + kRecorded + "/fsdp1-full --steps 90:95 --out " + folder_ + "/r.html", 3);
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/r.html"));
  run("report " + kRecorded + "/fsdp1-full --out " + folder_ + "/no/such/folder/r.html", 4);
}

}  // namespace
}  // namespace shardlens
