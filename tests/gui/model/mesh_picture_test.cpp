#include "gui/model/what_if/mesh_picture.h"

#include <algorithm>
#include <fstream>

#include <nlohmann/json.hpp>

#include <QFile>
#include <QProcess>
#include <QTemporaryDir>

#include "core/plan/resolve.h"
#include "gui/model/tables/communication_table.h"
#include "gui/model/tables/mesh_table.h"
#include "gui/model/what_if/mesh_edits.h"
#include "gui/model/what_if/module_edits.h"
#include "profiler/report/figures_json.h"
#include "tests/gui/qt_test.h"

namespace shardlens::gui {
namespace {

using nlohmann::json;

class MeshPictureTest : public QtTest<QCoreApplication> {
 protected:
  void start() {
    session_.start(plan::load_model_config(sample_run() + "/config.json"), "8xH100");
    session_.simulateNow();
    ASSERT_TRUE(wait_for([&] { return session_.current() != nullptr; }));
  }
  void simulate() {
    session_.simulateNow();
    ASSERT_TRUE(wait_for([&] { return session_.current() != nullptr; }));
    ASSERT_EQ(session_.current()->error.toStdString(), "");
  }
  MeshEdit edit(const std::string& axis, const QString& label) {
    const std::vector<MeshEdit> all = mesh_edits(session_, axis);
    const auto found = std::ranges::find(all, label, &MeshEdit::label);
    if (found == all.end()) {
      throw std::runtime_error("no edit " + label.toStdString());
    }
    return *found;
  }
  void make(const std::string& axis, const QString& label) {
    const MeshEdit chosen = edit(axis, label);
    session_.edit(chosen.title, chosen.next);
  }
  // Runs a command on the session's plan and returns what it prints.
  json said(QStringList arguments) {
    const QString path = folder_.path() + "/plan.json";
    QFile file(path);
    EXPECT_TRUE(file.open(QIODevice::WriteOnly));
    file.write(QByteArray::fromStdString(session_.planJson()));
    file.close();
    QProcess process;
    process.start(QStringLiteral(SHARDLENS_BIN_DIR "/shardlens"),
                  arguments << "--model" << QString::fromStdString(sample_run()) << "--plan" << path
                            << "--world-size" << QString::number(session_.state().world_size)
                            << "--json");
    process.waitForFinished(60'000);
    EXPECT_EQ(process.exitCode(), 0) << process.readAllStandardError().toStdString();
    return json::parse(process.readAllStandardOutput().toStdString(), nullptr, false);
  }
  json simulated() {
    const PlanState& state = session_.state();
    return said({"simulate", "--hardware", "8xH100", "--batch", QString::number(state.step.batch),
                 "--seq", QString::number(*state.step.seq)});
  }
  SelectionContext selection_;
  PlanSession session_;
  QTemporaryDir folder_;
};

// Tensor parallelism divides the 256 rows of q_proj into halves, FSDP each half over four ranks;
// of o_proj, a row style, the columns and then the rows.
TEST_F(MeshPictureTest, BoxesOfAParameter) {
  plan::Plan plan = plan::parse_plan(
      R"({"version": 1, "layout": "per_parameter", "mesh": {"shard": 4, "tensor": 2}})",
      "plan.json");
  session_.start(plan::load_model_config(sample_run() + "/config.json"), "8xH100");
  const plan::ResolvedPlan resolved = plan::resolve(plan, session_.tree(), 8);
  const RankBoxes q = boxes_by_rank(resolved, "model.layers.1.self_attn.q_proj.weight");
  const RankBoxes o = boxes_by_rank(resolved, "model.layers.1.self_attn.o_proj.weight");
  const RankBoxes norm = boxes_by_rank(resolved, "model.norm.weight");
  ASSERT_EQ(q.size(), 8U);
  for (int rank = 0; rank < 8; ++rank) {
    const int shard = rank / 2, tensor = rank % 2;
    const auto index = static_cast<size_t>(rank);
    EXPECT_EQ(q[index], (std::vector{QRectF(0, tensor / 2.0 + shard / 8.0, 1, 1 / 8.0)})) << rank;
    EXPECT_EQ(o[index], (std::vector{QRectF(tensor / 2.0, shard / 4.0, 0.5, 0.25)})) << rank;
    EXPECT_EQ(norm[index], (std::vector{QRectF(shard / 4.0, 0, 0.25, 1)})) << rank;
  }
  // In layout flat a range of elements is up to three boxes, and all ranks together have the whole.
  plan.layout = plan::Layout::kFlat;
  double area = 0;
  for (const std::vector<QRectF>& boxes : boxes_by_rank(plan::resolve(plan, session_.tree(), 8),
                                                        "model.layers.1.mlp.up_proj.weight")) {
    for (const QRectF& box : boxes) {
      area += box.width() * box.height();
    }
  }
  EXPECT_NEAR(area, 1, 1e-9);
  for (const std::vector<QRectF>& boxes : boxes_by_rank(resolved, "no.such.weight")) {
    EXPECT_TRUE(boxes.empty());
  }
}

// Each rank keeps what `plan` prints; the other figures are those of `simulate`.
TEST_F(MeshPictureTest, NumbersAreTheCommands) {
  start();
  make("shard", "split: shard 4, tensor 2");
  make("shard", "split: shard 2, replicate 2");
  simulate();
  const MeshPicture picture = mesh_picture(selection_, session_);
  ASSERT_EQ(picture.why.toStdString(), "");
  const json planned = said({"plan"});
  ASSERT_EQ(planned.at("ranks").size(), picture.ranks.size());
  for (size_t rank = 0; rank < picture.ranks.size(); ++rank) {
    EXPECT_EQ(picture.ranks[rank].parameters, planned["ranks"][rank]["parameter_bytes"]) << rank;
  }
  EXPECT_EQ(planned.at("mesh"), json::parse(R"({"replicate": 2, "shard": 2, "context": 1,
                                                "tensor": 2, "expert": 1})"));
  const json simulated = this->simulated();
  ASSERT_TRUE(picture.peak);
  for (int i = 0; i < sim::kMemoryCategoryCount; ++i) {
    EXPECT_EQ((*picture.peak)[static_cast<size_t>(i)],
              simulated.at("memory").at(std::string(name_of(static_cast<sim::MemoryCategory>(i)))));
  }
  EXPECT_EQ(picture.ranks.back().waited, simulated.at("exposed_comm_ns").get<Nanoseconds>());
  MeshTable table;
  table.show(picture);
  EXPECT_EQ(table.rowCount(), 8);
  EXPECT_EQ(table.index(3, 1).data().toString(), "replicate 0, shard 1, tensor 1");

  CommunicationTable communication;
  communication.show(selection_, session_);
  EXPECT_EQ(json(report::communication_json(communication.ofPlan())),
            simulated.at("communication"));
  const auto purpose = [&](Purpose wanted) {
    return std::ranges::count(communication.ofPlan(), wanted,
                              &analysis::CommunicationFigures::purpose);
  };
  EXPECT_GT(purpose(Purpose::kActivations), 0);
  EXPECT_GT(purpose(Purpose::kReduceReplicas), 0);
}

// Rank 5 of replicate 2, shard 2, tensor 2 is at 1, 0, 1.
TEST_F(MeshPictureTest, GroupsAreThoseOfTheMesh) {
  start();
  make("shard", "split: shard 4, tensor 2");
  make("shard", "split: shard 2, replicate 2");
  const MeshPicture picture = mesh_picture(selection_, session_);
  ASSERT_EQ(picture.axes.size(), 3U);
  EXPECT_EQ(picture.place(5), "replicate 1, shard 0, tensor 1");
  EXPECT_EQ(picture.axes[0].group.members(5), (std::vector<int64_t>{1, 5}));
  EXPECT_EQ(picture.axes[1].group.members(5), (std::vector<int64_t>{5, 7}));
  EXPECT_EQ(picture.axes[2].group.members(5), (std::vector<int64_t>{4, 5}));
  EXPECT_TRUE(picture.text(5).contains("tensor 1 of 2: ranks 4, 5"))
      << picture.text(5).toStdString();
  EXPECT_EQ(picture.nodes(), 1);
  EXPECT_EQ(picture.gpus, 8);
}

TEST_F(MeshPictureTest, EditsAreUndone) {
  start();
  const PlanState before = session_.state();
  EXPECT_TRUE(edit("shard", "8").holds);
  make("shard", "split: shard 4, tensor 2");
  EXPECT_EQ(degree_of(session_, "shard"), 4);
  EXPECT_EQ(degree_of(session_, "tensor"), 2);
  EXPECT_EQ(session_.undoStack().undoText(), "Mesh: shard 4, tensor 2");
  make("tensor", "merge: shard 8");
  EXPECT_EQ(session_.state(), before);
  make("context", "2");
  EXPECT_EQ(degree_of(session_, "shard"), 4);
  while (session_.undoStack().canUndo()) {
    session_.undoStack().undo();
  }
  EXPECT_EQ(session_.state(), before);
}

// The form refuses an impossible degree with the command's own sentence.
TEST_F(MeshPictureTest, ADegreeThatCannotBeIsRefusedInWords) {
  start();
  const json config = json::parse(std::ifstream(sample_run() + "/config.json"));
  const MeshEdit eight = edit("tensor", "8");
  const StateStanding standing = standing_of(session_, eight.next);
  QProcess process;
  process.start(QStringLiteral(SHARDLENS_BIN_DIR "/shardlens"),
                {"simulate", "--model", QString::fromStdString(sample_run()), "--hardware",
                 "8xH100", "--mesh", "tensor=8", "--world-size", "8", "--batch",
                 QString::number(session_.state().step.batch), "--seq",
                 QString::number(*session_.state().step.seq)});
  process.waitForFinished(60'000);
  const QString error = process.readAllStandardError();
  EXPECT_EQ(standing.possible, process.exitCode() == 0);
  EXPECT_EQ(standing.why.isEmpty(), standing.possible) << config.dump();
  EXPECT_FALSE(standing.possible) << "the sample has too few heads";
  const QString reason = standing.why.section(": ", -1);
  EXPECT_TRUE(error.simplified().contains(reason.simplified()))
      << error.toStdString() << standing.why.toStdString();
}

// The measured times of a run's ranks are those of the table of ranks.
TEST_F(MeshPictureTest, MeasuredTimesOfARun) {
  selection_.setRun(sample());
  session_.start(sample(), {sample_run()});
  ASSERT_TRUE(wait_for([&] { return !session_.isObserving(); }));
  MeshPicture picture = mesh_picture(selection_, session_);
  ASSERT_EQ(picture.ranks.size(), 8U);
  size_t found = 0;
  for (const MeshPicture::Rank& rank : picture.ranks) {
    found += rank.in_run ? 1 : 0;
  }
  EXPECT_EQ(found, sample()->ranks.size());
  simulate();
  picture = mesh_picture(selection_, session_);
  EXPECT_TRUE(picture.measured);
  EXPECT_EQ(picture.ranks.front().waited,
            sample()->ranks.front()->live.within(selection_.windowOf(0)).exposed_comm);
  make("shard", "split: shard 4, replicate 2");
  EXPECT_FALSE(mesh_picture(selection_, session_).measured);
  CommunicationTable communication;
  communication.show(selection_, session_);
  EXPECT_EQ(report::communication_json(communication.ofRun()),
            report::communication_json(sample()->ranks.front()->figures.communication));
}

// A machine from a file: 128 nodes of eight GPUs.
TEST_F(MeshPictureTest, AMachineOfOnesOwn) {
  json spec = json::parse(
      std::ifstream(std::string(SHARDLENS_TEST_DATA) + "/../../sim/hardware/specs/8xH100.json"));
  spec["nodes"] = 128;
  if (!spec["fabric"].contains("network_gbps")) {
    spec["fabric"]["network_gbps"] = {{"value", 50}, {"source", "test"}};
  }
  const QString path = folder_.path() + "/mine.json";
  std::ofstream(path.toStdString()) << spec.dump();
  session_.start(plan::load_model_config(sample_run() + "/config.json"), path);
  const MeshPicture picture = mesh_picture(selection_, session_);
  EXPECT_EQ(picture.ranks.size(), 1024U);
  EXPECT_EQ(picture.nodes(), 128);
  EXPECT_EQ(machine_choices(session_.subject(), path).back().label, "mine.json");
}

}  // namespace
}  // namespace shardlens::gui
