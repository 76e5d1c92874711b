#include "core/schedule/planned/autograd_queue.h"

#include <array>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shardlens::schedule {
namespace {

using ::testing::ElementsAre;
using Node = AutogradQueue::Node;
using Tag = AutogradQueue::Tag;

std::vector<Tag> order(const AutogradQueue& queue, Node root) {
  std::vector<Tag> tags;
  queue.backward(root, [&tags](Tag tag) { tags.push_back(tag); });
  return tags;
}

TEST(AutogradQueueTest, TheNewestReadyNodeRunsFirst) {
  AutogradQueue queue;
  const Node old = queue.add({});
  const Node middle = queue.add({});
  const Node young = queue.add({});
  const Node root = queue.add(std::array{old, young, middle});
  queue.at(old, 0);
  queue.at(middle, 1);
  queue.at(young, 2);
  EXPECT_THAT(order(queue, root), ElementsAre(2, 1, 0));
}

TEST(AutogradQueueTest, ANodeWaitsForAllThatDependsOnIt) {
  AutogradQueue queue;
  const Node shared = queue.add({});
  const Node first = queue.add(std::array{shared});
  const Node second = queue.add(std::array{first, shared});
  queue.at(shared, 0);
  queue.at(first, 1);
  queue.at(second, 2);
  EXPECT_THAT(order(queue, second), ElementsAre(2, 1, 0));
  // When backward starts in the middle, nodes outside that part of the graph are not waited for.
  EXPECT_THAT(order(queue, first), ElementsAre(1, 0));
}

TEST(AutogradQueueTest, AccumulatorsGoBeforeAnyOtherReadyNode) {
  AutogradQueue queue;
  const Node leaf = queue.add_accumulator();
  const Node older = queue.add({});
  const Node root = queue.add(std::array{older, leaf, AutogradQueue::kNone});
  queue.at(leaf, 0);
  queue.at(older, 1);
  EXPECT_THAT(order(queue, root), ElementsAre(0, 1));
}

TEST(AutogradQueueTest, HooksOfATensorRunInOrderOfRegistrationBeforeItsNode) {
  AutogradQueue queue;
  const Node root = queue.add({});
  queue.at(root, 2);
  queue.before(root, 0);
  queue.before(root, 1);
  EXPECT_THAT(order(queue, root), ElementsAre(0, 1, 2));
  EXPECT_THAT(order(queue, root), ElementsAre(0, 1, 2));  // the graph is kept
}

}  // namespace
}  // namespace shardlens::schedule
