#include "core/schedule/autograd_queue.h"

#include <utility>

#include <queue>

namespace shardlens::schedule {

AutogradQueue::Node AutogradQueue::add(std::span<const Node> inputs) {
  Entry entry;
  for (const Node input : inputs) {
    if (input != kNone) {
      entry.inputs.push_back(input);
    }
  }
  nodes_.push_back(std::move(entry));
  return static_cast<Node>(nodes_.size() - 1);
}

AutogradQueue::Node AutogradQueue::add_accumulator() {
  nodes_.emplace_back().accumulator = true;
  return static_cast<Node>(nodes_.size() - 1);
}

void AutogradQueue::before(Node node, Tag tag) {
  nodes_.at(node).before.push_back(tag);
}
void AutogradQueue::at(Node node, Tag tag) {
  nodes_.at(node).at.push_back(tag);
}

void AutogradQueue::backward(Node root, const std::function<void(Tag)>& happens) const {
  // How many nodes of this backward each one waits for.
  std::vector<uint32_t> waits(nodes_.size(), 0);
  std::vector<bool> seen(nodes_.size(), false);
  std::vector<Node> stack{root};
  seen.at(root) = true;
  while (!stack.empty()) {
    const Node node = stack.back();
    stack.pop_back();
    for (const Node input : nodes_[node].inputs) {
      ++waits[input];
      if (!seen[input]) {
        seen[input] = true;
        stack.push_back(input);
      }
    }
  }
  std::priority_queue<std::pair<bool, Node>> ready;  // accumulators first, then the newest
  ready.emplace(nodes_[root].accumulator, root);
  while (!ready.empty()) {
    const Node node = ready.top().second;
    ready.pop();
    for (const Tag tag : nodes_[node].before) {
      happens(tag);
    }
    for (const Tag tag : nodes_[node].at) {
      happens(tag);
    }
    for (const Node input : nodes_[node].inputs) {
      if (--waits[input] == 0) {
        ready.emplace(nodes_[input].accumulator, input);
      }
    }
  }
}

}  // namespace shardlens::schedule
