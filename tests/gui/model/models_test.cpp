#include <algorithm>
#include <map>
#include <set>

#include "core/base/error.h"
#include "core/plan/resolve.h"
#include "gui/model/base/action_registry.h"
#include "gui/model/base/time_axis.h"
#include "gui/model/details/inspected.h"
#include "gui/model/run/selection_context.h"
#include "gui/model/tables/diagnostic_table.h"
#include "gui/model/tables/event_table.h"
#include "gui/model/tables/exposed_table.h"
#include "gui/model/tables/order_table.h"
#include "gui/model/tables/ownership_table.h"
#include "gui/model/tables/unit_tree.h"
#include "tests/gui/qt_test.h"
#include "tests/support/generated_run.h"

namespace shardlens::gui {
namespace {

using ModelTest = QtTest<QCoreApplication>;
using Tester = QAbstractItemModelTester;
constexpr auto kMode = Tester::FailureReportingMode::Warning;  // QtTest makes it a failure

Nanoseconds exposed_of_top(const UnitTree& tree) {
  Nanoseconds sum = 0;
  for (int row = 0; row < tree.rowCount(); ++row) {
    sum += tree.exposedAt(tree.index(row, 0));
  }
  return sum;
}

TEST_F(ModelTest, TreesSumToTheHeadlineInEveryWindow) {
  for (const std::string& path :
       {sample_run(), pytorch_run("fsdp2-default"), pytorch_run("fsdp1-full"),
        pytorch_run("fsdp2-group"), pytorch_run("fsdp1-none")}) {
    const RunPointer run = open_run(path);
    UnitTree tree;
    const Tester tester(&tree, kMode);
    tree.show(run, 0);
    const RankData& rank = *run->ranks[0];
    EXPECT_EQ(exposed_of_top(tree), rank.figures.figures.exposed_comm) << path;
    for (const analysis::StepAnalysis& step : rank.figures.steps) {
      tree.setWindow({step.window});
      EXPECT_EQ(exposed_of_top(tree), step.figures.exposed_comm) << path << " step " << step.step;
    }
    for (const analysis::UnitFigures& unit : rank.figures.units) {
      const QModelIndex index = tree.indexOf(unit.fqn);
      ASSERT_TRUE(index.isValid()) << unit.fqn;
      EXPECT_EQ(tree.unitAt(index), unit.fqn);
    }
    tree.show(nullptr, 0);
    EXPECT_EQ(tree.rowCount(), 0);
  }
}

TEST_F(ModelTest, BlocksBuiltAlikeAreFolded) {
  UnitTree tree;
  tree.show(sample(), 0);
  const QModelIndex block = tree.indexOf("model.layers.3");
  ASSERT_TRUE(block.isValid());
  const QModelIndex fold = block.parent();
  EXPECT_EQ(fold.data().toString(), "0 … 5  6 identical");
  EXPECT_FALSE(tree.unitAt(fold));
  EXPECT_EQ(tree.rowCount(fold), 6);
  EXPECT_EQ(tree.unitsWithin(fold).size(), 6);
  Nanoseconds sum = 0;
  for (int row = 0; row < 6; ++row) {
    sum += tree.exposedAt(tree.index(row, 0, fold));
  }
  EXPECT_EQ(tree.exposedAt(fold), sum);
  EXPECT_EQ(fold.siblingAtColumn(UnitTree::kUnits).data().toString(), "6");
}

// Six layers. Nothing computes before the first one and little before the backward of the last, and
// the third is gathered for backward only when it is needed, which takes twice as long.
TEST_F(ModelTest, BlocksAlikeNameTheirMedianTheWorstAndOutliers) {
  test::GeneratedRun generated;
  generated.layers = 6;
  generated.steps = 3;
  generated.not_prefetched = {2};
  generated.reduce_scatter = 0.05e6;
  generated.hidden_all_gather = 2;
  const RunPointer run = std::make_shared<const RunData>(generated.run());
  std::map<std::string, Nanoseconds> exposed;
  std::vector<Nanoseconds> sorted;
  Nanoseconds sum = 0;
  for (const analysis::UnitFigures& unit : run->ranks[0]->figures.units) {
    if (unit.fqn.starts_with("layers.")) {
      exposed[unit.fqn] = unit.exposed();
      sorted.push_back(unit.exposed());
      sum += unit.exposed();
    }
  }
  ASSERT_EQ(sorted.size(), 6U);
  std::ranges::sort(sorted);
  ASSERT_EQ(sorted[5], exposed["layers.2"]);
  ASSERT_EQ(sorted[4], exposed["layers.0"]);
  const QString spread =
      QStringLiteral("%1; median %2, worst %3 (layers.2)")
          .arg(durationText(sum), durationText(sorted[2]), durationText(sorted[5]));
  // Far: by more than half of the median, five times the median distance, and 50 us.
  std::vector<Nanoseconds> distances;
  for (const Nanoseconds each : sorted) {
    distances.push_back(std::abs(each - sorted[2]));
  }
  std::ranges::sort(distances);
  const Nanoseconds far = std::max({sorted[2] / 2, 5 * distances[2], Nanoseconds{50'000}});
  ASSERT_GT(sorted[4] - sorted[2], far);
  std::vector<std::pair<Nanoseconds, std::string>> outlying;
  for (const auto& [name, each] : exposed) {
    if (std::abs(each - sorted[2]) > far) {
      outlying.emplace_back(-each, name);
    }
  }
  std::ranges::sort(outlying);
  QStringList names;
  for (const auto& [each, name] : outlying) {
    names.append(QStringLiteral("%1 (%2)").arg(QString::fromStdString(name), durationText(-each)));
  }
  ASSERT_GE(names.size(), 2);
  const QString outliers = names.join(", ");
  UnitTree tree;
  tree.show(run, 0);
  const QModelIndex fold = tree.indexOf("layers.3").parent();
  EXPECT_EQ(
      fold.data(Qt::ToolTipRole).toString(),
      QStringLiteral("layers.0 to 5: exposed %1; far from the others: %2").arg(spread, outliers));
  EXPECT_EQ(tree.indexOf("layers.2").data(Qt::ToolTipRole).toString(), "unit layers.2");
  // With one step chosen, the text has the figures of that step.
  tree.setWindow({run->ranks[0]->figures.steps[1].window});
  EXPECT_TRUE(fold.data(Qt::ToolTipRole).toString().contains("(layers.2)"));
  EXPECT_FALSE(fold.data(Qt::ToolTipRole).toString().contains(spread));

  SelectionContext context;
  context.setRun(run);
  const QString of_rank = inspected(context);
  EXPECT_TRUE(of_rank.contains("<b>blocks alike, layers.0 to 5</b>")) << of_rank.toStdString();
  EXPECT_TRUE(of_rank.contains(spread)) << of_rank.toStdString();
  EXPECT_TRUE(of_rank.contains("<b>" + outliers + "</b>")) << of_rank.toStdString();
  context.selectUnit("layers.4");
  EXPECT_TRUE(inspected(context).contains(spread));
  context.selectUnit("");
  EXPECT_FALSE(inspected(context).contains("blocks alike"));
}

TEST_F(ModelTest, ExposedListSumsToTheHeadlineAndNamesCauses) {
  for (const std::string& path :
       {sample_run(), pytorch_run("fsdp2-default"), pytorch_run("fsdp1-post")}) {
    const RunPointer run = open_run(path);
    ExposedTable table;
    const Tester tester(&table, kMode);
    const RankData& rank = *run->ranks[0];
    table.show(run, 0, rank.timeline.span);
    EXPECT_EQ(table.total(), rank.figures.figures.exposed_comm) << path;
    ASSERT_GT(table.rowCount(), 0);
    for (int row = 0; row < table.rowCount(); ++row) {
      EXPECT_NE(table.index(row, 6).data().toString(), "–") << path << " row " << row;
      EXPECT_FALSE(table.index(row, 7).data().toString().isEmpty());
    }
    for (int column = 0; column < table.columnCount(); ++column) {
      table.sort(column, Qt::AscendingOrder);
      table.sort(column, Qt::DescendingOrder);
    }
    const Selection::Item item = table.itemAt(table.index(0, 0));
    EXPECT_EQ(table.itemAt(table.indexOfCollective(item.ref)), item);
  }
}

TEST_F(ModelTest, OrdersOfTheSampleAgree) {
  OrderTable table;
  const Tester tester(&table, kMode);
  table.show(sample(), 0, 0);
  EXPECT_GT(table.rowCount(), 10);
  EXPECT_TRUE(table.verdict().contains("agree")) << table.verdict().toStdString();
  EXPECT_EQ(table.index(0, 1).data(), table.index(0, 2).data());
  EXPECT_EQ(table.unitAt(table.index(0, 0)), "");
  table.show(sample(), 0, 1'000'000);
  EXPECT_EQ(table.rowCount(), 0);
  table.show(nullptr, 0, 0);
}

TEST_F(ModelTest, EventsAreFoundByNameAndWindow) {
  EventTable table;
  const Tester tester(&table, kMode);
  const RunPointer run = sample();
  table.show(run, 0, {});
  EXPECT_EQ(table.rowCount(), run->event_count);
  table.show(run, 0, {{}, "ATEN::MM", {}});
  const int all = table.rowCount();
  ASSERT_GT(all, 0);
  for (int row = 0; row < all; ++row) {
    EXPECT_TRUE(table.index(row, 2).data().toString().contains("aten::mm"));
  }
  const RankData& rank = *run->ranks[0];
  table.show(run, 0, {rank.figures.steps.front().window, "aten::mm", {}});
  EXPECT_GT(table.rowCount(), 0);
  EXPECT_LT(table.rowCount(), all);
  table.show(run, 0, {{}, "no event is called this", {}});
  EXPECT_EQ(table.rowCount(), 0);
}

// A column has one unit, and a short event keeps its nanoseconds next to a long one.
TEST_F(ModelTest, TimesOfEventsHaveOneUnit) {
  const RunPointer run = open_run(pytorch_run("fsdp2-default"));
  EventTable table;
  table.show(run, 0, {});
  const auto& events = run->ranks[0]->trace.events;
  Nanoseconds shortest = 1'000'000'000, longest = 0;
  for (int row = 0; row < table.rowCount(); ++row) {
    const trace::Event& event = events[table.eventAt(table.index(row, 0))];
    shortest = std::min(shortest, event.duration);
    longest = std::max(longest, event.duration);
    const QString start = table.index(row, 0).data().toString();
    const QString duration = table.index(row, 1).data().toString();
    EXPECT_TRUE(start.endsWith(" ms")) << start.toStdString();
    ASSERT_TRUE(duration.endsWith(" µs")) << duration.toStdString();
    EXPECT_EQ(std::llround(duration.chopped(3).toDouble() * 1e3), event.duration);
  }
  EXPECT_LT(shortest, 1000);
  EXPECT_GT(longest, 1'000'000);
}

// PyTorch writes an event when it ends, so that a trace begins with inner ones.
TEST_F(ModelTest, EventsAreListedByTheirStart) {
  const RunPointer run = open_run(pytorch_run("fsdp2-default"));
  EventTable table;
  table.show(run, 0, {});
  const auto& events = run->ranks[0]->trace.events;
  ASSERT_EQ(table.rowCount(), static_cast<int>(events.size()));
  for (int row = 1; row < table.rowCount(); ++row) {
    ASSERT_LE(events[table.eventAt(table.index(row - 1, 0))].start,
              events[table.eventAt(table.index(row, 0))].start)
        << row;
  }
}

// Without a plan, names of units make the tree. Rows are for units, branches and numbers.
TEST_F(ModelTest, APrefixThatOnlyLeadsOnHasNoRow) {
  test::GeneratedRun generated;
  generated.layers = 2;
  generated.steps = 1;
  generated.layer_name = "model.decoder.{}.block.attention";
  const RunPointer run = std::make_shared<const RunData>(generated.run());
  UnitTree tree;
  const Tester tester(&tree, kMode);
  tree.show(run, 0, nullptr);
  const QModelIndex root = tree.index(0, 0);
  EXPECT_EQ(root.data().toString(), "model");
  EXPECT_EQ(tree.unitAt(root), "");
  ASSERT_EQ(tree.rowCount(root), 1);
  const QModelIndex prefix = tree.index(0, 0, root);
  EXPECT_EQ(prefix.data().toString(), "model.decoder");
  EXPECT_EQ(tree.unitAt(prefix), "");  // no unit itself: it belongs to the root
  ASSERT_EQ(tree.rowCount(prefix), 2);
  const QModelIndex second = tree.index(1, 0, prefix);
  EXPECT_EQ(second.data().toString(), "1");
  ASSERT_EQ(tree.rowCount(second), 1);
  const QModelIndex unit = tree.index(0, 0, second);
  EXPECT_EQ(unit.data().toString(), "block.attention");
  EXPECT_EQ(tree.unitAt(unit), "model.decoder.1.block.attention");
  EXPECT_EQ(exposed_of_top(tree), run->ranks[0]->figures.figures.exposed_comm);
}

TEST_F(ModelTest, NamesAreShownEscaped) {
  test::GeneratedRun generated;
  generated.layers = 2;
  generated.steps = 1;
  generated.layer_name = "a\x1b\n\xe2\x80\xae{}";  // U+202E: right to left from here on
  const RunPointer run = std::make_shared<const RunData>(generated.run());
  UnitTree tree;
  tree.show(run, 0, nullptr);
  const QModelIndex root = tree.index(0, 0);
  ASSERT_EQ(tree.rowCount(root), 2);
  EXPECT_EQ(tree.index(1, 0, root).data().toString(), "a\\x1b\\n\\u{202e}1");
  EXPECT_EQ(tree.unitAt(tree.index(1, 0, root)),
            "a\x1b\n\xe2\x80\xae"
            "1");
}

TEST_F(ModelTest, ARankThatTheRunDoesNotHaveIsEmpty) {
  const RunPointer run = sample();
  const size_t none = run->ranks.size();
  ExposedTable exposed;
  OrderTable order;
  EventTable events;
  OwnershipTable ownership;
  UnitTree tree;
  exposed.show(run, none, run->ranks[0]->timeline.span);
  order.show(run, none, 0);
  events.show(run, none, {});
  ownership.show(run, none, std::nullopt, 0);
  tree.show(run, none, nullptr);
  for (const QAbstractItemModel* model : {static_cast<const QAbstractItemModel*>(&exposed),
                                          static_cast<const QAbstractItemModel*>(&order),
                                          static_cast<const QAbstractItemModel*>(&events),
                                          static_cast<const QAbstractItemModel*>(&ownership),
                                          static_cast<const QAbstractItemModel*>(&tree)}) {
    EXPECT_EQ(model->rowCount(), 0) << model->metaObject()->className();
  }
}

// Every element of every parameter is owned by exactly one rank.
TEST_F(ModelTest, OwnershipCoversEveryParameterOnce) {
  OwnershipTable table;
  const Tester tester(&table, kMode);
  const RunPointer run = sample();
  table.show(run, 0, std::nullopt, 0);
  const plan::ResolvedPlan& plan = run->run.planned->plan;
  EXPECT_EQ(table.columnCount(), OwnershipTable::kFixedColumns + plan.world_size);
  EXPECT_EQ(table.rowCount(), static_cast<int>(plan.tree.parameters.size()));
  for (int row = 0; row < table.rowCount(); ++row) {
    double covered = 0;
    for (int rank = 0; rank < plan.world_size; ++rank) {
      const QModelIndex cell = table.index(row, OwnershipTable::kFixedColumns + rank);
      const QRectF part = cell.data(OwnershipTable::kPartRole).toRectF();
      covered += part.width() * part.height();
      EXPECT_FALSE(cell.data(Qt::ToolTipRole).toString().isEmpty());
    }
    EXPECT_NEAR(covered, 1, 1e-9) << table.index(row, 0).data().toString().toStdString();
  }
  table.show(run, 0, "model.layers.0", 0);
  EXPECT_EQ(table.rowCount(), 9);  // q, k, v, o, gate, up, down, two norms
}

// Parameters that the plan ignores belong to no unit; every rank holds all of them.
TEST_F(ModelTest, OwnershipListsIgnoredParameters) {
  OwnershipTable table;
  const Tester tester(&table, kMode);
  trace::Run changed = trace::Run::open(sample_run());
  plan::Plan plan = changed.planned->plan.plan;
  plan.ignored_modules = {"lm_head"};
  changed.planned->plan =
      plan::resolve(plan, changed.planned->plan.tree, changed.planned->plan.world_size);
  const auto run = std::make_shared<const RunData>(std::move(changed));
  table.show(run, 0, std::nullopt, 0);
  EXPECT_EQ(table.rowCount(), static_cast<int>(run->run.planned->plan.tree.parameters.size()));
  const int last = table.rowCount() - 1;
  EXPECT_EQ(table.index(last, 0).data().toString(), "lm_head.weight");
  EXPECT_EQ(table.index(last, 2).data().toString(), "ignored");
  EXPECT_FALSE(table.unitAt(table.index(last, 0)));
  for (int rank = 0; rank < run->run.planned->plan.world_size; ++rank) {
    const QModelIndex cell = table.index(last, OwnershipTable::kFixedColumns + rank);
    EXPECT_EQ(cell.data(OwnershipTable::kPartRole).toRectF(), QRectF(0, 0, 1, 1));
  }
  table.show(run, 0, "model.layers.0", 0);
  EXPECT_EQ(table.rowCount(), 9);
}

TEST_F(ModelTest, OwnershipKnowsWhatIsGatheredAtAnInstant) {
  const RunPointer run = sample();
  const trace::Trace& trace = run->run.traces.front();
  const std::vector<Residency>& held = run->ranks.front()->residencies;
  using State = OwnershipTable::State;
  std::set<State> seen;
  for (const trace::Event& event : trace.events) {
    const trace::ActionArgs* args = trace.action(event);
    if (args == nullptr ||
        (args->action.op != schedule::Op::kUseFull && args->action.op != schedule::Op::kUseShard)) {
      continue;
    }
    const State state = unit_states(held, event.start).at(trace.units[args->action.unit]);
    EXPECT_EQ(state,
              args->action.op == schedule::Op::kUseFull ? State::kUnsharded : State::kSharded);
    seen.insert(state);
  }
  EXPECT_EQ(seen.size(), 2);
  EXPECT_TRUE(unit_states(held, 0).empty());
}

// A run of PyTorch that shardlens.record recorded: its actions lie next to the trace.
TEST_F(ModelTest, OwnershipKnowsWhatPyTorchHasGathered) {
  const RunPointer run = open_run(std::string(SHARDLENS_TEST_DATA) + "/recorded_run");
  const trace::Trace& trace = run->run.traces[1];
  const std::vector<Residency>& held = run->ranks[1]->residencies;
  using State = OwnershipTable::State;
  OwnershipTable table;
  std::set<State> shown;
  for (const trace::RecordedAction& action : trace.recorded_actions) {
    if (action.op != schedule::Op::kUseFull && action.op != schedule::Op::kUseShard) {
      continue;
    }
    const bool gathered = action.op == schedule::Op::kUseFull;
    EXPECT_EQ(unit_states(held, action.start).at(action.unit),
              gathered ? State::kUnsharded : State::kSharded);
    const bool in_a_step =
        std::any_of(trace.events.begin(), trace.events.end(), [&](const trace::Event& event) {
          return trace.name(event).starts_with("ProfilerStep#") && event.start <= action.start &&
                 action.start < event.end();
        });
    EXPECT_TRUE(in_a_step) << action.seq;
    table.show(run, 1, action.unit, action.start);
    ASSERT_GT(table.rowCount(), 0) << table.why().toStdString();
    for (int row = 0; row < table.rowCount(); ++row) {
      const QVariant state = table.data(table.index(row, 2), OwnershipTable::kStateRole);
      shown.insert(static_cast<State>(state.toInt()));
    }
  }
  EXPECT_EQ(shown, (std::set{State::kSharded, State::kUnsharded}));
}

TEST_F(ModelTest, WithoutAPlanOwnershipSaysWhatIsMissing) {
  OwnershipTable table;
  const Tester tester(&table, kMode);
  trace::Run bare = trace::Run::of(trace::Run::open(sample_run()).traces);
  table.show(std::make_shared<const RunData>(std::move(bare)), 0, std::nullopt, 0);
  EXPECT_EQ(table.rowCount(), 0);
  EXPECT_FALSE(table.why().isEmpty());
}

TEST_F(ModelTest, DiagnosticsAreListed) {
  DiagnosticTable table;
  const Tester tester(&table, kMode);
  const RunPointer run = sample();
  table.show(run);
  EXPECT_EQ(table.rowCount(), static_cast<int>(run->analysis.diagnostics.size()));
}

TEST_F(ModelTest, CsvQuotesWhatNeedsIt) {
  ColumnTable table({{"a", [](size_t r) { return r == 0 ? QString("x,\"y\"") : QString("plain"); }},
                     {"b", [](size_t r) { return QString::number(r); }}});
  table.reset(2);
  EXPECT_EQ(to_csv(table), "a,b\r\n\"x,\"\"y\"\"\",0\r\nplain,1\r\n");
}

TEST_F(ModelTest, SortingKeepsWhatIsSelected) {
  ColumnTable table({{"n", [](size_t r) { return QString::number(r); },
                      [](size_t r) { return static_cast<double>((7 * r) % 10); }}});
  const Tester tester(&table, kMode);
  table.reset(10);
  const QPersistentModelIndex third(table.index(3, 0));
  table.sort(0, Qt::AscendingOrder);
  EXPECT_EQ(table.rowAt(third), 3);
  EXPECT_EQ(third.row(), 1);  // 7·3 mod 10 = 1
}

TEST_F(ModelTest, CommandsAreFoundByTheirLetters) {
  ActionRegistry registry;
  int ran = 0;
  registry.add({"a", "M", "Fit the whole run", {"0"}, [&] { ++ran; }});
  registry.add({"b", "M", "Find events", {"Ctrl+F"}, [&] { ran += 10; }, [] { return false; }});
  registry.add({"c", "M", "Zoom to fit", {}, [] {}});
  const auto found = registry.matching("fit");
  ASSERT_EQ(found.size(), 3);  // the last one matches only by its letters: FInd evenTs
  EXPECT_EQ(found[0]->id, "a");
  EXPECT_EQ(found[1]->id, "c");
  EXPECT_EQ(found[2]->id, "b");
  EXPECT_EQ(registry.matching("fe").front()->id, "b");
  EXPECT_EQ(registry.matching("zzz").size(), 0);
  EXPECT_EQ(registry.matching("").size(), 3);
  EXPECT_TRUE(registry.trigger("a"));
  EXPECT_FALSE(registry.trigger("b"));
  EXPECT_FALSE(registry.trigger("not there"));
  EXPECT_EQ(ran, 1);
  EXPECT_THROW(registry.add({"a", "M", "again", {}, [] {}}), RuntimeFault);
  EXPECT_THROW(registry.add({"d", "M", "same key", {"0"}, [] {}}), RuntimeFault);
}

}  // namespace
}  // namespace shardlens::gui
