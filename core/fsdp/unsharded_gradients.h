#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/TensorBody.h>
#include <torch/csrc/autograd/variable.h>

namespace shardlens::fsdp {

// The gradients of one unit's parameters from when autograd has made them until their reduction,
// which wants them in one tensor. They stay as they came until then, so that this tensor is made
// after the unit's parameters and the last reduction's input are gone.
//
// Layout   `pieces` cover the tensor, in order: parts of the parameters, and padding, which becomes
//          zeros as do parameters without a gradient. Pieces that are chunks of a parameter are
//          left out with it instead, as FSDP2 reduces nothing for what has no gradient.
// Threads  the thread that trains.
class UnshardedGradients {
 public:
  struct Piece {
    int64_t numel = 0;
    int32_t parameter = -1;  // -1: padding
    int64_t start = 0;       // first element of the parameter that goes there; begins a row
    int32_t chunk_of = -1;   // left out where this parameter has no gradient; -1: never
  };

  UnshardedGradients(std::vector<Piece> pieces, size_t parameters, at::TensorOptions options);

  // One per parameter, undefined where it was not used; added to those that wait already.
  void add(torch::autograd::variable_list&& gradients);
  [[nodiscard]] bool empty() const;
  // What came and was not taken yet, by parameter; undefined: none.
  [[nodiscard]] const std::vector<at::Tensor>& waiting() const { return waiting_; }
  void clear();
  // From what waits now: which parameters the next tensor carries. Returns its elements.
  int64_t choose();
  [[nodiscard]] const std::vector<bool>& carried() const { return carried_; }
  [[nodiscard]] int64_t numel() const;  // of a tensor of these
  // All in one new tensor, of what choose() says; then there are none. Recorded as
  // "fsdp::flatten_gradients".
  [[nodiscard]] at::Tensor take();
  // The same in `flat`, of numel() elements, whose dtype may be another, instead of its values or
  // added to them; a larger tensor takes its place where there are gradients that it cannot carry.
  void take_into(at::Tensor& flat, bool add);

 private:
  [[nodiscard]] bool carries(const Piece& piece, const std::vector<bool>& carried) const {
    return piece.chunk_of < 0 || carried[static_cast<size_t>(piece.chunk_of)];
  }
  void widen(at::Tensor& flat);
  void concatenate(const at::Tensor& flat) const;

  std::vector<Piece> pieces_;
  at::TensorOptions options_;
  std::vector<at::Tensor> waiting_;
  std::vector<bool> carried_;  // per parameter; all, unless in_chunks_
  bool in_chunks_;
};

}  // namespace shardlens::fsdp
