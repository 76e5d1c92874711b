#include <optional>
#include <utility>

#include "core/workload/software.h"
#include "gui/model/what_if/edit_history.h"

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
  const auto tr = [](const char* text) { return QObject::tr(text); };
  const auto parts = [](int64_t count) {
    return std::pair{QObject::tr("in %1 parts").arg(count), Chunks(count)};
  };
  return {
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
                      {tr("nvfp4"), MatmulDType::kNvfp4}}),
      knob<bool>(tr("CUDA graphs"),
                 tr("Whether forward and backward of a microbatch are one CUDA graph"),
                 &Software::cuda_graphs, {{tr("no"), false}, {tr("yes"), true}}),
      knob<Chunks>(
          tr("Head and loss"),
          tr("In how many parts of the rows they are computed, so that the logits of only "
             "one part exist; usually as the program does"),
          &Software::loss_chunks,
          {{tr("as usual"), std::nullopt}, {tr("whole"), 1}, parts(4), parts(8), parts(16)}),
  };
}

}  // namespace shardlens::gui
