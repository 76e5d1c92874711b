#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/variable.h>

// Nodes of autograd's graph, whose pointers differ between versions of torch: std::shared_ptr up to
// 2.12, c10::intrusive_ptr later.
namespace shardlens::composable {

using NodePointer = decltype(torch::autograd::Edge::function);

// A new node of class T, which derives from torch::autograd::Node (torch/csrc/autograd/function.h).
template <typename T, typename... Args>
[[nodiscard]] auto make_node(Args&&... args) {
  if constexpr (std::is_same_v<NodePointer, std::shared_ptr<torch::autograd::Node>>) {
    // Frees a long graph without recursion. Its name is looked up by the argument's type, because
    // later versions have no such function: there, nodes do this themselves.
    return std::shared_ptr<T>(new T(std::forward<Args>(args)...),
                              [](T* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<T>(std::forward<Args>(args)...);
  }
}

}  // namespace shardlens::composable
