#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/TensorBody.h>
#include <torch/csrc/autograd/function.h>

namespace shardlens::fsdp {

// The backward of one forward's views of a flat parameter: one node for all parameters of a unit,
// where split and view would make one each. Output i of the node is parameter i; its backward lays
// the gradients side by side in a new tensor like the flat parameter, zeros in the padding and
// where a parameter was not used. Recorded as "fsdp::flatten_gradients".
//
// [Note: When the node is made] At kUseFull in forward: autograd runs newer nodes first, so the
// unit's gradient is complete once the operators that ran after it are through. See
// [Note: Backward order] in core/schedule/planned.h.
class FlatViewsBackward : public torch::autograd::Node {
 public:
  struct Piece {
    int64_t offset = 0, numel = 0;
    int32_t parameter = -1;  // -1: padding
  };

  // `flat`: the leaf whose gradient this makes. `pieces` cover it. `views`: the parameters' data,
  // against whose shapes autograd checks the gradients.
  FlatViewsBackward(const at::Tensor& flat,
                    const std::vector<Piece>& pieces,
                    const std::vector<at::Tensor>& views);

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  [[nodiscard]] std::string name() const override { return "FlatViewsBackward"; }

 private:
  std::vector<Piece> pieces_;
  at::TensorOptions options_;
  int64_t numel_;
};

}  // namespace shardlens::fsdp
