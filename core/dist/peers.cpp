#include "core/dist/peers.h"

#include <algorithm>
#include <vector>

#include <pthread.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace shardlens::dist {
namespace {

using Clock = std::chrono::steady_clock;

std::string key_of(int rank) {
  return "doing/" + std::to_string(rank);
}

}  // namespace

Peers::Peers(c10::intrusive_ptr<c10d::Store> store,
             int rank,
             int size,
             std::chrono::milliseconds timeout,
             std::function<std::string()> doing)
    : store_(std::move(store)), rank_(rank), size_(size), doing_(std::move(doing)) {
  const auto stall = std::clamp<std::chrono::milliseconds>(
      timeout / 4, std::chrono::milliseconds(20), std::chrono::seconds(2));
  thread_ = std::thread([this, stall] { watch(stall); });
  pthread_setname_np(thread_.native_handle(), "peers");
}

Peers::~Peers() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_one();
  thread_.join();
}

void Peers::watch(std::chrono::milliseconds stall) {
  std::string seen, told;
  Clock::time_point since = Clock::now();
  std::unique_lock lock(mutex_);
  while (!stop_.wait_for(lock, stall / 4, [this] { return stopping_; })) {
    lock.unlock();
    std::string now = doing_();
    if (now != seen) {
      seen = std::move(now);
      since = Clock::now();
    }
    // A rank that has published a text must clear it when it continues.
    if (seen != told && (!told.empty() || Clock::now() - since >= stall)) {
      told = Clock::now() - since >= stall ? seen : "";
      tell(told);
    }
    lock.lock();
  }
}

void Peers::tell(const std::string& text) const {
  try {
    store_->set(key_of(rank_), std::vector<uint8_t>(text.begin(), text.end()));
  } catch (const std::exception&) {  // the rank that served the store has ended
  }
}

std::string Peers::report() const {
  std::string report;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) {
      continue;
    }
    std::string doing = "is running and has not reached this collective";
    try {
      if (store_->check({key_of(rank)})) {
        const std::vector<uint8_t> text = store_->get(key_of(rank));
        if (!text.empty()) {
          doing.assign(text.begin(), text.end());
        }
      }
    } catch (const std::exception&) {
      doing = "cannot be queried: the rendezvous store does not answer";
    }
    report += (report.empty() ? "rank " : "; rank ") + std::to_string(rank) + " " + doing;
  }
  return report;
}

}  // namespace shardlens::dist
