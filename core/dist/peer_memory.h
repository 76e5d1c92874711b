#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace shardlens::dist {

// How the ranks of a group that are processes (or threads) of one machine read what the others
// lend: without the network, and without a thread that receives. Large memory is read straight from
// the other process, once; small one is copied to memory that all share, so that the ranks meet
// only once.
//
// Threads     one at a time.
// Errors      RuntimeFault if a rank has left, has ended, or does not come within the timeout.
// Source      process_vm_readv(2), which needs the permission to trace the peer (ptrace(2));
//             pidfd_getfd(2); futex(2).
class PeerMemory {
 public:
  // What every rank has passed, by rank.
  using Gather = std::function<std::vector<std::byte>(std::span<const std::byte> own)>;

  // All ranks call it. Null on all of them if any two cannot read each other's memory.
  [[nodiscard]] static std::unique_ptr<PeerMemory> join(int rank,
                                                        int size,
                                                        std::chrono::milliseconds timeout,
                                                        const Gather& gather);
  // The others' exchanges fail from now on.
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // All ranks call it, with the same `most`: the bytes of the largest `data` of them. Lends `data`
  // to the others while all of them run `work`, which may read() and must not change what is lent.
  // Afterwards nobody reads `data` any more.
  void lend(std::span<const std::byte> data, size_t most, const std::function<void()>& work);
  // Reads bytes [offset, offset + to.size()) of what `peer` lends.
  void read(int peer, uint64_t offset, std::span<std::byte> to) const;

 private:
  struct Identity;
  struct Board;
  struct Slot;
  struct Peer {
    int64_t pid = 0;
    int process = -1;  // a descriptor, which says whether it has ended
  };

  PeerMemory(int rank, int size, std::chrono::milliseconds timeout);
  [[nodiscard]] bool find(std::span<const Identity> all);
  [[nodiscard]] Slot& slot(int rank) const;
  [[nodiscard]] std::byte* shared(int rank) const;
  void meet();
  [[nodiscard]] bool all_came(bool late) const;
  void require(int peer) const;
  void leave() noexcept;

  int rank_, size_;
  std::chrono::milliseconds timeout_;
  uint64_t token_;  // what others find in this process' memory, and in no other
  Board* board_ = nullptr;
  size_t board_bytes_;
  uint32_t phase_ = 0;   // of the last meeting of all ranks
  uint64_t copied_ = 0;  // how often small memory was lent
  bool small_ = false;   // what is lent
  std::vector<Peer> peers_;
};

}  // namespace shardlens::dist
