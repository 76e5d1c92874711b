// Each view of the window shows what the commands print: for a capture, a run that PyTorch
// recorded, eight ranks with GPUs and a plan without a run.
#include <algorithm>

#include <nlohmann/json.hpp>

#include <QFile>
#include <QLabel>
#include <QProcess>
#include <QRegularExpression>
#include <QTextBrowser>

#include "gui/model/base/time_axis.h"
#include "gui/model/memory/measured_memory.h"
#include "gui/model/tables/exposed_groups.h"
#include "gui/model/tables/exposed_table.h"
#include "gui/model/tables/order_table.h"
#include "gui/model/tables/ownership_table.h"
#include "gui/model/tables/peak_table.h"
#include "gui/model/tables/ranks_table.h"
#include "gui/model/tables/unit_tree.h"
#include "gui/view/widgets/headline_strip.h"
#include "tests/gui/small_gpu.h"
#include "tests/gui/view/window_test.h"
#include "tests/support/generated_run.h"

namespace shardlens::gui {
namespace {

using nlohmann::json;

class EveryViewTest : public WindowTest {
 protected:
  static json said(QStringList arguments) {
    QProcess process;
    process.start(QStringLiteral(SHARDLENS_BIN_DIR "/shardlens"), arguments << "--json");
    process.waitForFinished(60'000);
    EXPECT_EQ(process.exitCode(), 0) << process.readAllStandardError().toStdString();
    return json::parse(process.readAllStandardOutput().toStdString(), nullptr, false);
  }
  static QString time(const json& figures, const char* key) {
    return durationText(figures.at(key).get<Nanoseconds>());
  }
  static QString cell(const QAbstractItemModel& table, int row, const char* title) {
    for (int column = 0; column < table.columnCount(); ++column) {
      if (table.headerData(column, Qt::Horizontal).toString() == title) {
        return table.index(row, column).data().toString();
      }
    }
    throw RuntimeFault(title);
  }
  const RankData& rank() { return *window_->context().rank(); }

  // In milliseconds with three decimals, each number rounded by itself.
  void expect_headline(const json& figures, const char* whole) {
    const QString text = window_->headline().bar().text();
    static const QRegularExpression kNumber(R"((\d+\.\d{3}) ms)");
    auto found = kNumber.globalMatch(text);
    for (const char* key : {whole, "compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns"}) {
      ASSERT_TRUE(found.hasNext()) << text.toStdString();
      const auto micro = (figures.at(key).get<Nanoseconds>() + 500) / 1000;
      EXPECT_EQ(found.next().captured(1),
                QString("%1.%2").arg(micro / 1000).arg(micro % 1000, 3, 10, QChar('0')))
          << key << text.toStdString();
    }
  }
  // The output of `simulate` for the plan of a model that is shown.
  json simulated(const QString& config, const QString& hardware) {
    const QString plan = folder_.path() + "/plan.json";
    QFile file(plan);
    EXPECT_TRUE(file.open(QIODevice::WriteOnly));
    file.write(QByteArray::fromStdString(window_->session().planJson()));
    file.close();
    const PlanState& state = window_->session().state();
    return said({"simulate", "--model", config, "--hardware", hardware, "--plan", plan,
                 "--world-size", QString::number(state.world_size), "--batch",
                 QString::number(state.step.batch), "--seq",
                 QString::number(state.step.seq.value())});
  }
  // Headline, modules, exposed list and ranks, for each rank.
  void expect_figures(const json& analyzed) {
    const auto& ranks = window_->context().run()->ranks;
    ASSERT_EQ(ranks.size(), analyzed.at("ranks").size());
    Nanoseconds exposed = 0;
    for (size_t r = 0; r < ranks.size(); ++r) {
      window_->context().selectRank(r);
      window_->panels().flush();
      const json& of = analyzed["ranks"][r];
      SCOPED_TRACE(r);
      expect_headline(of, "span_ns");
      exposed += of["exposed_comm_ns"].get<Nanoseconds>();
      EXPECT_EQ(window_->panels().model<ExposedTable>().total(), of["exposed_comm_ns"]);
      expect_tree(of);
      const RanksTable& table = window_->panels().model<RanksTable>();
      const int row = table.indexOfRank(r).row();
      EXPECT_EQ(cell(table, row, "Exposed"), time(of, "exposed_comm_ns"));
      EXPECT_EQ(cell(table, row, "Compute"), time(of, "compute_ns"));
      EXPECT_EQ(cell(table, row, "Copies"), time(of, "exposed_copy_ns"));
      EXPECT_EQ(cell(table, row, "Idle"), time(of, "idle_ns"));
      EXPECT_EQ(cell(table, row, "Time"), time(of, "span_ns"));
    }
    EXPECT_TRUE(
        window_->panels().model<RanksTable>().summary().startsWith(durationText(exposed) + " "));
    ExposedGroups groups;
    groups.show(window_->context(), /*all_ranks=*/true);
    EXPECT_EQ(groups.total(), exposed);
  }
  void expect_tree(const json& of) {
    const UnitTree& tree = window_->panels().model<UnitTree>();
    Nanoseconds top = 0;
    for (int row = 0; row < tree.rowCount(); ++row) {
      top += tree.exposedAt(tree.index(row, 0));
    }
    EXPECT_EQ(top, of["exposed_comm_ns"]);
  }
  // Idle time by cause, and the launches.
  void expect_gpu(const json& analyzed) {
    for (size_t r = 0; r < analyzed.at("ranks").size(); ++r) {
      const RankData& of = *window_->context().run()->ranks[r];
      const json& said = analyzed["ranks"][r];
      Nanoseconds all = 0;
      for (const auto& each : of.idle()) {
        all += each.when.length();
      }
      EXPECT_EQ(all, said["idle_ns"]);
      EXPECT_EQ(of.queue.highest(), said["launch"]["queue_max"]);
    }
  }
  // The plan as it ran, in What if, in the curve of the memory and in its table.
  void expect_simulated(const json& simulated) {
    window_->session().simulateNow();
    ASSERT_TRUE(wait_for([&] { return window_->session().current() != nullptr; }))
        << window_->session().why().toStdString();
    window_->panels().flush();
    const PlanVersion& version = *window_->session().current();
    ASSERT_TRUE(version.error.isEmpty()) << version.error.toStdString();
    EXPECT_EQ(version.step(), simulated.at("step_ns"));
    EXPECT_EQ(version.peak(), simulated.at("peak_allocated_bytes"));
    const sim::MemoryCurve& curve = version.memory;
    EXPECT_EQ(curve.points[curve.peak].sum(), simulated.at("peak_allocated_bytes"));
    for (const auto& [category, bytes] : simulated.at("memory").items()) {
      for (int i = 0; i < sim::kMemoryCategoryCount; ++i) {
        if (name_of(static_cast<sim::MemoryCategory>(i)) == category) {
          EXPECT_EQ(curve.points[curve.peak].bytes[static_cast<size_t>(i)], bytes) << category;
        }
      }
    }
    const PeakTable& table = window_->panels().model<PeakTable>();
    ASSERT_FALSE(table.peaks().empty());
    EXPECT_EQ(table.peaks().back().sum(), simulated.at("peak_allocated_bytes"));
    EXPECT_TRUE(
        text_of("memory").contains(bytesText(simulated.at("peak_allocated_bytes").get<Bytes>())));
  }
  // The sentences at the top of a panel.
  QString text_of(const char* panel) {
    QString out;
    for (const QLabel* label : window_->panels().find(panel).panel->findChildren<QLabel*>()) {
      out += label->text() + u'\n';
    }
    return out;
  }
};

TEST_F(EveryViewTest, ACapture) {
  open(sample_run());
  const QString path = QString::fromStdString(sample_run());
  const json analyzed = said({"analyze", path});
  expect_figures(analyzed);
  EXPECT_FALSE(rank().residencies.empty());
  const json& orders = analyzed["ranks"][0]["order"]["planned_vs_issued"];
  EXPECT_EQ(window_->panels().model<OrderTable>().rowCount() > 0, orders["compared"] > 0);
  expect_simulated(said({"simulate", "--workload", path}));
}

// The run has a record of the allocator. It begins with 1 279 336 bytes, those of blocks whose end
// the profiler did not see.
TEST_F(EveryViewTest, ARunThatPyTorchRecorded) {
  const QString path = QString::fromStdString(pytorch_run("fsdp2-memory"));
  open(path.toStdString());
  const json analyzed = said({"analyze", path});
  expect_figures(analyzed);
  expect_simulated(said({"simulate", "--workload", path}));

  const json& memory = analyzed["ranks"][0]["memory"][0];
  Bytes highest = 0;
  for (const MeasuredMemory& each : measured_memory(window_->context())) {
    highest = std::max(highest, each.allocated);
  }
  EXPECT_EQ(highest, memory["steps"].back()["peak_allocated_bytes"]);
  EXPECT_EQ(highest, 6'219'632 - 1'279'336);  // the largest "Total Allocated" of the trace
  EXPECT_TRUE(text_of("memory").contains("Measured on cpu: " + bytesText(highest)));
  // A trace does not show what autograd keeps for backward.
  EXPECT_TRUE(text_of("memory").contains("activations that backward needs"));
}

TEST_F(EveryViewTest, EightRanksOfGpus) {
  test::GeneratedRun generated;
  generated.ranks = 8;
  generated.steps = 4;
  const std::string directory = write_run(generated.run().traces, "run");
  open(directory);
  const json analyzed = said({"analyze", QString::fromStdString(directory)});
  expect_figures(analyzed);
  expect_gpu(analyzed);
  // The others waited longest for the rank on top.
  const RanksTable& table = window_->panels().model<RanksTable>();
  const size_t worst = table.rankAt(table.index(0, 0));
  for (const json& each : analyzed.at("stragglers")) {
    EXPECT_LE(each.at("held_up_ns"), analyzed["stragglers"][worst].at("held_up_ns"));
  }
}

TEST_F(EveryViewTest, APlanWithoutARun) {
  const QString config = QString::fromStdString(sample_run() + "/config.json");
  window_->openModel(config, "8xH100");
  ASSERT_TRUE(wait_for([&] {
    return window_->context().run() != nullptr && window_->session().current() != nullptr;
  }));
  window_->panels().flush();
  const json expected = simulated(config, "8xH100");
  expect_simulated(expected);
  expect_headline(expected, "step_ns");
  EXPECT_EQ(window_->panels().model<ExposedTable>().total(), expected["exposed_comm_ns"]);
  expect_tree(expected);
  EXPECT_FALSE(rank().residencies.empty());
}

// The inspector of a rank says the same as the header of Ownership, also if the plan is recovered
// from traces while they are shown.
TEST_F(EveryViewTest, WhatARankKeeps) {
  for (const std::string& path : {sample_run(), pytorch_run("fsdp2-memory")}) {
    open(path);
    ASSERT_TRUE(wait_for([&] { return !window_->session().isObserving(); }));
    for (size_t r = 0; r < 2; ++r) {
      window_->context().selectRank(r % window_->context().run()->ranks.size());
      window_->panels().flush();
      const auto& owners = window_->panels().model<OwnershipTable>();
      const Bytes kept = owners.kept(rank().figures.rank);
      EXPECT_GT(kept, 0);
      const QString details =
          window_->panels().find("inspector").panel->findChild<QTextBrowser*>()->toPlainText();
      EXPECT_TRUE(details.contains("keeps\n" + bytesText(kept) + " of")) << details.toStdString();
    }
  }
}

// No view has a step of it, and all have the same peak and limit, as the command has.
TEST_F(EveryViewTest, APlanThatDoesNotFit) {
  const QString config = QString::fromStdString(sample_run() + "/config.json");
  const QString gpu = QString::fromStdString(small_gpu(folder_.path().toStdString(), 8 << 20));
  window_->openModel(config, gpu);
  ASSERT_TRUE(wait_for([&] {
    return window_->context().run() != nullptr && window_->session().current() != nullptr;
  }));
  window_->panels().flush();
  const json expected = simulated(config, gpu);
  ASSERT_EQ(expected.at("fits"), false);
  const double peak = expected.at("peak_allocated_bytes").get<double>() / (1 << 20);
  const QString need = QString("%1 of 8.00 MiB").arg(peak, 0, 'f', 2);
  EXPECT_EQ(window_->headline().bar().text(),
            "The simulated plan does not fit: it needs " + need + ". It has no step.");
  EXPECT_TRUE(text_of("whatif").contains("does not fit: it needs " + need));
  EXPECT_TRUE(text_of("memory").contains("v0 does not fit: it needs " + need));
  const QAbstractItemModel& versions = *window_->panels().find("whatif").panel->view()->model();
  ASSERT_EQ(versions.rowCount(), 1);
  for (const char* title : {"Step", "Δ step", "90 % interval", "Exposed", "Tokens/s"}) {
    EXPECT_EQ(cell(versions, 0, title), "–") << title;
  }
  EXPECT_EQ(cell(versions, 0, "Peak"), need);
  for (int column = 0; column < versions.columnCount(); ++column) {
    const QString title = versions.headerData(column, Qt::Horizontal).toString();
    EXPECT_EQ(versions.index(0, column).data(ColumnTable::kErrorRole).toBool(),
              title == "Peak" || title == "Step");
  }
}

}  // namespace
}  // namespace shardlens::gui
