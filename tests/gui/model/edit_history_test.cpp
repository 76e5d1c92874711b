#include "gui/model/what_if/edit_history.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include <QJsonDocument>
#include <QJsonObject>
#include <QProcess>
#include <QTemporaryDir>

#include "gui/model/tables/unit_tree.h"
#include "tests/gui/qt_test.h"

namespace shardlens::gui {
namespace {

class PlanSessionTest : public QtTest<QCoreApplication> {
 protected:
  void start(const RunPointer& run, const std::string& path) {
    session_.start(run, {path});
    ASSERT_TRUE(wait_for([&] { return !session_.isObserving(); }));
  }
  void simulate() {
    session_.simulateNow();
    ASSERT_TRUE(wait_for([&] { return session_.current() != nullptr; }));
  }
  size_t knob(const QString& title) {
    for (size_t i = 0; i < session_.knobs().size(); ++i) {
      if (session_.knobs()[i].title == title) {
        return i;
      }
    }
    throw std::runtime_error("no knob " + title.toStdString());
  }
  // Llama 2 70B, or its first layers. Source: its config.json on Hugging Face.
  static plan::ModelConfig llama_70b(int layers = 80) {
    return plan::parse_model_config(
        R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192,
      "intermediate_size": 28672, "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 32000,
      "max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "num_hidden_layers": )" +
            std::to_string(layers) + "}",
        "llama-70b");
  }
  PlanSession session_;
};

TEST_F(PlanSessionTest, LearnsFromTheRunAndStartsFromItsOwnPlan) {
  start(sample(), sample_run());
  ASSERT_TRUE(session_.isOpen()) << session_.why().toStdString();
  EXPECT_EQ(session_.state().plan, sample()->run.planned->plan.plan);
  EXPECT_EQ(session_.state().world_size, 8);
  EXPECT_EQ(session_.state().machine.toStdString(), kMachineOfRun);
  EXPECT_EQ(session_.state().step, sample()->run.planned->settings);
  simulate();
  EXPECT_EQ(session_.current()->error.toStdString(), "");
  ASSERT_TRUE(session_.baseline());
  EXPECT_EQ(session_.baseline()->simulated, session_.versions()[0].step());
  // The simulated step of the run's own plan is close to the measured step.
  EXPECT_NEAR(session_.baseline()->error(), 0, 0.06);
  EXPECT_EQ(session_.versions()[0].prediction.baseline, session_.baseline());
}

// The plan is recovered from PyTorch's traces, and the run's own machine is calibrated from them.
TEST_F(PlanSessionTest, LearnsFromPyTorchTraces) {
  const RunPointer run = open_run(pytorch_run("fsdp2-default"));
  start(run, pytorch_run("fsdp2-default"));
  ASSERT_TRUE(session_.isOpen()) << session_.why().toStdString();
  ASSERT_NE(session_.recovered(run), nullptr);
  EXPECT_EQ(session_.recovered(sample()), nullptr);
  EXPECT_GT(session_.recovered(run)->units.size(), 1U);
  simulate();
  EXPECT_EQ(session_.current()->error.toStdString(), "");
  ASSERT_TRUE(session_.baseline());
  // Without the model's config.json only the run's own machine can be simulated.
  for (const MachineChoice& each : machine_choices(session_.subject())) {
    EXPECT_TRUE(each.name.startsWith(kMachineOfRun)) << each.name.toStdString();
  }
  PlanState other = session_.state();
  other.step.batch += 1;
  EXPECT_EQ(PlanSession::simulated(session_.subject(), other, "").error.toStdString(), "");
  other = session_.state();
  other.step.seq = other.step.seq.value_or(1) + 1;
  EXPECT_TRUE(PlanSession::simulated(session_.subject(), other, "").error.contains("config.json"));
  other = session_.state();
  other.world_size = 4;  // the run has no collectives between four ranks
  EXPECT_FALSE(PlanSession::simulated(session_.subject(), other, "").error.isEmpty());
}

// Of a directory of several runs the first one is open.
TEST_F(PlanSessionTest, TheFirstOfSeveralRunsIsObserved) {
  const QTemporaryDir folder;
  const std::string runs = folder.path().toStdString();
  for (const char* name : {"/a", "/b"}) {
    std::filesystem::copy(pytorch_run("fsdp2-default"), runs + name);
  }
  start(open_run(runs + "/a"), runs);
  EXPECT_EQ(session_.why().toStdString(), "");
  EXPECT_NE(session_.recorded(), nullptr);
}

TEST_F(PlanSessionTest, ARunThatTeachesNothingSaysSo) {
  trace::Run bare = trace::Run::of(trace::Run::open(sample_run()).traces);
  const std::string alone = sample_run() + "/rank0.pt.trace.json.gz";
  bare.diagnostics.push_back({trace::Severity::kWarning, "the planned order is not known: why"});
  start(std::make_shared<const RunData>(std::move(bare)), alone);
  EXPECT_FALSE(session_.why().isEmpty());
  EXPECT_FALSE(session_.isOpen());
  EXPECT_EQ(session_.recorded(), nullptr);
}

TEST_F(PlanSessionTest, LearningCanBeStoppedAndBegunAgain) {
  const std::string path = pytorch_run("fsdp2-default");
  session_.start(open_run(path), {path});
  ASSERT_TRUE(session_.isObserving());
  session_.cancel();
  EXPECT_FALSE(session_.isObserving());
  EXPECT_FALSE(session_.isOpen());
  EXPECT_TRUE(session_.wasCancelled());
  session_.resume();
  ASSERT_TRUE(wait_for([&] { return !session_.isObserving(); }));
  EXPECT_TRUE(session_.isOpen()) << session_.why().toStdString();
}

TEST_F(PlanSessionTest, UndoReturnsExactlyAndWithoutSimulatingAgain) {
  session_.start(llama_70b(), "8xH100");
  simulate();
  const PlanState before = session_.state();
  const Nanoseconds step = session_.current()->step();
  session_.choose(knob("Prefetch in forward"), 2);
  EXPECT_NE(session_.state(), before);
  EXPECT_EQ(session_.current(), nullptr);
  simulate();
  ASSERT_EQ(session_.versions().size(), 2);
  session_.undoStack().undo();
  EXPECT_EQ(session_.state(), before);
  ASSERT_NE(session_.current(), nullptr);
  EXPECT_EQ(session_.current()->step(), step);
  session_.undoStack().redo();
  EXPECT_EQ(session_.state().plan.forward_prefetch, 2);
  EXPECT_EQ(session_.versions().size(), 2);
}

// After a choice is applied it holds, so that the panel shows it.
TEST_F(PlanSessionTest, EveryChoiceHoldsOnceApplied) {
  session_.start(llama_70b(), "8xH100");
  for (const PlanKnob& each : session_.knobs()) {
    std::set<QString> labels;
    for (const PlanKnob::Choice& choice : each.choices) {
      PlanState state = session_.state();
      choice.apply(state);
      EXPECT_TRUE(choice.holds(state))
          << each.title.toStdString() << ": " << choice.label.toStdString();
      EXPECT_TRUE(labels.insert(choice.label).second);
      choice.apply(state);
      EXPECT_EQ(plan::parse_plan(plan::to_json(state.plan), state.plan.source), state.plan)
          << choice.label.toStdString();
    }
  }
}

// Compiled blocks move fewer bytes, and a graph has fewer launches: both are faster.
TEST_F(PlanSessionTest, TheSoftwareOfAStepIsChosen) {
  session_.start(llama_70b(2), "8xH100");
  simulate();
  Nanoseconds before = session_.current()->step();
  for (const auto& [title, label] :
       {std::pair{"Compiled", "blocks and loss"}, {"CUDA graphs", "yes"}}) {
    const size_t index = knob(title);
    const auto& choices = session_.knobs()[index].choices;
    const auto chosen = std::ranges::find(choices, QString(label), &PlanKnob::Choice::label);
    ASSERT_NE(chosen, choices.end()) << title;
    session_.choose(index, static_cast<size_t>(chosen - choices.begin()));
    simulate();
    EXPECT_EQ(session_.current()->error.toStdString(), "");
    EXPECT_LT(session_.current()->step(), before) << title;
    before = session_.current()->step();
  }
  EXPECT_EQ(session_.current()->prediction.settings.software,
            (plan::Software{.compile = plan::Compile::kBlock, .cuda_graphs = true}));
}

// The times of a run say nothing about software that it did not have.
TEST_F(PlanSessionTest, OtherSoftwareIsNotKnownFromARun) {
  start(sample(), sample_run());
  PlanState state = session_.state();
  state.step.software.compile = plan::Compile::kBlock;
  for (const char* machine : {"run", "8xH100"}) {
    state.machine = machine;
    const PlanVersion version = PlanSession::simulated(session_.subject(), state, "");
    EXPECT_EQ(version.error.contains("measured under other software"),
              state.machine == QLatin1String(kMachineOfRun))
        << version.error.toStdString();
  }
}

// Each sharding that the panel offers is that of `simulate --strategy`, on the same run.
TEST_F(PlanSessionTest, ShardingOfARunIsThatOfTheCommandLine) {
  const std::string path = pytorch_run("fsdp2-prefetch");
  start(open_run(path), path);
  ASSERT_TRUE(session_.isOpen()) << session_.why().toStdString();
  const PlanState own = session_.state();
  const PlanKnob sharding = session_.knobs()[knob("Sharding")];
  for (const auto& [choice, strategy] : {std::pair{0, "full_shard"}, {1, "shard_grad_op"}}) {
    PlanState changed = own;
    sharding.choices[static_cast<size_t>(choice)].apply(changed);
    const PlanVersion version = PlanSession::simulated(session_.subject(), changed, "");
    EXPECT_EQ(version.error.toStdString(), "");
    QProcess program;
    program.start(
        QStringLiteral(SHARDLENS_BIN_DIR "/shardlens"),
        {"simulate", "--json", "--workload", QString::fromStdString(path), "--strategy", strategy});
    ASSERT_TRUE(program.waitForFinished());
    const QJsonObject answer = QJsonDocument::fromJson(program.readAllStandardOutput()).object();
    EXPECT_GT(version.step(), 0);
    EXPECT_EQ(version.step(), answer["step_ns"].toInteger()) << strategy;
    EXPECT_EQ(version.peak(), answer["peak_allocated_bytes"].toInteger()) << strategy;
    EXPECT_EQ(version.step() == session_.baseline()->simulated, choice == 0) << strategy;
  }
}

// Every version keeps its figures; only some keep the results that take most memory.
TEST_F(PlanSessionTest, OldVersionsAreSimulatedAgain) {
  const auto count = [this] {
    return std::ranges::count_if(session_.versions(), &PlanVersion::isWhole);
  };
  session_.start(llama_70b(2), "8xH100");
  simulate();
  const Bytes peak = session_.current()->peak();
  const size_t all = PlanSession::kWhole + 4;
  for (size_t i = 1; i < all; ++i) {
    PlanState next = session_.state();
    next.step.seq = static_cast<int64_t>(128 * i);
    session_.edit(QString::number(i), next);
    simulate();
    EXPECT_LE(count(), PlanSession::kWhole);
  }
  ASSERT_EQ(session_.versions().size(), all);
  EXPECT_EQ(count(), PlanSession::kWhole);
  EXPECT_TRUE(session_.versions().front().isWhole());  // what the others are compared with
  const PlanVersion old = session_.versions()[1];
  EXPECT_FALSE(old.isWhole());
  EXPECT_TRUE(old.memory.empty() && old.prediction.memory.alive.empty());
  EXPECT_EQ(old.prediction.priced.planned, nullptr);
  EXPECT_GT(old.step(), 0);
  EXPECT_NE(old.peak(), peak);

  session_.edit("back to v1", old.state);
  EXPECT_EQ(session_.current(), nullptr);
  simulate();
  EXPECT_EQ(session_.versions().size(), all);
  EXPECT_EQ(session_.current(), &session_.versions()[1]);
  EXPECT_EQ(session_.current()->title, "1");
  EXPECT_EQ(session_.current()->step(), old.step());
  EXPECT_EQ(session_.current()->peak(), old.peak());
  EXPECT_FALSE(session_.current()->memory.empty());
  EXPECT_EQ(count(), PlanSession::kWhole);
  session_.undoStack().undo();  // of the version before, nothing was dropped
  EXPECT_EQ(session_.current(), &session_.versions().back());
}

TEST_F(PlanSessionTest, UndoHasALimit) {
  session_.start(llama_70b(2), "8xH100");
  for (int i = 0; i < PlanSession::kUndoSteps + 10; ++i) {
    PlanState next = session_.state();
    next.step.seq = 128 + i;
    session_.edit(QString::number(i), next);
  }
  EXPECT_EQ(session_.undoStack().count(), PlanSession::kUndoSteps);
  while (session_.undoStack().canUndo()) {
    session_.undoStack().undo();
  }
  EXPECT_EQ(session_.state().step.seq, 128 + 9);
}

// Effects that do not depend on the cost model: gathering less often needs more memory, and
// prefetching in forward does not increase the exposed communication. 16 layers fit in a GPU with
// and without resharding; where memory runs out, peaks cannot be compared.
TEST_F(PlanSessionTest, WhatIfAnswersPointTheRightWay) {
  const plan::ModelConfig config = llama_70b(16);
  session_.start(config, "8xH200");
  PlanState state = session_.state();
  state.step.seq = 1024;
  const PlanVersion base = PlanSession::simulated(session_.subject(), state, "base");
  ASSERT_EQ(base.error.toStdString(), "");
  PlanState kept = state;
  kept.plan.reshard_after_forward = {plan::Reshard::Kind::kNo, 0};
  EXPECT_GT(PlanSession::simulated(session_.subject(), kept, "kept").peak(), base.peak());
  PlanState ahead = state;
  ahead.plan.forward_prefetch = 1;
  EXPECT_LE(
      PlanSession::simulated(session_.subject(), ahead, "ahead").prediction.figures.exposed_comm,
      base.prediction.figures.exposed_comm);
  ASSERT_NE(base.run, nullptr);
  // The ghost's own analysis agrees with the simulator's figures.
  EXPECT_EQ(base.run->ranks[0]->figures.figures.compute, base.prediction.figures.compute);
  // The step was kept whole: it can be simulated again.
  const sim::PricedStep& step = base.prediction.priced;
  EXPECT_EQ(step.plan->plan, state.plan);
  EXPECT_EQ(sim::simulate(step).ranks.front().figures.compute, base.prediction.figures.compute);
}

// Units without all-gathers in backward still have a backward section on the host.
TEST_F(PlanSessionTest, EveryUnitHasItsBackwardOnTheHost) {
  const plan::ModelConfig config = llama_70b();
  session_.start(config, "8xH200");
  PlanState state = session_.state();
  state.step.seq = 1024;
  state.plan.reshard_after_forward = {plan::Reshard::Kind::kNo, 0};
  const PlanVersion version = PlanSession::simulated(session_.subject(), state, "kept");
  ASSERT_NE(version.run, nullptr) << version.error.toStdString();
  const analysis::Timeline& timeline = version.run->ranks[0]->timeline;
  std::set<std::string> forward, backward;
  for (const auto& part : timeline.sections.parts()) {
    if (part.owner.unit != kNoUnit) {
      (part.owner.section == analysis::Section::kForward ? forward : backward)
          .insert(timeline.fsdp.units[part.owner.unit].fqn);
    }
  }
  EXPECT_GE(forward.size(), 80);
  EXPECT_EQ(backward, forward);
}

// A project's versions are restored in order, and the run's own plan is not duplicated.
TEST_F(PlanSessionTest, VersionsAreRestored) {
  start(sample(), sample_run());
  PlanState own = session_.state(), ahead = own, fewer = own;
  own.plan.source = ahead.plan.source = fewer.plan.source = "work.shardlens";
  ahead.plan.forward_prefetch = 2;
  fewer.world_size = 4;
  session_.restore({{own, ahead, fewer}, {"own", "ahead", "fewer"}, 1});
  ASSERT_TRUE(wait_for([&] { return !session_.isSimulating(); }));
  ASSERT_EQ(session_.versions().size(), 3);  // one was requested twice but simulated once
  EXPECT_EQ(session_.versions()[1].title, "ahead");
  EXPECT_EQ(session_.versions()[2].state.world_size, 4);
  EXPECT_EQ(session_.state().plan.forward_prefetch, 2);
  EXPECT_EQ(session_.current(), &session_.versions()[1]);
}

// A project that is saved while its plans wait for the run, or for a simulation, loses none of
// them.
TEST_F(PlanSessionTest, PlansWithoutAResultAreSaved) {
  start(sample(), sample_run());
  const PlanState own = session_.state();
  PlanState ahead = own, fewer = own;
  ahead.plan.forward_prefetch = 2;
  fewer.world_size = 4;
  session_.start(sample(), {sample_run()});
  session_.restore({{own, ahead, fewer}, {"own", "ahead", "fewer"}, 1});
  const auto expect_all = [&] {
    const SavedPlans saved = session_.saved();
    ASSERT_EQ(saved.states.size(), 3);
    EXPECT_EQ(saved.states[1].plan.forward_prefetch, 2);
    EXPECT_EQ(saved.states[2].world_size, 4);
    EXPECT_EQ(saved.titles[2], "fewer");
    EXPECT_EQ(saved.current, 1);
  };
  ASSERT_TRUE(session_.isObserving());
  expect_all();
  session_.cancel();
  expect_all();
  session_.resume();
  ASSERT_TRUE(wait_for([&] { return !session_.isObserving(); }));
  expect_all();
  session_.cancel();
  EXPECT_FALSE(session_.isBusy());
  expect_all();
  session_.resume();
  ASSERT_TRUE(wait_for([&] { return !session_.isBusy(); }));
  EXPECT_EQ(session_.versions().size(), 3);
  expect_all();
  // An edit whose simulation has not begun, or was stopped.
  PlanState next = session_.state();
  next.plan.forward_prefetch = 3;
  session_.edit("further", next);
  EXPECT_EQ(session_.saved().current, 3);
  session_.simulateNow();
  session_.cancel();
  EXPECT_EQ(session_.saved().current, 3);
  EXPECT_EQ(session_.saved().titles[3], "further");
}

TEST_F(PlanSessionTest, ACancelledSimulationIsNotHeard) {
  session_.start(llama_70b(), "8xH100");
  session_.cancel();
  EXPECT_TRUE(session_.wasCancelled());
  EXPECT_FALSE(session_.isSimulating());
  QCoreApplication::processEvents();
  EXPECT_TRUE(session_.versions().empty());
  simulate();
  EXPECT_FALSE(session_.wasCancelled());
  EXPECT_EQ(session_.versions().size(), 1);
}

TEST_F(PlanSessionTest, WhatCannotBeSimulatedIsAMessage) {
  const plan::ModelConfig config = llama_70b();
  session_.start(config, "8xH200");
  PlanState state = session_.state();
  state.machine = "9xNothing";
  EXPECT_TRUE(PlanSession::simulated(session_.subject(), state, "").error.contains("9xNothing"));
  state = session_.state();
  state.plan.mesh.replicate = 2;
  state.plan.mesh.shard = 4;
  for (plan::UnitEntry& unit : state.plan.units) {
    unit.api = plan::Api::kReplicate;
  }
  EXPECT_TRUE(PlanSession::simulated(session_.subject(), state, "").error.contains("#/mesh"));
  state = session_.state();
  state.step.seq = 1 << 20;
  EXPECT_FALSE(PlanSession::simulated(session_.subject(), state, "").error.isEmpty());
}

// For every plan, the tree of the simulated run sums to its headline.
TEST_F(PlanSessionTest, TreesOfEveryPlanSumToTheHeadline) {
  const plan::ModelConfig config = plan::load_model_config(sample_run() + "/config.json");
  PlanState state;
  state.plan = plan::strategy_plan("full_shard", plan::module_tree(config));
  state.machine = "8xH100";
  state.world_size = 8;
  state.step.seq = 512;
  for (const PlanKnob& knob : plan_knobs(plan::module_tree(config), state.world_size)) {
    for (const PlanKnob::Choice& choice : knob.choices) {
      PlanState next = state;
      choice.apply(next);
      const PlanVersion version =
          PlanSession::simulated(PlanSubject::of(config), next, choice.label);
      if (version.run == nullptr) {
        continue;
      }
      UnitTree tree;
      tree.show(version.run, 0);
      Nanoseconds sum = 0;
      for (int row = 0; row < tree.rowCount(); ++row) {
        sum += tree.exposedAt(tree.index(row, 0));
      }
      EXPECT_EQ(sum, version.run->ranks[0]->figures.figures.exposed_comm)
          << knob.title.toStdString() << ": " << choice.label.toStdString();
    }
  }
}

}  // namespace
}  // namespace shardlens::gui
