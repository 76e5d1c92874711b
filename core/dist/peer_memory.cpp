#include "core/dist/peer_memory.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <random>

#include <fmt/format.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "core/base/error.h"

namespace shardlens::dist {
namespace {

// The most that is lent by a copy. Larger memory is read faster than it is copied twice.
constexpr size_t kSmall = size_t{1} << 18;
// How often a rank that waits looks whether the other one has ended.
constexpr std::chrono::milliseconds kLook{100};

uint64_t address_of(const void* memory) {
  return reinterpret_cast<uint64_t>(memory);
}

// Returns 0, or the number of the error.
int copy(int64_t pid, uint64_t from, std::span<std::byte> to) {
  while (!to.empty()) {
    const iovec here{to.data(), to.size()};
    const iovec there{reinterpret_cast<void*>(from), to.size()};  // NOLINT: in the other process
    const ssize_t done = ::process_vm_readv(static_cast<pid_t>(pid), &here, 1, &there, 1, 0);
    if (done <= 0) {
      return done < 0 ? errno : EFAULT;
    }
    from += static_cast<uint64_t>(done);
    to = to.subspan(static_cast<size_t>(done));
  }
  return 0;
}

// Sleeps while `word` is `seen`, for some time at most.
void sleep_on(const std::atomic<uint32_t>& word, uint32_t seen, std::chrono::nanoseconds most) {
  const timespec time{most.count() / 1'000'000'000, most.count() % 1'000'000'000};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &time, nullptr, 0);
}

void wake(const std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool reached(uint32_t phase, uint32_t wanted) {
  return static_cast<int32_t>(phase - wanted) >= 0;
}

}  // namespace

struct PeerMemory::Identity {
  int64_t pid = 0, board = -1;  // the descriptor of rank 0's board
  uint64_t token_at = 0, token = 0;
};

// In memory that all ranks share; each writes its own slot.
struct alignas(64) PeerMemory::Slot {
  std::atomic<uint32_t> phase;
  std::atomic<uint32_t> left;  // 1: what this rank lends is not valid any more
  std::atomic<uint64_t> data;
};
// Behind it are the slots of all ranks, and two copies of small memory for each. [Note: Two copies]
// A rank that writes a copy again has met the others since, so they have read it.
//
// [Note: Meeting] All ranks count themselves, and only the last one wakes the others. So each
// sleeps at most once, however many they are.
struct alignas(64) PeerMemory::Board {
  uint64_t token;               // of rank 0
  std::atomic<uint32_t> left;   // 1: a rank has left
  std::atomic<uint32_t> came;   // how often a rank came to a meeting; in the end it wraps around
  std::atomic<uint32_t> phase;  // of the last meeting to which all came: what the ranks sleep on
};

PeerMemory::PeerMemory(int rank, int size, std::chrono::milliseconds timeout)
    : rank_(rank),
      size_(size),
      timeout_(timeout),
      board_bytes_(sizeof(Board) + (sizeof(Slot) + 2 * kSmall) * static_cast<size_t>(size)) {
  std::random_device random;
  token_ = uint64_t{random()} << 32U | random();
}

std::unique_ptr<PeerMemory> PeerMemory::join(int rank,
                                             int size,
                                             std::chrono::milliseconds timeout,
                                             const Gather& gather) {
  std::unique_ptr<PeerMemory> memory(new PeerMemory(rank, size, timeout));
  Identity own{::getpid(), -1, address_of(&memory->token_), memory->token_};
  if (rank == 0) {
    own.board = ::memfd_create("shardlens ranks", MFD_CLOEXEC);
  }
  if (own.board >= 0) {
    const auto file = static_cast<int>(own.board);
    if (::ftruncate(file, static_cast<int64_t>(memory->board_bytes_)) != 0 ||
        ::pwrite(file, &own.token, sizeof(own.token), 0) != sizeof(own.token)) {
      own.token = 0;  // which nobody finds
    }
  }
  const auto raw = [](const auto& value) { return std::as_bytes(std::span(&value, 1)); };
  std::vector<Identity> all(static_cast<size_t>(size));
  const std::vector<std::byte> gathered = gather(raw(own));
  std::memcpy(all.data(), gathered.data(), gathered.size());
  const uint8_t found = memory->find(all) ? 1 : 0;
  const std::vector<std::byte> everyone = gather(raw(found));
  if (own.board >= 0) {
    ::close(static_cast<int>(own.board));  // all have their own descriptors
  }
  for (const std::byte each : everyone) {
    if (each == std::byte{0}) {
      return nullptr;
    }
  }
  return memory;
}

// Whether this rank can read all others' memory and shares the board. A process of another machine
// or another namespace that has a rank's number does not have its token.
bool PeerMemory::find(std::span<const Identity> all) {
  peers_.resize(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    const Identity& each = all[i];
    uint64_t token = 0;
    peers_[i].pid = each.pid;
    if (copy(each.pid, each.token_at, std::as_writable_bytes(std::span(&token, 1))) != 0 ||
        token != each.token) {
      return false;
    }
    peers_[i].process = static_cast<int>(::syscall(SYS_pidfd_open, each.pid, 0));
    if (peers_[i].process < 0) {
      return false;
    }
  }
  const int file = static_cast<int>(::syscall(SYS_pidfd_getfd, peers_[0].process, all[0].board, 0));
  if (file < 0) {
    return false;
  }
  struct stat info {};
  const bool whole =
      ::fstat(file, &info) == 0 && info.st_size == static_cast<int64_t>(board_bytes_);
  void* mapped = whole ? ::mmap(nullptr, board_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
                       : MAP_FAILED;
  ::close(file);
  if (mapped == MAP_FAILED) {
    return false;
  }
  board_ = static_cast<Board*>(mapped);
  return board_->token == all[0].token;
}

PeerMemory::~PeerMemory() {
  leave();
  if (board_ != nullptr) {
    ::munmap(board_, board_bytes_);
  }
  for (const Peer& peer : peers_) {
    if (peer.process >= 0) {
      ::close(peer.process);
    }
  }
}

PeerMemory::Slot& PeerMemory::slot(int rank) const {
  return reinterpret_cast<Slot*>(board_ + 1)[rank];
}

std::byte* PeerMemory::shared(int rank) const {
  auto* copies = reinterpret_cast<std::byte*>(&slot(size_));
  return copies + (2 * static_cast<size_t>(rank) + copied_ % 2) * kSmall;
}

void PeerMemory::leave() noexcept {
  if (board_ != nullptr) {
    slot(rank_).left.store(1);
    board_->left.store(1);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // before what was lent gets other values
    wake(board_->phase);
  }
}

// [Note: Leaving an exchange] A rank that gives up, as after a timeout, may free what others still
// read. So it says that it has left before, and they look for that after they have read.
void PeerMemory::lend(std::span<const std::byte> data,
                      size_t most,
                      const std::function<void()>& work) {
  try {
    small_ = most <= kSmall;
    if (small_) {
      ++copied_;
      std::ranges::copy(data, shared(rank_));
      meet();
      work();
      return;
    }
    slot(rank_).data.store(address_of(data.data()), std::memory_order_relaxed);
    meet();
    work();
    for (int peer = 0; peer < size_; ++peer) {
      require(peer);
    }
    meet();
  } catch (...) {
    leave();
    throw;
  }
}

void PeerMemory::read(int peer, uint64_t offset, std::span<std::byte> to) const {
  if (small_) {
    std::copy_n(shared(peer) + offset, to.size(), to.data());
    return;
  }
  const int error = copy(peers_[static_cast<size_t>(peer)].pid,
                         slot(peer).data.load(std::memory_order_relaxed) + offset, to);
  if (error != 0) {
    throw RuntimeFault(
        fmt::format("the memory of rank {} cannot be read: {}", peer, std::strerror(error)));
  }
}

void PeerMemory::require(int peer) const {
  if (slot(peer).left.load(std::memory_order_acquire) != 0) {
    throw RuntimeFault(fmt::format("rank {} of the group has left", peer));
  }
}

void PeerMemory::meet() {
  slot(rank_).phase.store(++phase_, std::memory_order_release);
  const uint32_t came = board_->came.fetch_add(1, std::memory_order_acq_rel) + 1;
  if (came == phase_ * static_cast<uint32_t>(size_)) {
    board_->phase.store(phase_, std::memory_order_release);
    wake(board_->phase);
    return;
  }
  const auto end = std::chrono::steady_clock::now() + timeout_;
  for (bool slept = false;; slept = true) {
    const uint32_t seen = board_->phase.load(std::memory_order_acquire);
    if (seen == phase_) {
      return;
    }
    const auto now = std::chrono::steady_clock::now();
    if ((slept || board_->left.load(std::memory_order_acquire) != 0) && all_came(now >= end)) {
      return;
    }
    sleep_on(board_->phase, seen, std::min<std::chrono::nanoseconds>(kLook, end - now));
  }
}

// Whether all have come to this meeting. Throws if one of the others cannot come, or, with `late`,
// has not. One may leave, or end, as soon as it has come to the last meeting.
bool PeerMemory::all_came(bool late) const {
  bool all = true;
  for (int i = 1; i < size_; ++i) {
    const int peer = (rank_ + i) % size_;
    const bool left = slot(peer).left.load(std::memory_order_acquire) != 0;
    pollfd process{peers_[static_cast<size_t>(peer)].process, POLLIN, 0};
    const bool ended = ::poll(&process, 1, 0) > 0;
    if (reached(slot(peer).phase.load(std::memory_order_acquire), phase_)) {
      continue;
    }
    if (left) {
      require(peer);
    }
    if (ended) {
      throw RuntimeFault(fmt::format("rank {} of the group has ended", peer));
    }
    if (late) {
      throw RuntimeFault(fmt::format("timed out waiting for rank {} of the group", peer));
    }
    all = false;
  }
  return all;
}

}  // namespace shardlens::dist
