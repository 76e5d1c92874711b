#include "core/schedule/planned/autograd_queue.h"

#include <utility>

#include <queue>

namespace shardlens::schedule {

AutogradQueue::Node AutogradQueue::add(std::span<const Node> inputs) {
  Entry entry;
  entry.first_input = static_cast<uint32_t>(inputs_.size());
  for (const Node input : inputs) {
    if (input != kNone) {
      inputs_.push_back(input);
      ++entry.inputs;
    }
  }
  nodes_.push_back(entry);
  return static_cast<Node>(nodes_.size() - 1);
}

AutogradQueue::Node AutogradQueue::add_accumulator() {
  nodes_.emplace_back().accumulator = true;
  return static_cast<Node>(nodes_.size() - 1);
}

void AutogradQueue::before(Node node, Tag tag) {
  append(nodes_.at(node).before, tag);
}
void AutogradQueue::at(Node node, Tag tag) {
  append(nodes_.at(node).at, tag);
}

void AutogradQueue::append(Tags& tags, Tag tag) {
  const auto link = static_cast<uint32_t>(tags_.size());
  tags_.push_back({tag});
  (tags.first == kNone ? tags.first : tags_[tags.last].next) = link;
  tags.last = link;
}

void AutogradQueue::happen(const Tags& tags, const std::function<void(Tag)>& happens) const {
  for (uint32_t link = tags.first; link != kNone; link = tags_[link].next) {
    happens(tags_[link].tag);
  }
}

void AutogradQueue::backward(Node root, const std::function<void(Tag)>& happens) const {
  // For each node, the number of nodes in this backward that must run before it.
  std::vector<uint32_t> waits(nodes_.size(), 0);
  std::vector<bool> seen(nodes_.size(), false);
  std::vector<Node> stack{root};
  seen.at(root) = true;
  while (!stack.empty()) {
    const Node node = stack.back();
    stack.pop_back();
    for (const Node input : inputs_of(node)) {
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
    happen(nodes_[node].before, happens);
    happen(nodes_[node].at, happens);
    for (const Node input : inputs_of(node)) {
      if (--waits[input] == 0) {
        ready.emplace(nodes_[input].accumulator, input);
      }
    }
  }
}

}  // namespace shardlens::schedule
