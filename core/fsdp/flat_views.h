#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/TensorBody.h>
#include <torch/csrc/autograd/function.h>

#include "core/base/live_count.h"
#include "core/fsdp/unsharded_gradients.h"

namespace shardlens::fsdp {

// The backward of one forward's views of a flat parameter: one node for all parameters of a unit,
// where split and view would make one each. Output i of the node is parameter i; its backward takes
// the gradients to the unit's others, where they wait for their reduction, or, flattened, on to the
// flat parameter's own gradient.
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
  // `flat`: the leaf behind the views; its accumulator runs after the last node in either case.
  // `views`: the parameters' data, against whose shapes autograd checks the gradients.
  // `to_flat`: whether the gradients go on to it. `ended`: called when the node has run, or empty.
  FlatViewsBackward(const at::Tensor& flat,
                    const std::vector<at::Tensor>& views,
                    std::shared_ptr<UnshardedGradients> gradients,
                    bool to_flat,
                    std::function<void()> ended);

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  [[nodiscard]] std::string name() const override { return "FlatViewsBackward"; }
  // Whether the backward that runs on this thread will still run this node.
  [[nodiscard]] bool awaited() const;
  using LiveCount::live;

 private:
  std::shared_ptr<UnshardedGradients> gradients_;
  bool to_flat_;
  std::function<void()> ended_;
  int last_backward_ = -1;  // id of the graph task that ran it last
};

}  // namespace shardlens::fsdp
