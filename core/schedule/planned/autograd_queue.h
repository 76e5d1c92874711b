#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace shardlens::schedule {

// A minimal model of autograd's ready queue, to determine the order of hooks in backward.
//
// [Note: Newest node first] A node becomes ready when all nodes that depend on it have run. Of the
// ready nodes, gradient accumulators run first, then the node that was created last. Source:
// torch/csrc/autograd/engine.cpp (ReadyQueue, CompareNodeTaskTime); AccumulateGrad's sequence
// number is the largest.
class AutogradQueue {
 public:
  using Node = uint32_t;
  using Tag = uint32_t;  // the caller's id of an event at a node
  static constexpr Node kNone = 0xffffffffU;

  // Adds the backward node of a forward operator whose inputs have the nodes `inputs` (kNone is
  // skipped). The creation order of nodes is the call order.
  Node add(std::span<const Node> inputs);
  // Adds a leaf that accumulates a gradient. It runs as soon as all nodes that depend on it have
  // run.
  Node add_accumulator();
  // `tag` happens just before the node runs (like a hook on the operator's output), in order of
  // registration.
  void before(Node node, Tag tag);
  // `tag` happens when the node runs.
  void at(Node node, Tag tag);

  // Runs backward from `root` and calls `happens` for each tag; the graph is kept for another one.
  void backward(Node root, const std::function<void(Tag)>& happens) const;
  void clear() {
    nodes_.clear();
    inputs_.clear();
    tags_.clear();
  }
  [[nodiscard]] size_t size() const { return nodes_.size(); }

 private:
  // The tags before or at one node, in order of registration; a linked list in tags_.
  struct Tags {
    uint32_t first = kNone, last = kNone;
  };
  struct Entry {
    uint32_t first_input = 0, inputs = 0;  // index into inputs_, and count
    Tags before, at;
    bool accumulator = false;
  };
  struct Link {
    Tag tag;
    uint32_t next = kNone;
  };
  void append(Tags& tags, Tag tag);
  void happen(const Tags& tags, const std::function<void(Tag)>& happens) const;
  [[nodiscard]] std::span<const Node> inputs_of(Node node) const {
    return {inputs_.data() + nodes_[node].first_input, nodes_[node].inputs};
  }

  std::vector<Entry> nodes_;
  std::vector<Node> inputs_;
  std::vector<Link> tags_;
};

}  // namespace shardlens::schedule
