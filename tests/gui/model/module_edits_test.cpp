#include "gui/model/what_if/module_edits.h"

#include <map>
#include <set>

#include "core/base/error.h"
#include "core/edits/module_values.h"
#include "core/plan/resolve.h"
#include "tests/gui/qt_test.h"

namespace shardlens::gui {
namespace {

class ModuleEditsTest : public QtTest<QCoreApplication> {
 protected:
  using Modules = std::vector<std::string>;
  static constexpr int64_t kRanks = 8;

  const plan::ModuleTree& tree() { return sample()->run.planned->plan.tree; }
  plan::Plan plan() { return plan::strategy_plan("full_shard", tree()); }
  PlanKnob knob(const QString& title, const Modules& modules) {
    for (PlanKnob& each : module_knobs(tree(), kRanks, modules)) {
      if (each.title == title) {
        return each;
      }
    }
    throw std::runtime_error("no knob " + title.toStdString());
  }
  // The plan after applying the choice whose label starts with `label`; the choice must then hold.
  plan::Plan chosen(plan::Plan plan,
                    const QString& title,
                    const Modules& modules,
                    const QString& label) {
    for (const PlanKnob::Choice& choice : knob(title, modules).choices) {
      if (choice.label.startsWith(label)) {
        PlanState state{.plan = plan, .machine = {}};
        choice.apply(state);
        EXPECT_TRUE(choice.holds(state)) << label.toStdString();
        return state.plan;
      }
    }
    throw std::runtime_error("no choice " + label.toStdString());
  }
  plan::ResolvedPlan resolved(const plan::Plan& plan) {
    return plan::resolve(plan, tree(), kRanks);
  }
  // All units by FQN.
  std::map<std::string, plan::Unit> units(const plan::Plan& plan) {
    std::map<std::string, plan::Unit> out;
    for (const plan::Unit& unit : resolved(plan).units) {
      out.emplace(unit.fqn, unit);
    }
    return out;
  }
};

TEST_F(ModuleEditsTest, OwnEntriesMakeTheSameUnits) {
  const plan::Plan before = plan();
  const plan::Plan after = with_own_entries(before, tree(), kRanks, {"model.layers.3"});
  EXPECT_NE(after, before);
  const auto a = resolved(before).units, b = resolved(after).units;
  ASSERT_EQ(a.size(), b.size());
  for (size_t u = 0; u < a.size(); ++u) {
    EXPECT_EQ(a[u].fqn, b[u].fqn);
    EXPECT_EQ(a[u].parameters, b[u].parameters);
  }
}

TEST_F(ModuleEditsTest, AUnitIsMadeAndTakenBack) {
  const Modules mlp{"model.layers.2.mlp"};
  const plan::Plan wrapped = chosen(plan(), "Unit", mlp, "a unit");
  EXPECT_EQ(units(wrapped).size(), units(plan()).size() + 1);
  EXPECT_EQ(units(wrapped).at("model.layers.2.mlp").parameters.size(), 3);  // gate, up, down
  EXPECT_EQ(units(wrapped).at("model.layers.2").parameters.size(), 6);
  const plan::Plan back = chosen(wrapped, "Unit", mlp, "no unit");
  EXPECT_EQ(units(back).size(), units(plan()).size());
  EXPECT_EQ(units(back).at("model.layers.2").parameters.size(), 9);
}

TEST_F(ModuleEditsTest, ModulesAreTakenTogether) {
  const Modules two{"model.layers.1", "model.layers.2"};
  const plan::Plan together = chosen(plan(), "Unit", two, "all together");
  EXPECT_EQ(units(together).at("model.layers.1, model.layers.2").parameters.size(), 18);
  const plan::Plan apart = chosen(together, "Unit", two, "each a unit");
  EXPECT_EQ(units(apart).size(), units(plan()).size());
}

TEST_F(ModuleEditsTest, OnlyTheChosenUnitChanges) {
  using Kind = plan::Reshard::Kind;
  const plan::Plan kept = chosen(plan(), "Reshard", {"model.layers.3"}, "kept after forward");
  const plan::Plan cast = chosen(kept, "Precision", {"model.layers.3"}, "bf16, reduced");
  for (const auto& [fqn, unit] : units(cast)) {
    const bool chosen_one = fqn == "model.layers.3";
    EXPECT_EQ(unit.reshard_after_forward.kind == Kind::kNo, chosen_one) << fqn;
    EXPECT_EQ(unit.mixed_precision.param_dtype == DType::kBF16, chosen_one) << fqn;
  }
  const plan::ResolvedPlan edited = resolved(cast);
  for (uint32_t m = 0; m < edited.tree.modules.size(); ++m) {
    if (edited.tree.modules[m].fqn == "model.layers.3") {
      EXPECT_EQ(module_plan_text(edited, m), "unit, kept, bf16");
    } else if (edited.tree.modules[m].fqn == "model.layers.3.mlp") {
      EXPECT_EQ(module_plan_text(edited, m), "");
    }
  }
}

TEST_F(ModuleEditsTest, PrefetchNamesTheFollowingUnits) {
  plan::Plan start = plan();
  start.forward_prefetch = 1;
  const plan::Plan after = chosen(start, "Prefetch in forward", {"model.layers.1"}, "the next 2");
  const plan::ResolvedPlan edited = resolved(after);
  const auto names = [&](const std::string& fqn) {
    std::vector<std::string> out;
    const plan::Unit unit = units(after).at(fqn);
    for (const UnitId u : unit.forward_prefetch) {
      out.push_back(edited.units[u].fqn);
    }
    return out;
  };
  EXPECT_EQ(names("model.layers.1"), (Modules{"model.layers.2", "model.layers.3"}));
  EXPECT_EQ(names("model.layers.2"), (Modules{"model.layers.3"}));  // as with the previous depth
}

// Choices for a module that is not a unit change nothing until it is made a unit.
TEST_F(ModuleEditsTest, WithoutAUnitNothingChanges) {
  for (const char* title : {"Reshard", "Precision", "Strategy", "Prefetch in forward"}) {
    for (const PlanKnob::Choice& choice : knob(title, {"model.layers.2.mlp"}).choices) {
      PlanState after{.plan = plan(), .machine = {}};
      choice.apply(after);
      EXPECT_EQ(after.plan, plan()) << title;
      EXPECT_FALSE(choice.holds(after)) << title << ": " << choice.label.toStdString();
    }
  }
}

// Every choice that resolves can be written to a plan file and read again.
TEST_F(ModuleEditsTest, EditedPlansAreFiles) {
  for (const Modules& modules :
       {Modules{"model.layers.0"}, Modules{"model.layers.4", "model.layers.5"}, Modules{""}}) {
    for (const PlanKnob& each : module_knobs(tree(), kRanks, modules)) {
      std::set<QString> labels;
      for (const PlanKnob::Choice& choice : each.choices) {
        EXPECT_TRUE(labels.insert(choice.label).second);
        PlanState after{.plan = plan(), .machine = {}};
        choice.apply(after);
        EXPECT_EQ(plan::parse_plan(plan::to_json(after.plan), after.plan.source), after.plan);
      }
    }
  }
}

TEST_F(ModuleEditsTest, TheEnginesReasonIsKnown) {
  EXPECT_EQ(standing_of(plan(), tree(), kRanks).why.toStdString(), "");
  // replicate() has no casts: engine_support.cpp.
  plan::Plan cast = chosen(plan(), "Strategy", {"model.layers.3"}, "replicate");
  cast = chosen(cast, "Precision", {"model.layers.3"}, "bf16, gradients too");
  const PlanStanding standing = standing_of(cast, tree(), kRanks);
  EXPECT_TRUE(standing.resolves) << standing.why.toStdString();
  EXPECT_TRUE(standing.why.contains("engine")) << standing.why.toStdString();
  plan::Plan wrong = plan();
  wrong.units.emplace_back().globs = {"no.such.module"};
  EXPECT_FALSE(standing_of(wrong, tree(), kRanks).resolves);
}

}  // namespace
}  // namespace shardlens::gui
