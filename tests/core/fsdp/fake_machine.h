#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include "tests/core/fsdp/fake_device.h"

namespace shardlens::test {

// The queues and the memory behind FakeDevice; see [Note: Teeth].
//
// Threads  any; one lock, which is held while an operation runs.
class Machine {
 public:
  // A position in a stream: complete when that many operations of it have run.
  struct Position {
    c10::StreamId stream = 0;
    uint64_t count = 0;
  };
  struct Block {
    void* data = nullptr;
    size_t bytes = 0;
    c10::StreamId stream = 0;
    std::vector<Position> uses;  // by record_stream
  };

  static Machine& get();

  void start(uint64_t seed);
  void stop();
  [[nodiscard]] bool has_teeth() const { return teeth_; }
  void enqueue(c10::StreamId stream, const std::string& name, std::function<void()> work);
  [[nodiscard]] Position end_of(c10::StreamId stream);
  void wait_on_stream(c10::StreamId stream, Position position);
  // Whether `position` is complete; may run something else. A second call in a row is the polling
  // of a host that waits.
  [[nodiscard]] bool query(Position position);
  void wait_on_host(Position position, const std::string& what);
  // For a host that waits for the current stream in a copy or to read a value.
  void wait_for_current(const std::string& what);

  Block* allocate(size_t bytes);
  void free(Block* block);
  void record_use(void* data, c10::StreamId stream);

  std::recursive_mutex mutex;
  std::vector<HostWait> waits;                              // guarded by mutex, like all below
  std::map<c10::StreamId, std::pair<size_t, size_t>> used;  // blocks in use: now, most
  std::map<std::string, int> ran;                           // operators by name
  c10::CachingAllocator::Stat bytes;
  void stall(c10::StreamId stream);
  size_t queued();

 private:
  enum class Pace : uint8_t { kSoon, kLast, kRandom };
  struct Task {
    std::string name;
    std::function<void()> run;  // null: waits for `after`
    Position after;
  };
  struct Queue {
    std::deque<Task> tasks;
    uint64_t issued = 0, done = 0;
    Pace pace = Pace::kSoon;
  };
  Queue& queue(c10::StreamId stream);
  bool ready(Queue& queue);
  void step(Queue& queue);
  void go_on();
  void force(Position position);
  void give_back(Block* block);
  void release_recorded();
  bool chance(double p) { return std::uniform_real_distribution<>(0, 1)(random_) < p; }

  bool teeth_ = false;
  uint64_t seed_ = 0;
  std::mt19937_64 random_;
  std::map<c10::StreamId, Queue> queues_;
  std::map<std::pair<c10::StreamId, size_t>, std::vector<Block*>> free_;
  std::map<void*, Block*> blocks_;
  std::map<c10::StreamId, std::vector<Block*>> unpoisoned_;  // freed since the last allocation
  std::vector<Block*> recorded_;                             // freed, but in use by other streams
  uint64_t activity_ = 0, queried_at_ = 0;
  Position queried_;
};

// The stream that is current for this thread.
c10::StreamId& current_stream();

}  // namespace shardlens::test
