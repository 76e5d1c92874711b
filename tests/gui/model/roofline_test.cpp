#include <algorithm>
#include <numeric>

#include "gui/model/tables/roofline_table.h"
#include "tests/gui/qt_test.h"
#include "tests/gui/small_gpu.h"

namespace shardlens::gui {
namespace {

class RooflineTest : public QtTest<QCoreApplication> {
 protected:
  static RooflineTable::Row total(const RooflineTable& table, bool measured) {
    RooflineTable::Row out;
    for (const RooflineTable::Row& row : table.rows()) {
      if (row.measured == measured) {
        out.flops += row.flops;
        out.time += row.time;
        out.compute += row.compute;
        out.count += row.count;
      }
    }
    return out;
  }
  SelectionContext selection_;
  PlanSession session_;
  RooflineTable table_;
};

// An H100 does 989 TFLOP/s in bf16 and moves 3 350 GB/s, as its data sheet says.
TEST_F(RooflineTest, LeastTimesAreTheVendorsRates) {
  const sim::GpuSpec gpu = sim::load_hardware("8xH100").gpu;
  sim::OperatorWork product;
  product.dtype = DType::kBF16;
  product.flops = 2.0 * 4096 * 4096 * 4096;
  product.bytes = 3.0 * 2 * 4096 * 4096;
  const sim::LeastTime least = sim::least_time(product, gpu);
  EXPECT_NEAR(least.compute, 2.0 * 4096 * 4096 * 4096 / 989e12 * 1e9, 200);
  EXPECT_NEAR(least.memory, 3.0 * 2 * 4096 * 4096 / 3350e9 * 1e9, 50);
  EXPECT_EQ(least.roofline(), least.compute);
  sim::OperatorWork add;
  add.bytes = 3e9;
  EXPECT_EQ(sim::least_time(add, gpu).roofline(), sim::least_time(add, gpu).memory);
}

TEST_F(RooflineTest, GpusAreFoundByTheirNamesInTraces) {
  const auto named = [](const char* device, Bytes memory = 0) {
    const auto found = sim::hardware_of_device(device, memory);
    return found ? found->name : "";
  };
  EXPECT_EQ(named("NVIDIA H200"), "8xH200");
  EXPECT_EQ(named("NVIDIA H100 80GB HBM3", 85'028'896'768), "8xH100");
  EXPECT_EQ(named("NVIDIA A100-SXM4-80GB", 85'000'000'000), "8xA100-80");
  EXPECT_EQ(named("NVIDIA A100-SXM4-40GB", 42'000'000'000), "8xA100-40");
  EXPECT_EQ(named("NVIDIA H100 PCIe", 85'000'000'000), "");  // another board
  EXPECT_EQ(named("NVIDIA Tesla T4"), "");
  EXPECT_EQ(named(""), "");
}

// All groupings have the operators' sums.
TEST_F(RooflineTest, GroupingsOfAPlanSumToItsWork) {
  session_.start(plan::load_model_config(sample_run() + "/config.json"), "8xH100");
  ASSERT_TRUE(wait_for([&] { return session_.current() != nullptr; }));
  const PlanVersion& version = *session_.current();
  double flops = 0, busy = 0;
  for (const plan::Operator& op : version.prediction.priced.workload->operators) {
    // Causal attention computes half of the scores.
    flops += static_cast<double>(op.flops) *
             (op.kind == plan::OperatorKind::kAttention && op.causal ? 0.5 : 1);
  }
  for (const sim::OperatorWork& each : version.work) {
    busy += each.time;
  }
  ASSERT_GT(flops, 0);
  selection_.setRun(version.run);
  for (const auto by : {RooflineGrouping::kUnit, RooflineGrouping::kModule, RooflineGrouping::kKind,
                        RooflineGrouping::kOperator}) {
    table_.show(selection_, session_, by);
    const RooflineTable::Row sum = total(table_, false);
    EXPECT_DOUBLE_EQ(sum.flops, flops);
    EXPECT_NEAR(sum.time, busy, 1);
    EXPECT_GT(table_.rows().size(), 2);
    for (const RooflineTable::Row& row : table_.rows()) {
      EXPECT_LE(row.ofPeak(), row.ofRoofline() + 1e-12);
      EXPECT_LE(row.ofRoofline(), 1.001) << row.name.toStdString();
      EXPECT_FALSE(row.measured);
    }
  }
  // Every compute of the simulated step is an operator or a copy of FSDP's.
  EXPECT_LE(busy, static_cast<double>(version.prediction.figures.compute) * 1.001);
  EXPECT_TRUE(table_.summary().contains("H100")) << table_.summary().toStdString();
}

// A run on a CPU has no known rates, and says so; the plan on a spec has them.
TEST_F(RooflineTest, ARunOnAnUnknownMachineHasNoShares) {
  session_.start(sample(), {sample_run()});
  selection_.setRun(sample());
  ASSERT_TRUE(wait_for([&] { return !session_.isObserving(); }));
  session_.simulateNow();
  ASSERT_TRUE(wait_for([&] { return session_.current() != nullptr; }));
  table_.show(selection_, session_, RooflineGrouping::kUnit);
  ASSERT_GT(table_.rowCount(), 2);
  EXPECT_FALSE(table_.ofRun());
  EXPECT_TRUE(table_.summary().contains("not known")) << table_.summary().toStdString();
  const RooflineTable::Row measured = total(table_, true);
  EXPECT_GT(measured.flops, 0);
  EXPECT_GT(measured.time, 0);
  EXPECT_EQ(measured.compute, 0);
  // The same operators as recorded, except those that the trace does not show, which have no time.
  const double simulated = total(table_, false).flops;
  EXPECT_LE(measured.flops, simulated);
  EXPECT_NEAR(measured.flops, simulated, simulated * 1e-3);
  EXPECT_EQ(table_.index(1, 5).data().toString(), "–");
}

}  // namespace
}  // namespace shardlens::gui
