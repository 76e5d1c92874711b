#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace shardlens::schedule {

// A model of autograd's ready queue, just enough to know in which order hooks fire in backward.
//
// [Note: Newest node first] A node becomes ready when all that depends on it has run; of the ready
// nodes the one created last runs first, and gradient accumulators run before any other. Source:
// torch/csrc/autograd/engine.cpp (ReadyQueue, CompareNodeTaskTime), AccumulateGrad's sequence
// number is the largest.
class AutogradQueue {
 public:
  using Node = uint32_t;
  using Tag = uint32_t;  // the caller's name for something that happens at a node
  static constexpr Node kNone = 0xffffffffU;

  // A node of the backward graph, made by a forward operator whose inputs' nodes are `inputs`
  // (kNone is skipped). Created in call order.
  Node add(std::span<const Node> inputs);
  // A leaf that gathers a gradient: runs as soon as everything that depends on it has.
  Node add_accumulator();
  // `tag` happens just before the node runs (a hook on the tensor it made), in order of
  // registration.
  void before(Node node, Tag tag);
  // `tag` happens when the node runs.
  void at(Node node, Tag tag);

  // Runs backward from `root`; the graph stays for another one.
  void backward(Node root, const std::function<void(Tag)>& happens) const;
  void clear() { nodes_.clear(); }
  [[nodiscard]] size_t size() const { return nodes_.size(); }

 private:
  struct Entry {
    std::vector<Node> inputs;
    std::vector<Tag> before, at;
    bool accumulator = false;
  };
  std::vector<Entry> nodes_;
};

}  // namespace shardlens::schedule
