#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <ATen/core/TensorBody.h>

#include "core/checkpoint/checkpoint_index.h"
#include "core/checkpoint/rank_part.h"

namespace shardlens::checkpoint {
class SaveDirectory;
}

namespace shardlens::train {

// The tensors of one rank that a save writes, on the host.
class HostParts {
 public:
  // `staging`: memory for copies, needed if the tensors may change before they are written; it must
  // outlive the object, and is used again by the next. Null: tensors on the host are not copied.
  explicit HostParts(std::vector<at::Tensor>* staging) : staging_(staging) {}

  // Elements [begin, begin + values.numel()) of tensor `name`, whose shape is `shape`.
  void add(std::string name, std::vector<int64_t> shape, int64_t begin, const at::Tensor& values);
  [[nodiscard]] std::span<const checkpoint::TensorPart> parts() const { return parts_; }

 private:
  at::Tensor on_host(const at::Tensor& values);

  std::vector<at::Tensor>* staging_;
  std::vector<at::Tensor> kept_;  // the memory of parts_
  std::vector<checkpoint::TensorPart> parts_;
};

// A thread that writes one rank's part of a checkpoint and, when all ranks have written theirs,
// completes it.
//
// Threads  one caller. The destructor waits for the thread.
class BackgroundSave {
 public:
  enum class State : uint8_t { kWriting, kWritten, kCommitting, kDone, kFailed };

  // Starts to write. `directory` must outlive the object.
  BackgroundSave(HostParts parts,
                 checkpoint::Position position,
                 const checkpoint::SaveDirectory& directory,
                 int rank);
  ~BackgroundSave() { wait(); }
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  [[nodiscard]] State state() const { return state_; }
  [[nodiscard]] const checkpoint::Position& position() const { return position_; }
  // Starts to complete it; state() must be kWritten.
  void commit(std::function<void()> work);
  // Waits for what was started last.
  void wait();
  // The message of what failed, or "". Call after wait().
  [[nodiscard]] const std::string& failure() const { return failure_; }

 private:
  void start(State after, std::function<void()> work);

  HostParts parts_;
  checkpoint::Position position_;
  std::string failure_;
  std::atomic<State> state_{State::kWriting};
  std::thread thread_;
};

}  // namespace shardlens::train
