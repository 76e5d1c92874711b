#include "core/train/background_save.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <ATen/ops/empty.h>

#include "core/base/error.h"
#include "core/checkpoint/save_directory.h"

namespace shardlens::train {

void HostParts::add(std::string name,
                    std::vector<int64_t> shape,
                    int64_t begin,
                    const at::Tensor& values) {
  const at::Tensor host = on_host(values.detach());
  const auto dtype = parse_dtype(c10::toString(host.scalar_type()));
  SHARDLENS_CHECK(dtype.has_value(), "a dtype that checkpoints do not have");
  kept_.push_back(host);
  parts_.push_back({std::move(name),
                    *dtype,
                    std::move(shape),
                    begin,
                    {static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()}});
}

at::Tensor HostParts::on_host(const at::Tensor& values) {
  if (staging_ == nullptr) {
    return values.to(at::kCPU).contiguous();
  }
  const size_t place = parts_.size();
  staging_->resize(std::max(staging_->size(), place + 1));
  at::Tensor& copy = (*staging_)[place];
  if (!copy.defined() || copy.sizes() != values.sizes() ||
      copy.scalar_type() != values.scalar_type()) {
    copy = at::empty(values.sizes(), values.options().device(at::kCPU));
  }
  copy.copy_(values);
  return copy;
}

BackgroundSave::BackgroundSave(HostParts parts,
                               checkpoint::Position position,
                               const checkpoint::SaveDirectory& directory,
                               int rank)
    : parts_(std::move(parts)), position_(std::move(position)) {
  start(State::kWritten, [this, &directory, rank] {
    checkpoint::write_rank_part(directory.begin(position_.step), rank, parts_.parts());
  });
}

void BackgroundSave::commit(std::function<void()> work) {
  wait();
  state_ = State::kCommitting;
  start(State::kDone, std::move(work));
}

void BackgroundSave::wait() {
  if (thread_.joinable()) {
    thread_.join();
  }
}

void BackgroundSave::start(State after, std::function<void()> work) {
  thread_ = std::thread([this, after, work = std::move(work)] {
    try {
      work();
      state_ = after;
    } catch (const std::exception& error) {
      failure_ = error.what();
      state_ = State::kFailed;
    }
  });
}

}  // namespace shardlens::train
