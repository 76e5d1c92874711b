#include "core/fsdp/unit/unsharded_gradients.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_chunk_cat.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <ATen/record_function.h>

namespace shardlens::fsdp {
namespace {

// The part of a gradient in a piece: all of it, or complete rows.
at::Tensor rows_of(const at::Tensor& gradient, const UnshardedGradients::Piece& piece) {
  if (piece.numel == gradient.numel()) {
    return gradient;
  }
  const int64_t row = gradient.numel() / gradient.size(0);
  return gradient.narrow(0, piece.start / row, piece.numel / row);
}

}  // namespace

UnshardedGradients::UnshardedGradients(std::vector<Piece> pieces,
                                       size_t parameters,
                                       at::TensorOptions options,
                                       int64_t ranks)
    : pieces_(std::move(pieces)),
      options_(options.requires_grad(false)),
      waiting_(parameters),
      carried_(parameters, true),
      in_chunks_(
          std::ranges::any_of(pieces_, [](const Piece& each) { return each.chunk_of >= 0; })),
      ranks_(ranks) {}

void UnshardedGradients::add(torch::autograd::variable_list&& gradients) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < waiting_.size(); ++i) {
    at::Tensor& gradient = gradients[i];
    if (gradient.defined()) {
      // Not in place: other autograd nodes may use the same tensor.
      waiting_[i] = waiting_[i].defined() ? at::add(waiting_[i], gradient) : std::move(gradient);
    }
  }
}

bool UnshardedGradients::empty() const {
  return std::ranges::none_of(waiting_, [](const at::Tensor& each) { return each.defined(); });
}

void UnshardedGradients::clear() {
  std::ranges::fill(waiting_, at::Tensor());
}

void UnshardedGradients::zero(size_t parameter, const at::Tensor& flat) {
  const at::NoGradGuard no_grad;
  if (waiting_[parameter].defined()) {
    waiting_[parameter] = at::zeros_like(waiting_[parameter]);
  }
  int64_t offset = 0;
  for (const Piece& piece : pieces_) {
    if (flat.defined() && piece.parameter == static_cast<int32_t>(parameter) &&
        carries(piece, carried_)) {
      flat.narrow(0, offset, piece.numel).zero_();
    }
    offset += carries(piece, carried_) ? piece.numel : 0;
  }
}

int64_t UnshardedGradients::numel() const {
  int64_t numel = 0;
  for (const Piece& piece : pieces_) {
    numel += carries(piece, carried_) ? piece.numel : 0;
  }
  return numel;
}

// Of all chunks of the parameter, with their padding.
int64_t UnshardedGradients::numel_of(size_t parameter) const {
  int64_t numel = 0;
  for (const Piece& piece : pieces_) {
    numel += piece.chunk_of == static_cast<int32_t>(parameter) ? piece.numel : 0;
  }
  return numel;
}

int64_t UnshardedGradients::choose() {
  for (size_t i = 0; i < waiting_.size() && in_chunks_; ++i) {
    carried_[i] = is_reduced(i);
  }
  return numel();
}

// Enlarges `flat` if this microbatch has gradients of parameters that earlier ones did not use.
void UnshardedGradients::widen(at::Tensor& flat) {
  const std::vector<bool> before = carried_;
  for (size_t i = 0; i < waiting_.size(); ++i) {
    carried_[i] = carried_[i] || is_reduced(i);
  }
  if (carried_ == before) {
    return;
  }
  const at::Tensor wide = at::zeros({numel()}, flat.options());
  int64_t from = 0, to = 0;
  for (const Piece& piece : pieces_) {
    if (carries(piece, before)) {
      wide.narrow(0, to, piece.numel).copy_(flat.narrow(0, from, piece.numel));
      from += piece.numel;
    }
    to += carries(piece, carried_) ? piece.numel : 0;
  }
  flat = wide;
}

at::Tensor UnshardedGradients::take() {
  at::Tensor flat = at::empty({choose()}, options_);
  take_into(flat, /*add=*/false);
  return flat;
}

// On a device: one kernel with the cast if the pieces are chunks, as FSDP2's chunk_cat; otherwise
// one or a few, instead of one launch per piece.
void UnshardedGradients::concatenate(const at::Tensor& flat) const {
  std::vector<at::Tensor> parts;
  if (in_chunks_) {  // choose() chose exactly the parameters that are reduced
    for (size_t i = 0; i < waiting_.size(); ++i) {
      const at::Tensor& gradient = waiting_[i];
      if (gradient.defined() && gradient.numel() > 0) {
        parts.push_back(gradient.dim() == 0 ? gradient.reshape({1}) : gradient);
      } else if (!gradient.defined() && carried_[i] && numel_of(i) > 0) {
        parts.push_back(at::zeros({numel_of(i)}, options_));
      }
    }
    at::Tensor rows = flat.view({ranks_, -1});
    if (!parts.empty()) {
      at::_chunk_cat_out(rows, parts, /*dim=*/0, ranks_);
    }
    return;
  }
  for (const Piece& piece : pieces_) {
    if (carries(piece, carried_)) {
      const at::Tensor gradient =
          piece.parameter < 0 ? at::Tensor() : waiting_[static_cast<size_t>(piece.parameter)];
      parts.push_back(gradient.defined() ? rows_of(gradient, piece).reshape({-1})
                                         : at::zeros({piece.numel}, flat.options()));
    }
  }
  at::Tensor out = flat;
  at::cat_out(out, parts);
}

void UnshardedGradients::take_into(at::Tensor& flat, bool add) {
  at::RecordFunction record(at::RecordScope::FUNCTION);
  if (record.isActive()) {
    record.before("fsdp::flatten_gradients");
  }
  const at::NoGradGuard no_grad;
  if (add) {
    widen(flat);
  }
  if (!add && !flat.is_cpu()) {
    concatenate(flat);
    return clear();
  }
  const bool plain = !add && flat.is_cpu();
  const auto item = static_cast<int64_t>(flat.element_size());
  auto* bytes = static_cast<std::byte*>(flat.data_ptr());
  int64_t offset = 0;
  for (const Piece& piece : pieces_) {
    if (!carries(piece, carried_)) {
      continue;
    }
    const int64_t place = std::exchange(offset, offset + piece.numel);
    const at::Tensor gradient =
        piece.parameter < 0 ? at::Tensor() : waiting_[static_cast<size_t>(piece.parameter)];
    std::byte* target = bytes + place * item;
    const auto size = static_cast<size_t>(piece.numel * item);
    if (!gradient.defined()) {
      if (plain) {
        std::memset(target, 0, size);
      } else if (!add) {
        flat.narrow(0, place, piece.numel).zero_();
      }
    } else if (plain && gradient.is_contiguous() && gradient.scalar_type() == flat.scalar_type()) {
      // An operator call would cost more than the copy.
      std::memcpy(target, static_cast<const std::byte*>(gradient.data_ptr()) + piece.start * item,
                  size);
    } else {
      const at::Tensor part = rows_of(gradient, piece);
      const at::Tensor into = flat.narrow(0, place, piece.numel).view(part.sizes());
      static_cast<void>(add ? into.add_(part) : into.copy_(part));
    }
  }
  clear();
}

}  // namespace shardlens::fsdp
