#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/TensorBody.h>
#include <torch/csrc/autograd/function.h>

#include "core/base/live_count.h"
#include "core/fsdp/unit/unsharded_gradients.h"

namespace shardlens::fsdp {

// The backward node of one forward's views of a flat parameter. It is one node for all parameters
// of a unit; split and view would make one per parameter. Output i of the node is parameter i. Its
// backward adds the gradients to the unit's UnshardedGradients, where they stay until their
// reduction, or flattens them and passes them on to the flat parameter's own gradient.
//
// [Note: When the node is made] Autograd runs newer nodes first. Fresh views are made at kUseFull
// in forward, so the unit's gradient is complete after the backward of the operators that ran
// later. Frozen views are made for all units when the root's forward begins, as a captured graph
// makes them before its first operator. All operators are newer, so every unit's gradient is
// complete only at the end of the whole backward. (They are made in every forward: the sequence
// number of a node from long ago, perhaps from another thread, could not be compared.) See [Note:
// Backward order] in core/schedule/planned/planned.h.
//
// Threads  autograd runs it on the thread that called backward.
class FlatViewsBackward : public torch::autograd::Node, LiveCount<FlatViewsBackward> {
 public:
  // `flat`: the leaf that the views belong to; its accumulator always runs after the last node.
  // `views`: the parameters' data; autograd checks that the gradients have their shapes. `to_flat`:
  // whether the gradients are passed on to `flat`. `ended`: called when the node has run; may be
  // empty.
  FlatViewsBackward(const at::Tensor& flat,
                    const std::vector<at::Tensor>& views,
                    std::shared_ptr<UnshardedGradients> gradients,
                    bool to_flat,
                    std::function<void()> ended);

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  [[nodiscard]] std::string name() const override { return "FlatViewsBackward"; }
  // Whether the current backward of this thread will still run this node.
  [[nodiscard]] bool awaited() const;
  using LiveCount::live;
  // Expires with the node. A pointer of it does not keep the node.
  [[nodiscard]] std::weak_ptr<const FlatViewsBackward> watch() const { return self_; }

 private:
  std::shared_ptr<UnshardedGradients> gradients_;
  bool to_flat_;
  std::function<void()> ended_;
  int last_backward_ = -1;  // id of the graph task that last ran the node
  std::shared_ptr<const FlatViewsBackward> self_{this, [](const FlatViewsBackward*) {}};
};

}  // namespace shardlens::fsdp
