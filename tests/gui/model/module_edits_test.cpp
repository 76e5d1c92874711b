#include "gui/model/what_if/module_edits.h"

#include <algorithm>
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

// Backward goes from the root's unit to the last block and on to the first; the default, the unit
// before, is that of units without a list.
TEST_F(ModuleEditsTest, PrefetchInBackwardNamesTheUnitsBefore) {
  const plan::Plan after =
      chosen(plan(), "Prefetch in backward", {"model.layers.3"}, "the 2 units");
  EXPECT_EQ(after.backward_prefetch_lists,
            (plan::PrefetchLists{{"model.layers.3", {"model.layers.2", "model.layers.1"}}}));
  EXPECT_EQ(chosen(plan(), "Prefetch in backward", {""}, "the unit").backward_prefetch_lists,
            (plan::PrefetchLists{{"", {"model.layers.5"}}}));
  EXPECT_EQ(chosen(after, "Prefetch in backward", {"model.layers.3"}, "the plan's"), plan());
  // Where no unit prefetches, the others still do not.
  plan::Plan none = plan();
  none.backward_prefetch = plan::BackwardPrefetch::kNone;
  none = chosen(none, "Prefetch in backward", {"model.layers.3"}, "the unit");
  for (const auto& [fqn, unit] : units(none)) {
    ASSERT_EQ(unit.backward_prefetch.size(), 1U) << fqn;
    const std::string first = resolved(none).units[unit.backward_prefetch.front()].fqn;
    EXPECT_EQ(first, fqn == "model.layers.3" ? "model.layers.2" : fqn);
  }
}

// As ColwiseParallel and RowwiseParallel: of a Linear's weight [out, in] the outputs are along 0,
// the inputs along 1.
TEST_F(ModuleEditsTest, TheTensorStyleOfOneModuleChanges) {
  plan::Plan start = plan();
  start.mesh.tensor = 2;
  // The dimension along which a weight is divided; -1: not at all.
  const auto divided = [&](const plan::Plan& of, const std::string& module) -> int64_t {
    const plan::ResolvedPlan all = resolved(of);
    for (uint32_t i = 0; i < all.tree.parameters.size(); ++i) {
      if (all.tree.parameters[i].fqn == module + ".weight") {
        return all.placements[i].group == mesh::kNoGroup ? -1 : all.placements[i].dim;
      }
    }
    throw std::runtime_error("no weight of " + module);
  };
  const std::string third = "model.layers.3.self_attn.q_proj",
                    fourth = "model.layers.4.self_attn.q_proj";
  const plan::Plan whole = chosen(start, "Tensor style", {third}, "replicate");
  EXPECT_EQ(divided(start, third), 0);
  EXPECT_EQ(divided(whole, third), -1);
  const plan::Plan inputs = chosen(whole, "Tensor style", {third}, "row");
  EXPECT_EQ(divided(inputs, third), 1);
  for (const plan::Plan& each : {start, whole, inputs}) {
    EXPECT_EQ(divided(each, fourth), 0);
    EXPECT_EQ(divided(each, "model.layers.3.self_attn.o_proj"), 1);
    EXPECT_EQ(divided(each, "model.embed_tokens"), 0);
    EXPECT_EQ(divided(each, "model.norm"), -1);
  }
  // All of a name at once; the others of the glob stay as they are.
  const plan::Plan two = chosen(inputs, "Tensor style", {third, fourth}, "column");
  EXPECT_EQ(divided(two, third), 0);
  EXPECT_EQ(divided(two, fourth), 0);
  EXPECT_EQ(divided(two, "model.layers.5.self_attn.q_proj"), 0);
}

TEST_F(ModuleEditsTest, AModuleIsIgnoredAndTakenBack) {
  const auto ignored = [&](const plan::Plan& of) {
    std::vector<std::string> out;
    const plan::ResolvedPlan all = resolved(of);
    for (const uint32_t i : all.ignored_parameters) {
      out.push_back(all.tree.parameters[i].fqn);
    }
    return out;
  };
  const plan::Plan norm = chosen(plan(), "Sharded", {"model.norm"}, "no");
  EXPECT_EQ(ignored(norm), (Modules{"model.norm.weight"}));
  EXPECT_EQ(chosen(norm, "Sharded", {"model.norm"}, "yes"), plan());
  // One of those that a glob names.
  plan::Plan all = plan();
  all.ignored_modules = {"model.layers.*.input_layernorm"};
  EXPECT_EQ(ignored(all).size(), 6U);
  const plan::Plan five = chosen(all, "Sharded", {"model.layers.2.input_layernorm"}, "yes");
  EXPECT_EQ(ignored(five).size(), 5U);
  EXPECT_EQ(std::ranges::count(ignored(five), "model.layers.2.input_layernorm.weight"), 0);
}

// Of a Mixtral: experts are a second group, over the ranks of the experts' mesh.
TEST_F(ModuleEditsTest, ExpertsAreAGroupOfTheirOwn) {
  const PlanSubject subject = PlanSubject::of(plan::parse_model_config(
      R"({"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "hidden_size": 64,
          "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "vocab_size": 100, "num_local_experts": 4,
          "num_experts_per_tok": 2, "max_position_embeddings": 64})",
      "mixtral"));
  const std::vector<PlanKnob> knobs =
      module_knobs(subject.tree(), kRanks, {"model.layers.0", "model.layers.1"});
  const auto groups = std::ranges::find(knobs, QString("Parameter groups"), &PlanKnob::title);
  ASSERT_NE(groups, knobs.end());
  PlanState state{.plan = plan::strategy_plan("full_shard", subject.tree()), .machine = {}};
  state.plan.mesh.expert = 4;
  groups->choices[1].apply(state);
  EXPECT_TRUE(groups->choices[1].holds(state));
  const plan::ResolvedPlan edited = plan::resolve(state.plan, subject.tree(), kRanks);
  size_t experts = 0;
  for (const plan::Unit& unit : edited.units) {
    experts += unit.expert ? 1 : 0;
    EXPECT_EQ(unit.groups, unit.fqn.empty() ? 1U : 2U) << unit.fqn;
    for (const uint32_t parameter : unit.parameters) {
      EXPECT_EQ(edited.tree.parameters[parameter].fqn.find(".experts.") != std::string::npos,
                unit.expert)
          << edited.tree.parameters[parameter].fqn;
    }
  }
  EXPECT_EQ(experts, 2U);
}

// Choices for a module that is not a unit change nothing until it is made a unit.
TEST_F(ModuleEditsTest, WithoutAUnitNothingChanges) {
  for (const char* title : {"Reshard", "Precision", "Strategy", "Prefetch in forward",
                            "Prefetch in backward", "Parameter groups"}) {
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
        try {
          choice.apply(after);
        } catch (const InputError& error) {  // blocks have no parameters of their own
          EXPECT_EQ(each.title, "Tensor style") << error.what();
        }
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
