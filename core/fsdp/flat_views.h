#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/TensorBody.h>
#include <torch/csrc/autograd/function.h>

#include "core/base/live_count.h"

namespace shardlens::fsdp {

// The backward of one forward's views of a flat parameter: one node for all parameters of a unit,
// where split and view would make one each. Output i of the node is parameter i; its backward lays
// the gradients side by side in a new tensor like the flat parameter, zeros in the padding and
// where a parameter was not used. Recorded as "fsdp::flatten_gradients".
//
// [Note: When the node is made] Autograd runs newer nodes first. Fresh views: made at kUseFull in
// forward, so the unit's gradient is complete once the operators that ran after it are through.
// Frozen views: made for all units when the root's forward begins, as a captured graph makes them
// before its first operator; every operator is newer then, so every unit's gradient is complete
// only when the whole backward is through. (Not once for good: a node made long ago, perhaps on
// another thread, would have a sequence number that says nothing.) See [Note: Backward order] in
// core/schedule/planned.h.
//
// Threads  autograd runs it on the thread that called backward.
class FlatViewsBackward : public torch::autograd::Node, LiveCount<FlatViewsBackward> {
 public:
  struct Piece {
    int64_t offset = 0, numel = 0;
    int32_t parameter = -1;  // -1: padding
  };

  // `flat`: the leaf whose gradient this makes. `pieces` cover it. `views`: the parameters' data,
  // against whose shapes autograd checks the gradients. `ended`: called when the node has run, or
  // empty.
  FlatViewsBackward(const at::Tensor& flat,
                    const std::vector<Piece>& pieces,
                    const std::vector<at::Tensor>& views,
                    std::function<void()> ended);

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  [[nodiscard]] std::string name() const override { return "FlatViewsBackward"; }
  // Whether the backward that runs on this thread will still run this node.
  [[nodiscard]] bool awaited() const;
  using LiveCount::live;

 private:
  std::vector<Piece> pieces_;
  at::TensorOptions options_;
  int64_t numel_;
  std::function<void()> ended_;
  int last_backward_ = -1;  // id of the graph task that ran it last
};

}  // namespace shardlens::fsdp
