// Views without data say what to record or open.
#include "gui/model/details/missing_data.h"

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "gui/model/details/inspected.h"
#include "gui/model/memory/measured_memory.h"
#include "gui/model/tables/exposed_table.h"
#include "gui/model/tables/order_table.h"
#include "gui/model/tables/ranks_table.h"
#include "tests/gui/qt_test.h"
#include "tests/support/generated_run.h"

namespace shardlens::gui {
namespace {

class MissingDataTest : public QtTest<QCoreApplication> {
 protected:
  static RunPointer recorded_by_pytorch() {  // of one GPU
    static const RunPointer kRun =
        open_run(std::string(SHARDLENS_TEST_DATA) + "/../../traces/fsdp2-h200");
    return kRun;
  }
  template <class Dropped>
  static void drop(trace::Trace& trace, Dropped dropped) {
    const auto all = std::exchange(trace.events, {});
    for (const trace::Event& event : all) {
      if (!dropped(trace.name(event), trace.category(event))) {
        trace.events.push_back(event);
      }
    }
  }
  // Two ranks that PyTorch recorded, without the events that `dropped` names.
  template <class Dropped>
  static RunPointer without(Dropped dropped) {
    trace::Run run = trace::Run::open(pytorch_run("fsdp2-default"));
    for (trace::Trace& each : run.traces) {
      drop(each, dropped);
    }
    run.planned.reset();
    return std::make_shared<const RunData>(std::move(run));
  }
  static QString order_of(const RunPointer& run) {
    OrderTable table;
    table.show(run, 0, 0);
    return table.verdict();
  }
  static QString ranks_of(const RunPointer& run) {
    SelectionContext selection;
    selection.setRun(run);
    RanksTable table;
    table.show(selection);
    return table.summary();
  }
};

TEST_F(MissingDataTest, ARunOfOneRankHasNoCommunicationAndNoOtherRanks) {
  const RunPointer run = recorded_by_pytorch();
  ASSERT_EQ(run->ranks[0]->trace.metadata.world_size, 1);
  EXPECT_EQ(why_nothing_exposed(*run, *run->ranks[0]),
            "The run has one rank, which communicates with no other. What if shows its plan on "
            "more.");
  EXPECT_EQ(order_of(run), "The step has no collectives, so there is no order to compare.");
  EXPECT_EQ(ranks_of(run), "0 ns exposed on 1 rank. The run has no other ranks.");
}

TEST_F(MissingDataTest, OneOfSeveralRanksIsNotTheWholeRun) {
  EXPECT_TRUE(ranks_of(sample()).endsWith("The other ranks of the emulated world were not run."))
      << ranks_of(sample()).toStdString();
  const std::string one = pytorch_run("fsdp2-default") + "/rank1.pt.trace.json.gz";
  EXPECT_TRUE(
      ranks_of(open_run(one))
          .endsWith("Open the folder that has the traces of all ranks to see which one was late."));
  trace::Run simulated = trace::Run::open(sample_run());
  simulated.traces[0].metadata.backend = "simulated";
  EXPECT_TRUE(ranks_of(std::make_shared<const RunData>(std::move(simulated)))
                  .endsWith("The other ranks of a simulated plan do the same."));
}

TEST_F(MissingDataTest, WhatTheProfilerDidNotRecordIsNamed) {
  const RunPointer run = open_run(pytorch_run("fsdp2-default"));
  EXPECT_TRUE(order_of(run).contains("shardlens.record")) << order_of(run).toStdString();
  EXPECT_EQ(why_no_units(*run->ranks[0]), "");
  EXPECT_TRUE(why_no_memory(*run).contains("profile_memory=True"));

  const RunPointer no_steps = without([](std::string_view name, std::string_view /*category*/) {
    return name.starts_with("ProfilerStep");
  });
  ASSERT_TRUE(no_steps->ranks[0]->figures.steps.empty());
  EXPECT_TRUE(order_of(no_steps).contains("step() is called after each training step"));

  const RunPointer no_ranges = without([](std::string_view /*name*/, std::string_view category) {
    return category == "user_annotation";
  });
  EXPECT_TRUE(why_no_units(*no_ranges->ranks[0]).contains("fully_shard"));

  const RunPointer computes = without([](std::string_view name, std::string_view /*category*/) {
    return name.find("gloo:") != std::string_view::npos || name.starts_with("c10d");
  });
  ASSERT_TRUE(computes->ranks[0]->timeline.collectives.empty());
  EXPECT_TRUE(why_nothing_exposed(*computes, *computes->ranks[0]).contains("two or more ranks"));
}

TEST_F(MissingDataTest, MemoryIsOnlyMissingIfItWasNotMeasured) {
  EXPECT_EQ(why_no_memory(*open_run(pytorch_run("fsdp2-memory"))), "");
  const RunPointer gpu = open_run(std::string(SHARDLENS_TEST_DATA) + "/../../traces/llama-h200");
  ASSERT_TRUE(measured_peak(*gpu));  // of metrics.jsonl
  EXPECT_EQ(why_no_memory(*gpu), "");
  EXPECT_NE(why_no_memory(*recorded_by_pytorch()), "");
  trace::Run simulated = trace::Run::open(sample_run());
  simulated.traces[0].metadata.backend = "simulated";
  EXPECT_EQ(why_no_memory(RunData(std::move(simulated))), "");
}

// A window without exposed communication in a run that has some elsewhere.
TEST_F(MissingDataTest, ASmallWindowIsNotTheWholeRun) {
  const RankData& rank = *sample()->ranks[0];
  EXPECT_TRUE(why_nothing_exposed(*sample(), rank).contains("choose all steps"));
}

TEST_F(MissingDataTest, AKernelWithoutItsLaunchSaysWhatRecordsIt) {
  test::GeneratedRun generated;
  generated.steps = 1;
  trace::Run run = generated.run();
  for (trace::Trace& each : run.traces) {
    drop(each, [](std::string_view /*name*/, std::string_view category) {
      return category == "cuda_runtime" || category == "cuda_driver";
    });
  }
  SelectionContext selection;
  selection.setRun(std::make_shared<const RunData>(std::move(run)));
  const trace::Trace& trace = selection.rank()->trace;
  uint32_t kernel = 0;
  while (trace.category(trace.events[kernel]) != "kernel" ||
         trace.name(trace.events[kernel]).starts_with("nccl")) {
    ASSERT_LT(++kernel, trace.events.size());
  }
  selection.selectItem({0, Lane::Source::kEvents, kernel});
  EXPECT_TRUE(inspected(selection).contains("ProfilerActivity.CPU"))
      << inspected(selection).toStdString();
}

}  // namespace
}  // namespace shardlens::gui
