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
  void clear() {
    nodes_.clear();
    inputs_.clear();
    tags_.clear();
  }
  [[nodiscard]] size_t size() const { return nodes_.size(); }

 private:
  // Tags of one node and moment, in order of registration; a list within tags_.
  struct Tags {
    uint32_t first = kNone, last = kNone;
  };
  struct Entry {
    uint32_t first_input = 0, inputs = 0;  // in inputs_
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
