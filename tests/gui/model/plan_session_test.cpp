#include "gui/model/plan_session.h"

#include <set>

#include "tests/gui/qt_test.h"

namespace shardlens::gui {
namespace {

class PlanSessionTest : public QtTest<QCoreApplication> {
 protected:
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
  // Llama 2 70B. Source: its config.json on Hugging Face.
  static plan::ModelConfig llama_70b() {
    return plan::parse_model_config(
        R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192,
      "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 32000,
      "max_position_embeddings": 4096, "rms_norm_eps": 1e-05})",
        "llama-70b");
  }
  PlanSession session_;
};

TEST_F(PlanSessionTest, StartsFromTheRunsOwnPlan) {
  ASSERT_TRUE(session_.start(sample()));
  EXPECT_EQ(session_.state().plan, sample()->run.planned->plan.plan);
  EXPECT_EQ(session_.state().world_size, 8);
  simulate();
  EXPECT_EQ(session_.current()->error.toStdString(), "");
  EXPECT_GT(session_.current()->step, 0);
  ASSERT_TRUE(session_.baseline());
  EXPECT_FALSE(session_.baseline()->device);
  EXPECT_EQ(session_.baseline()->simulated, session_.versions()[0].step);
}

TEST_F(PlanSessionTest, ARunWithoutAPlanSaysSo) {
  trace::Run bare = trace::Run::of(trace::Run::open(sample_run()).traces);
  EXPECT_FALSE(session_.start(std::make_shared<const RunData>(std::move(bare))));
  EXPECT_FALSE(session_.why().isEmpty());
  EXPECT_FALSE(session_.isOpen());
}

TEST_F(PlanSessionTest, UndoReturnsExactlyAndWithoutSimulatingAgain) {
  session_.start(llama_70b(), 8);
  simulate();
  const PlanState before = session_.state();
  const Nanoseconds step = session_.current()->step;
  session_.choose(knob("Prefetch in forward"), 2);
  EXPECT_NE(session_.state(), before);
  EXPECT_EQ(session_.current(), nullptr);
  simulate();
  ASSERT_EQ(session_.versions().size(), 2);
  session_.undoStack().undo();
  EXPECT_EQ(session_.state(), before);
  ASSERT_NE(session_.current(), nullptr);
  EXPECT_EQ(session_.current()->step, step);
  session_.undoStack().redo();
  EXPECT_EQ(session_.state().plan.forward_prefetch, 2);
  EXPECT_EQ(session_.versions().size(), 2);
}

// Each choice of each knob takes hold, and is what the panel then shows.
TEST_F(PlanSessionTest, EveryChoiceHoldsOnceApplied) {
  session_.start(llama_70b(), 8);
  for (const PlanKnob& each : session_.knobs()) {
    std::set<QString> labels;
    for (const PlanKnob::Choice& choice : each.choices) {
      plan::Plan plan = session_.state().plan;
      choice.apply(plan);
      EXPECT_TRUE(choice.holds(plan))
          << each.title.toStdString() << ": " << choice.label.toStdString();
      EXPECT_TRUE(labels.insert(choice.label).second);
      choice.apply(plan);
      EXPECT_EQ(plan::parse_plan(plan::to_json(plan), plan.source), plan)
          << choice.label.toStdString();
    }
  }
}

// Directions that do not depend on the cost model: gathering less often needs more memory, and
// prefetching in forward hides more.
TEST_F(PlanSessionTest, WhatIfAnswersPointTheRightWay) {
  const plan::ModelConfig config = llama_70b();
  session_.start(config, 8);
  PlanState state = session_.state();
  state.hardware = "8xH200";
  state.seq = 1024;
  const PlanVersion base = PlanSession::simulated(config, state, "base");
  ASSERT_EQ(base.error.toStdString(), "");
  PlanState kept = state;
  kept.plan.reshard_after_forward = {plan::Reshard::Kind::kNo, 0};
  EXPECT_GT(PlanSession::simulated(config, kept, "kept").peak, base.peak);
  PlanState ahead = state;
  ahead.plan.forward_prefetch = 1;
  EXPECT_LE(PlanSession::simulated(config, ahead, "ahead").busy.exposed_comm,
            base.busy.exposed_comm);
  ASSERT_NE(base.run, nullptr);
  // The ghost's own analysis agrees with the simulator's figures.
  EXPECT_EQ(base.run->ranks[0]->figures.figures.compute, base.busy.compute);
}

// Where nothing has to be gathered, hooks do nothing: their backward is told apart all the same.
TEST_F(PlanSessionTest, EveryUnitHasItsBackwardOnTheHost) {
  const plan::ModelConfig config = llama_70b();
  session_.start(config, 8);
  PlanState state = session_.state();
  state.hardware = "8xH200";
  state.seq = 1024;
  state.plan.reshard_after_forward = {plan::Reshard::Kind::kNo, 0};
  const PlanVersion version = PlanSession::simulated(config, state, "kept");
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

// A project's versions come back in order, the run's own once.
TEST_F(PlanSessionTest, VersionsAreRestored) {
  ASSERT_TRUE(session_.start(sample()));
  PlanState own = session_.state(), ahead = own, fewer = own;
  own.plan.source = ahead.plan.source = fewer.plan.source = "work.shardlens";
  ahead.plan.forward_prefetch = 2;
  fewer.world_size = 4;
  session_.restore({own, ahead, fewer}, {"own", "ahead", "fewer"}, 1);
  ASSERT_TRUE(wait_for([&] { return !session_.isSimulating(); }));
  ASSERT_EQ(session_.versions().size(), 3);  // none twice, though the last was under way when asked
  EXPECT_EQ(session_.versions()[1].title, "ahead");
  EXPECT_EQ(session_.versions()[2].state.world_size, 4);
  EXPECT_EQ(session_.state().plan.forward_prefetch, 2);
  EXPECT_EQ(session_.current(), &session_.versions()[1]);
}

TEST_F(PlanSessionTest, ACancelledSimulationIsNotHeard) {
  session_.start(llama_70b(), 8);
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
  session_.start(config, 8);
  PlanState state = session_.state();
  state.hardware = "9xNothing";
  EXPECT_TRUE(PlanSession::simulated(config, state, "").error.contains("9xNothing"));
  state = session_.state();
  state.plan.cpu_offload = true;
  EXPECT_TRUE(PlanSession::simulated(config, state, "").error.contains("cpu_offload"));
  state = session_.state();
  state.seq = 1 << 20;
  EXPECT_FALSE(PlanSession::simulated(config, state, "").error.isEmpty());
}

}  // namespace
}  // namespace shardlens::gui
