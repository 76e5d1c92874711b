// For every scenario the app's model and the commands give the same figures, to the nanosecond and
// byte: captures of many kinds, traces of PyTorch, models on specs.
#include <fstream>
#include <set>

#include <nlohmann/json.hpp>

#include <QProcess>
#include <QTemporaryDir>

#include "gui/model/what_if/window_json.h"
#include "tests/gui/qt_test.h"

namespace shardlens::gui {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kModel = R"({"model_type": "llama", "hidden_size": 256,
  "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4,
  "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 512})";

struct Ended {
  int code = -1;
  std::string out, error;
};

Ended shardlens(const std::vector<std::string>& arguments) {
  QStringList list;
  for (const std::string& argument : arguments) {
    list.append(QString::fromStdString(argument));
  }
  QProcess process;
  process.start(QStringLiteral(SHARDLENS_BIN_DIR) + "/shardlens", list);
  process.waitForFinished(60'000);
  return {process.exitCode(), process.readAllStandardOutput().toStdString(),
          process.readAllStandardError().toStdString()};
}

// A capture written by `simulate --out`: its plan file, its ranks and its step settings.
struct Capture {
  const char* name;
  const char* plan;  // contents of a plan file
  int64_t ranks;
  std::vector<std::string> step;
};

const std::vector<Capture>& captures() {
  static const std::vector<Capture> all{
      {"plain", R"({"version": 1})", 2, {}},
      {"accumulated", R"({"version": 1})", 2, {"--accumulate", "4"}},
      {"only_the_last_reduces", R"({"version": 1})", 2, {"--accumulate", "4", "--no-sync"}},
      {"sgd", R"({"version": 1})", 2, {"--optimizer", "sgd"}},
      {"sgd_accumulated",
       R"({"version": 1})",
       2,
       {"--optimizer", "sgd", "--momentum", "0", "--accumulate", "3"}},
      {"fsdp1", R"({"version": 1, "dialect": "fsdp1"})", 2, {}},
      {"fsdp1_post", R"({"version": 1, "dialect": "fsdp1", "backward_prefetch": "post"})", 4, {}},
      {"per_parameter", R"({"version": 1, "layout": "per_parameter"})", 2, {}},
      {"kept", R"({"version": 1, "reshard_after_forward": false})", 2, {}},
      {"prefetched", R"({"version": 1, "forward_prefetch": 2})", 2, {}},
      {"hybrid", R"({"version": 1, "mesh": {"replicate": 2, "shard": 2}})", 4, {}},
      {"fsdp1_hybrid",
       R"({"version": 1, "dialect": "fsdp1", "mesh": {"replicate": 2, "shard": 2}})",
       4,
       {}},
      {"per_parameter_accumulated",
       R"({"version": 1, "layout": "per_parameter"})",
       2,
       {"--optimizer", "sgd", "--accumulate", "2"}},
      {"half",
       R"({"version": 1, "mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32"}})",
       2,
       {}},
      {"checkpointed", R"({"version": 1, "activation_checkpointing": ["model.layers.*"]})", 2, {}},
      {"replicate", R"({"version": 1, "units": [{"modules": "", "api": "replicate"}]})", 2, {}},
  };
  return all;
}

class ScenariosTest : public QtTest<QCoreApplication> {
 protected:
  void SetUp() override {
    QtTest::SetUp();
    ASSERT_TRUE(folder_.isValid());
    write(path("config.json"), kModel);
  }
  [[nodiscard]] std::string path(const std::string& name) const {
    return (fs::path(folder_.path().toStdString()) / name).string();
  }
  static void write(const std::string& file, const std::string& text) {
    std::ofstream(file) << text;
  }

  // Writes the traces of a capture; returns their folder.
  std::string made(const Capture& each) {
    const std::string plan = path("plan.json"), out = path(each.name);
    write(plan, each.plan);
    std::vector<std::string> arguments{"simulate",
                                       "--model",
                                       path("config.json"),
                                       "--plan",
                                       plan,
                                       "--hardware",
                                       "8xH100",
                                       "--world-size",
                                       std::to_string(each.ranks),
                                       "--batch",
                                       "2",
                                       "--seq",
                                       "128",
                                       "--out",
                                       out};
    arguments.insert(arguments.end(), each.step.begin(), each.step.end());
    const Ended ended = shardlens(arguments);
    EXPECT_EQ(ended.code, 0) << ended.error;
    return out;
  }

  // Opens a run as the window does.
  void open(const std::string& run) {
    session_.start(open_run(run), {run});
    ASSERT_TRUE(wait_for([&] { return !session_.isBusy(); }));
  }
  // Simulates a state; returns its version as the window shows it.
  json shown(const PlanState& state) {
    session_.edit("edited", state);
    session_.simulateNow();
    EXPECT_TRUE(wait_for([&] { return !session_.isBusy() && session_.current() != nullptr; }));
    const auto at = static_cast<size_t>(session_.current() - session_.versions().data());
    return json::parse(figures_json(nullptr, session_, {})).at("versions").at(at);
  }
  // Checks that the app's model and a command give the same figures for a state.
  void expect_same(const PlanState& state, std::vector<std::string> arguments) {
    const std::string plan = path("asked.json");
    write(plan, plan::to_json(state.plan));
    arguments.insert(arguments.end(), {"--plan", plan, "--json"});
    const json app = shown(state);
    const Ended command = shardlens(arguments);
    ++asked_;
    if (app.contains("error")) {
      EXPECT_EQ(command.code, 3) << command.error << app["error"];
      EXPECT_NE(command.error.find("shardlens"), std::string::npos);
      ++refused_;
      return;
    }
    ASSERT_EQ(command.code, 0) << command.error;
    const json said = json::parse(command.out);
    for (const char* key : {"step_ns", "compute_ns", "exposed_comm_ns", "exposed_copy_ns",
                            "idle_ns", "peak_allocated_bytes", "peak_reserved_bytes", "baseline"}) {
      EXPECT_EQ(app.at(key), said.value(key, json())) << key;
    }
    EXPECT_EQ(app["step_ns"],
              app["compute_ns"].get<int64_t>() + app["exposed_comm_ns"].get<int64_t>() +
                  app["exposed_copy_ns"].get<int64_t>() + app["idle_ns"].get<int64_t>());
  }

  // Checks the run's own state, another plan, and more ranks than the run had; for captures also
  // other step settings and another machine.
  void expect_same_of_run(const std::string& run) {
    SCOPED_TRACE(run);
    open(run);
    ASSERT_TRUE(session_.isOpen()) << session_.why().toStdString();
    const PlanState own = session_.state();
    ASSERT_EQ(own.machine.toStdString(), kMachineOfRun);
    expect_same(own, {"simulate", "--workload", run});
    PlanState kept = own;
    kept.plan.reshard_after_forward = {plan::Reshard::Kind::kNo, 0};
    expect_same(kept, {"simulate", "--workload", run});
    PlanState wider = own;
    wider.world_size *= 2;
    expect_same(wider,
                {"simulate", "--workload", run, "--world-size", std::to_string(wider.world_size)});
    if (session_.subject().of_config == nullptr) {
      return;
    }
    PlanState more = own;
    more.step.accumulate = 2;
    more.step.sync_every_microbatch = true;
    if (own.step.sync_every_microbatch) {
      expect_same(more, {"simulate", "--workload", run, "--accumulate", "2"});
    }
    PlanState on_spec = own;
    on_spec.machine = "8xA100-80";
    expect_same(on_spec, on_hardware(on_spec, run + "/config.json"));
  }
  static std::vector<std::string> on_hardware(const PlanState& state, const std::string& model) {
    std::vector<std::string> out{"simulate",
                                 "--model",
                                 model,
                                 "--hardware",
                                 state.machine.toStdString(),
                                 "--world-size",
                                 std::to_string(state.world_size),
                                 "--batch",
                                 std::to_string(state.step.batch),
                                 "--seq",
                                 std::to_string(*state.step.seq),
                                 "--accumulate",
                                 std::to_string(state.step.accumulate)};
    if (!state.step.sync_every_microbatch) {
      out.emplace_back("--no-sync");
    }
    if (state.step.optimizer == plan::Optimizer::kSgd) {
      out.insert(out.end(),
                 {"--optimizer", "sgd", "--momentum", std::to_string(state.step.momentum)});
    }
    return out;
  }

  QTemporaryDir folder_;
  PlanSession session_;
  int asked_ = 0, refused_ = 0;
};

TEST_F(ScenariosTest, Captures) {
  for (const Capture& each : captures()) {
    expect_same_of_run(made(each));
  }
  expect_same_of_run(fs::canonical(sample_run()).string());
  EXPECT_GE(asked_, 60);
}

TEST_F(ScenariosTest, TracesOfPyTorch) {
  for (const char* name :
       {"fsdp1-full", "fsdp1-grad-op", "fsdp1-none", "fsdp1-forward", "fsdp1-post", "fsdp1-bf16",
        "fsdp2-default", "fsdp2-no-reshard", "fsdp2-reshard", "fsdp2-prefetch", "fsdp2-hybrid",
        "fsdp2-bf16", "fsdp2-group", "ddp-buckets", "ddp-accumulate"}) {
    expect_same_of_run(pytorch_run(name));
  }
  EXPECT_GE(asked_, 30);
  EXPECT_GE(refused_, 1);  // the run has no collectives between that many ranks
}

TEST_F(ScenariosTest, ModelsOnSpecs) {
  const std::string config = path("config.json");
  session_.start(plan::load_model_config(config), "8xH100");
  ASSERT_TRUE(wait_for([&] { return !session_.isBusy(); }));
  PlanState state = session_.state();
  state.step.seq = 256;
  for (const char* machine : {"8xH100", "8xA100-40", "8xB200"}) {
    for (const int64_t depth : {0, 2}) {
      state.machine = machine;
      state.plan.forward_prefetch = depth;
      state.step.accumulate = 1 + depth;
      expect_same(state, on_hardware(state, config));
    }
  }
}

// The machine's stack, power limit and transport, and the program of a model.json, are those of the
// flags.
TEST_F(ScenariosTest, StacksAndPowerLimits) {
  const std::string config = path("config.json");
  session_.start(plan::load_model_config(config), "8xH100");
  ASSERT_TRUE(wait_for([&] { return !session_.isBusy(); }));
  const auto knob = [this](const QString& title, const QString& label) {
    PlanState next = session_.state();
    for (const PlanKnob& each : session_.knobs()) {
      for (const PlanKnob::Choice& choice : each.choices) {
        if (each.title == title && choice.label == label) {
          choice.apply(next);
          return next;
        }
      }
    }
    throw std::runtime_error("no choice " + label.toStdString());
  };
  std::set<int64_t> steps;
  const auto expect = [&](const PlanState& state, std::vector<std::string> flags) {
    std::vector<std::string> arguments = on_hardware(state, config);
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    expect_same(state, arguments);
    steps.insert(session_.current()->step());
  };
  const PlanState usual = session_.state();
  expect(usual, {});
  for (const char* stack : {"torchtitan", "torchtitan-0.3", "transformers", "bare"}) {
    session_.edit("usual", usual);
    expect(knob("Stack", stack == std::string("bare") ? "bare hardware" : stack),
           {"--stack", stack});
  }
  PlanState limited = usual;
  limited.power_watts = 450;
  expect(limited, {"--power-limit", "450"});
  PlanState weak = usual;
  weak.power_watts = 20;
  EXPECT_TRUE(PlanSession::simulated(session_.subject(), weak, "").error.contains("--power-limit"));
  session_.edit("usual", usual);
  expect(knob("Transport", "symmetric memory"), {"--transport", "symmetric"});
  session_.edit("usual", usual);
  expect(knob("Update", "foreach"), {"--optimizer-impl", "foreach"});
  EXPECT_GE(steps.size(), 6U);  // few of them change nothing on so small a model
  // Exported from PyTorch, whose optimizer has one operator after the other.
  const std::string exported = fs::canonical(pytorch_run("../tensor/decoder/model.json")).string();
  session_.start(plan::load_model_config(exported), "8xH100");
  ASSERT_TRUE(wait_for([&] { return !session_.isBusy(); }));
  expect_same(session_.state(), on_hardware(session_.state(), exported));
}

// `search` reports the same figures for its best plan as `simulate` does: on a spec, with either
// optimizer, and on runs of several layouts, dialects and step settings.
TEST_F(ScenariosTest, BestOfASearch) {
  const std::string config = path("config.json"), plan = path("best.json");
  std::vector<std::vector<std::string>> machines{
      {"--model", config, "--hardware", "8xH100", "--world-size", "4", "--seq", "128"},
      {"--model", config, "--hardware", "8xA100-80", "--seq", "256", "--optimizer", "sgd"},
      {"--workload", fs::canonical(sample_run()).string()}};
  for (const Capture& each : captures()) {
    if (each.ranks == 4 || !each.step.empty()) {
      machines.push_back({"--workload", made(each)});
    }
  }
  for (const std::vector<std::string>& machine : machines) {
    std::vector<std::string> search{"search", "--memory-limit", "8GiB",  "--batch",
                                    "4",      "--json",         "--out", plan};
    search.insert(search.end(), machine.begin(), machine.end());
    SCOPED_TRACE(machine.at(1));
    const Ended found = shardlens(search);
    ASSERT_EQ(found.code, 0) << found.error;
    const json best = json::parse(found.out).at("best");
    std::vector<std::string> simulate{
        "simulate",     "--plan",
        plan,           "--json",
        "--batch",      std::to_string(best.at("batch").get<int64_t>()),
        "--accumulate", std::to_string(best.at("accumulate").get<int64_t>())};
    simulate.insert(simulate.end(), machine.begin(), machine.end());
    const Ended said = shardlens(simulate);
    ASSERT_EQ(said.code, 0) << said.error;
    const json now = json::parse(said.out);
    for (const char* key :
         {"step_ns", "exposed_comm_ns", "peak_allocated_bytes", "peak_reserved_bytes"}) {
      EXPECT_EQ(best.at(key), now.at(key)) << key;
    }
  }
}

}  // namespace
}  // namespace shardlens::gui
