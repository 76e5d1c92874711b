#include <optional>
#include <utility>

#include "core/workload/software.h"
#include "gui/model/what_if/edit_history.h"
#include "sim/hardware/stacks.h"

namespace shardlens::gui {
namespace {

using plan::Compile;
using plan::MatmulDType;
using plan::Software;

// `at`: the part of a state that has the value.
template <typename Value, typename At>
PlanKnob knob_at(const QString& title,
                 const QString& help,
                 At at,
                 const std::vector<std::pair<QString, Value>>& values) {
  PlanKnob out{title, help, {}, PlanKnob::Section::kSoftware};
  for (const auto& [label, value] : values) {
    out.choices.push_back(
        {label, [at, value = value](PlanState& state) { at(state) = value; },
         [at, value = value](const PlanState& state) { return at(state) == value; }});
  }
  return out;
}

template <typename Value>
PlanKnob knob(const QString& title,
              const QString& help,
              Value Software::*member,
              const std::vector<std::pair<QString, Value>>& values) {
  return knob_at<Value>(
      title, help, [member](auto& state) -> auto& { return state.step.software.*member; }, values);
}

}  // namespace

std::vector<PlanKnob> software_knobs() {
  using Products = std::optional<MatmulDType>;
  using Chunks = std::optional<int64_t>;
  using Segments = std::optional<bool>;
  const auto tr = [](const char* text) { return QObject::tr(text); };
  const auto parts = [](int64_t count) {
    return std::pair{QObject::tr("in %1 parts").arg(count), Chunks(count)};
  };
  const auto kept = [](int64_t count) {
    return std::pair{QObject::tr("%1 keep the precision").arg(count), count};
  };
  std::vector<PlanKnob> out{
      knob<Compile>(tr("Compiled"), tr("What torch.compile compiles"), &Software::compile,
                    {{tr("nothing"), Compile::kNone},
                     {tr("blocks and loss"), Compile::kBlock},
                     {tr("the model"), Compile::kModel}}),
      knob<Products>(tr("Products"),
                     tr("In what the linear layers of blocks multiply: as the precision says, or "
                        "by a recipe of torchao"),
                     &Software::matmul_dtype,
                     {{tr("the precision"), std::nullopt},
                      {tr("fp8 tensorwise"), MatmulDType::kFp8Tensorwise},
                      {tr("fp8 rowwise"), MatmulDType::kFp8Rowwise},
                      {tr("mxfp8"), MatmulDType::kMxfp8},
                      {tr("mxfp8 cublas rceil"), MatmulDType::kMxfp8CublasRceil},
                      {tr("nvfp4"), MatmulDType::kNvfp4}}),
      knob<int64_t>(tr("Last blocks"),
                    tr("How many of the last blocks keep the precision's products; torchtitan "
                       "keeps 15 % of them with nvfp4"),
                    &Software::matmul_tail,
                    {{tr("as the others"), 0},
                     kept(1),
                     kept(2),
                     kept(3),
                     kept(4),
                     kept(5),
                     kept(6),
                     kept(8),
                     kept(12)}),
      knob<bool>(tr("CUDA graphs"),
                 tr("Whether forward and backward of a microbatch are one CUDA graph"),
                 &Software::cuda_graphs, {{tr("no"), false}, {tr("yes"), true}}),
      knob<Chunks>(
          tr("Head and loss"),
          tr("In how many parts of the rows they are computed, so that the logits of only "
             "one part exist; usually as the program does"),
          &Software::loss_chunks,
          {{tr("as usual"), std::nullopt}, {tr("whole"), 1}, parts(4), parts(8), parts(16)}),
      knob<Segments>(
          tr("Segments"),
          tr("Whether the allocator's segments are expandable "
             "(PYTORCH_ALLOC_CONF); usually as the program sets it"),
          &Software::expandable_segments,
          {{tr("as usual"), std::nullopt}, {tr("expandable"), true}, {tr("fixed"), false}}),
      knob_at<plan::OptimizerImpl>(
          tr("Update"), tr("Whether the optimizer is one kernel, or one operator after the other"),
          [](auto& state) -> auto& { return state.step.optimizer_impl; },
          {{tr("fused"), plan::OptimizerImpl::kFused},
           {tr("foreach"), plan::OptimizerImpl::kForeach}}),
      knob_at<sim::Transport>(tr("Transport"),
                              tr("How collectives move data within a node: in rings, by kernels on "
                                 "symmetric memory, or "
                                 "by copy engines where they can"),
                              [](auto& state) -> auto& { return state.transport; },
                              {{tr("rings"), sim::Transport::kRing},
                               {tr("symmetric memory"), sim::Transport::kSymmetric},
                               {tr("copy engines"), sim::Transport::kCopyEngine}}),
  };
  out.back().section = PlanKnob::Section::kCommunication;
  return out;
}

PlanKnob stack_knob() {
  PlanKnob out{
      QObject::tr("Stack"),
      QObject::tr("Constants fitted to published runs of a software stack, and the program "
                  "whose operators a config.json runs"),
      {},
      PlanKnob::Section::kMachine};
  const auto add = [&out](const QString& label, const QString& stack) {
    out.choices.push_back(
        {label,
         [stack](PlanState& state) {
           state.stack = stack;
           const plan::Program program =
               sim::program_of_stack(stack.toStdString()).value_or(state.step.program);
           state.step.software.cuda_graphs = plan::software_by_default(program).cuda_graphs;
           state.step.optimizer_impl = sim::optimizer_by_default(program);
         },
         [stack](const PlanState& state) { return state.stack == stack; }});
  };
  add(QObject::tr("that of the GPU"), {});
  for (const std::string& name : sim::stack_names()) {
    const QString stack = QString::fromStdString(name);
    QString label =
        stack == QLatin1String(sim::kBareStack.data()) ? QObject::tr("bare hardware") : stack;
    label.remove(QLatin1String("-SXM"));  // all of them are; the form has no room for it
    add(label, stack);
  }
  return out;
}

}  // namespace shardlens::gui
