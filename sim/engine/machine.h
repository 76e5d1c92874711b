#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "core/base/step_figures.h"
#include "core/base/units.h"
#include "sim/cost/cost_model.h"

namespace shardlens::sim {

// A point in a lane's work, complete when all that was given to the lane before it has ended: what
// CUDA calls an event that was recorded.
using Mark = uint32_t;
inline constexpr Mark kNoMark = 0xffffffffU;  // of an event that was not recorded in this step

struct Span {
  Nanoseconds start = -1, end = -1;  // -1: not yet
  friend bool operator==(const Span&, const Span&) = default;
};

// When an item of PlannedStep::order was handled on the host and ran on its stream; -1 where it did
// not (a hook, an allocation).
struct ItemTimes {
  Span host, stream;
  Span copy;  // of a reduction: of gradients, on compute, into and from the tensor that it takes
  friend bool operator==(const ItemTimes&, const ItemTimes&) = default;
};

// kPeerWait: of a collective, before data moves. It counts as communication, but leaves the cores
// of a CPU to compute.
enum class WorkClass : uint8_t { kCompute, kCommunication, kPeerWait, kCopy, kOther };

// Streams and communicators of the ranks of a node, in virtual time.
//
// Layout      a lane is one stream of one rank: what it is given runs one after the other. A
//             communicator runs its collectives one after the other too, in the order in which each
//             rank issued them, whatever lanes they are on; one starts to move data when every rank
//             has reached it.
// Units       time starts at 0.
// Complexity  each piece of work costs a pass over the lanes.
// Source      CUDA streams; NCCL's FIFO per communicator: enqueue.cc makes the user's stream wait
//             for the communicator's own.
//
// [Note: Determinism] Instants are integers; at one instant lanes are looked at in order of their
// number, again until nothing changes, so what happens depends on issue order alone.
//
// [Note: Interference] Work whose times alone and beside differ progresses at the rate of the
// present: its end moves when communication (or compute) of its rank begins or ends. Where they are
// equal no rounding happens.
//
// [Note: Runs of operators] While one operator follows another of its run, nothing else ends or is
// issued in between and nothing is waited for, no other lane can tell: they are passed through
// without looking at the rest. The first one's end and all that is special is left to step().
class Machine {
 public:
  // `shares_cores`: what the host does beside compute slows communication too.
  Machine(uint32_t ranks, uint32_t lanes_per_rank, bool shares_cores);

  [[nodiscard]] uint32_t lane(uint32_t rank, uint32_t index) const {
    return rank * lanes_per_rank_ + index;
  }
  uint32_t add_communicator(uint32_t participants);
  void reserve(uint32_t lane, size_t works) { lanes_[lane].queue.reserve(works); }

  // Each is issued at `issue`, not before that of the lane's last work. `span`, where it is not
  // null, is told when the work began and ended, of several with one span the first and the last;
  // it must stay where it is until then.
  void work(uint32_t lane, Nanoseconds issue, const WorkTime& time, WorkClass what, Span* span);
  // Compute's: what work() does for one operator after the other, each issued when the host has
  // spent `issue` on it, the first one at `issued` and that. An operator of no length is passed
  // over. `operators` must stay where they are; `items`, where it is not null, has one for each.
  void operators(uint32_t lane,
                 Nanoseconds issued,
                 std::span<const OperatorCost> operators,
                 ItemTimes* items);
  // `ticket`: how many collectives this rank issued on the communicator before.
  void collective(uint32_t lane,
                  Nanoseconds issue,
                  const WorkTime& time,
                  uint32_t communicator,
                  uint32_t ticket,
                  Span* span);
  Mark mark(uint32_t lane, Nanoseconds issue, Span* span = nullptr);
  // `waking`: what the lane loses behind it, if the mark was not complete when it came there.
  void wait(
      uint32_t lane, Nanoseconds issue, Mark mark, Span* span = nullptr, Nanoseconds waking = 0);
  // Notes, when the lane comes to it, the time and where the rank's time went until then.
  void lap(uint32_t lane, Nanoseconds issue);

  // When the mark was complete; -1: it is not.
  [[nodiscard]] Nanoseconds completed(Mark mark) const { return marks_[mark]; }
  // Runs until one of the marks is complete. What is issued afterwards must not be issued before
  // now(). Errors: RuntimeFault if they never will be.
  void run_until_any(std::span<const Mark> marks);
  // Runs all that was given to it. Errors: RuntimeFault if something waits for what never happens.
  void run();

  struct Lap {
    Nanoseconds at = 0;
    StepFigures figures;
  };
  [[nodiscard]] const std::vector<Lap>& laps() const { return laps_; }

  [[nodiscard]] Nanoseconds now() const { return now_; }
  [[nodiscard]] const StepFigures& figures(uint32_t rank) const { return ranks_[rank].figures; }

 private:
  static constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();
  enum class Kind : uint8_t { kWork, kOperators, kCollective, kMark, kWait, kLap };
  struct Work {
    Nanoseconds issue = 0;
    WorkTime time = {};
    Span* span = nullptr;
    const OperatorCost *next = nullptr, *end = nullptr;  // kOperators: those after this one
    ItemTimes* items = nullptr;                          // kOperators: of `next`
    uint32_t mark = 0;                                   // kCollective: its ticket
    uint16_t communicator = 0;
    Kind kind = Kind::kWork;
    WorkClass what = WorkClass::kOther;
  };
  struct Lane {
    std::vector<Work> queue;
    size_t head = 0;
    uint32_t rank = 0;
    bool running = false, beside = false;
    bool sleeps = false;  // in a wait
    Nanoseconds end = kNever, since = 0;
    double left = 0;  // of time.alone, at `since`
  };
  struct Rank {
    std::array<int32_t, 5> running{};  // by WorkClass
    StepFigures figures;
  };
  struct Communicator {
    uint32_t participants = 1, arrived = 0, ended = 0;
    uint32_t serving = 0;         // ticket whose turn it is
    std::vector<uint32_t> lanes;  // that have arrived
  };

  void push(uint32_t lane, const Work& work);
  bool settle();           // starts what can start now; false: nothing is running or to come
  bool begin(Lane& lane);  // whether something happened that others may wait for
  void start(Lane& lane, const Work& work, Nanoseconds duration);
  bool arrive(uint32_t lane, const Work& work);
  static bool advance(Work& work);  // to the next operator; false: that was the last one
  void apply_interference();
  [[nodiscard]] bool has_beside(uint32_t rank, WorkClass what) const;
  void run_operators(Lane& lane, Nanoseconds others);
  bool step();  // to the next instant; false: there is none
  void account(Nanoseconds passed);
  void finish(Lane& lane);
  [[nodiscard]] bool any_complete(std::span<const Mark> marks) const;

  uint32_t lanes_per_rank_;
  bool shares_cores_;
  std::vector<Lane> lanes_;
  std::vector<Rank> ranks_;
  std::vector<Communicator> communicators_;
  std::vector<Nanoseconds> marks_;
  std::vector<Lap> laps_;
  Nanoseconds now_ = 0, next_issue_ = kNever;
};

}  // namespace shardlens::sim
