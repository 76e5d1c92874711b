#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/TensorBody.h>
#include <torch/csrc/autograd/variable.h>

namespace shardlens::fsdp {

// Stores the gradients of one unit's parameters from autograd until their reduction, which needs
// them in one tensor. This tensor is created as late as possible, after the unit's unsharded
// parameters and the input of the last reduction are freed.
//
// Layout   `pieces` cover the tensor, in order: parts of the parameters, and padding. Padding and
//          parameters without a gradient are filled with zeros. Pieces that are chunks of a
//          parameter without a gradient are omitted instead, because FSDP2 does not reduce it
//          (unless it is one of reduce_unused()).
// Threads  the thread that trains.
class UnshardedGradients {
 public:
  struct Piece {
    int64_t numel = 0;
    int32_t parameter = -1;  // -1: padding
    int64_t start = 0;       // index of its first element in the parameter; the start of a row
    int32_t chunk_of = -1;   // omitted if this parameter has no gradient; -1: never omitted
  };

  // `ranks`: over how many the pieces that are chunks are split.
  UnshardedGradients(std::vector<Piece> pieces,
                     size_t parameters,
                     at::TensorOptions options,
                     int64_t ranks = 1);

  // Chunks of these parameters, by slot, are never omitted.
  void reduce_unused(std::vector<bool> parameters) { always_ = std::move(parameters); }
  [[nodiscard]] bool reduces_unused() const { return !always_.empty(); }
  // Adds gradients to the stored ones; one per parameter, undefined if the parameter was not used.
  void add(torch::autograd::variable_list&& gradients);
  [[nodiscard]] bool empty() const;
  // The gradients that were not taken yet, by parameter; undefined: none.
  [[nodiscard]] const std::vector<at::Tensor>& waiting() const { return waiting_; }
  void clear();
  // Replaces the stored gradient of a parameter, and its part of `flat` (a tensor that take_into()
  // filled, or undefined), by zeros.
  void zero(size_t parameter, const at::Tensor& flat);
  // Chooses the parameters of the next tensor from the stored gradients. Returns its number of
  // elements.
  int64_t choose();
  [[nodiscard]] const std::vector<bool>& carried() const { return carried_; }
  [[nodiscard]] int64_t numel() const;  // number of elements of a tensor with carried()
  // Calls choose(), moves all gradients into one new tensor, and clears them. Recorded as
  // "fsdp::flatten_gradients".
  [[nodiscard]] at::Tensor take();
  // Moves the gradients into `flat`, which has numel() elements and may have another dtype:
  // replaces its values or, if `add`, adds to them. If `flat` does not have room for all gradients,
  // it is replaced by a larger tensor.
  void take_into(at::Tensor& flat, bool add);

 private:
  [[nodiscard]] bool carries(const Piece& piece, const std::vector<bool>& carried) const {
    return piece.chunk_of < 0 || carried[static_cast<size_t>(piece.chunk_of)];
  }
  [[nodiscard]] bool is_reduced(size_t parameter) const {
    return waiting_[parameter].defined() || (reduces_unused() && always_[parameter]);
  }
  void widen(at::Tensor& flat);
  void concatenate(const at::Tensor& flat) const;
  [[nodiscard]] int64_t numel_of(size_t parameter) const;

  std::vector<Piece> pieces_;
  at::TensorOptions options_;
  std::vector<at::Tensor> waiting_;
  std::vector<bool> carried_;  // per parameter; all true unless in_chunks_
  std::vector<bool> always_;   // empty: none
  bool in_chunks_;
  int64_t ranks_;
};

}  // namespace shardlens::fsdp
