#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "core/base/step_figures.h"
#include "core/base/units.h"
#include "sim/cost/cost_model.h"
#include "sim/cost/operator_sums.h"

namespace shardlens::sim {

// A point in a lane's work, complete when all earlier work of the lane has ended: a recorded CUDA
// event.
using Mark = uint32_t;
inline constexpr Mark kNoMark = 0xffffffffU;  // for an event that was not recorded in this step

struct Span {                        // start and end of something simulated
  Nanoseconds start = -1, end = -1;  // -1: not yet
  friend bool operator==(const Span&, const Span&) = default;
};

// When an item of PlannedStep::order was handled on the host and ran on its stream; -1 if it did
// not run there (a hook, an allocation).
struct ItemTimes {
  Span host, stream;
  Span copy;  // reduction: the compute stream's copy of gradients to or from the reduced tensor
  friend bool operator==(const ItemTimes&, const ItemTimes&) = default;
};

// kPeerWait: communication that does not slow compute: on a CPU the part of a collective before
// data moves, on a GPU what copy engines move.
enum class WorkClass : uint8_t { kCompute, kCommunication, kPeerWait, kCopy, kOther };

// Streams and communicators of the ranks of a node, in virtual time.
//
// Layout      a lane is one stream of one rank; its work runs in order. A communicator runs its
//             collectives in order too, the order in which each rank issued them, on any lanes. A
//             collective starts to move data when every rank has reached it.
// Units       time starts at 0.
// Complexity  each piece of work costs a pass over the lanes.
// Source      CUDA streams; NCCL's FIFO per communicator: enqueue.cc makes the user's stream wait
//             for the communicator's own.
//
// [Note: Determinism] Instants are integers. At one instant lanes are visited in order of their
// number, repeatedly until nothing changes, so the result depends only on the issue order.
//
// [Note: Interference] Work with different `alone` and `beside` times progresses at the rate of the
// present: its end moves when communication (or compute) of its rank begins or ends. If both times
// are equal, no rounding happens.
//
// [Note: Shared links] Collectives of a rank that move data over the same links share their
// bandwidth equally: LinkUse::transfer takes as many times as long as there are such collectives.
//
// [Note: Runs of operators] As long as operators of one run follow each other and nothing else
// ends, is issued or is waited for between them, no other lane is affected, and they progress at
// one rate. If all of them have been issued and their times are not asked for, their sums give the
// operator that runs when something else happens. step() handles the first operator's start and
// every other case.
//
// [Note: Equal layers] Layers of a model mostly do the same, and after the first ones each takes
// the same time. Suppose that at two instants everything in progress is as far along, relative to
// the instant, that what the lanes do between them is what they do next, n times over, and that
// none of it has to wait until it is issued. Then the same happens n times more, each time as much
// later as the instants are apart, and nothing of it has to be run. Nothing is rounded, because
// only times relative to an instant are (Lane::left). Only for one rank, and where no times are
// asked for.
class Machine {
 public:
  // `shares_cores`: the host's copies and other work slow communication too, as compute does.
  Machine(uint32_t ranks, uint32_t lanes_per_rank, bool shares_cores);

  [[nodiscard]] uint32_t lane(uint32_t rank, uint32_t index) const {
    return rank * lanes_per_rank_ + index;
  }
  uint32_t add_communicator(uint32_t participants);
  void reserve(uint32_t lane, size_t works) { lanes_[lane].queue.reserve(works); }

  // Work is issued at `issue`, which must not be before that of the lane's previous work. `span`,
  // if not null, receives the start and end of the work; if several pieces of work share one span,
  // the first begin and the last end. It must stay valid until then.
  void work(uint32_t lane, Nanoseconds issue, const WorkTime& time, WorkClass what, Span* span);
  // The operators that operators() refers to, with operator_sums() of them. Both must stay valid.
  void set_operators(uint32_t lane,
                     std::span<const OperatorCost> operators,
                     std::span<const OperatorSums> sums);
  // The same as work() of class kCompute for each of `count` operators, from `first` on. Each is
  // issued after the host has spent `OperatorCost::issue` on it, beginning at `issued`. Operators
  // of no length are skipped. `items`, if not null, has one entry per operator; otherwise they
  // share `span`, which may be null too.
  void operators(uint32_t lane,
                 Nanoseconds issued,
                 uint32_t first,
                 uint32_t count,
                 ItemTimes* items,
                 Span* span = nullptr);
  // `ticket`: number of collectives that this rank issued on the communicator before.
  void collective(uint32_t lane,
                  Nanoseconds issue,
                  const WorkTime& time,
                  const LinkUse& link,
                  uint32_t communicator,
                  uint32_t ticket,
                  Span* span);
  Mark mark(uint32_t lane, Nanoseconds issue, Span* span = nullptr);
  // `waking`: delay of the lane after the wait, if the mark was not complete when the lane reached
  // it.
  void wait(
      uint32_t lane, Nanoseconds issue, Mark mark, Span* span = nullptr, Nanoseconds waking = 0);
  // When the lane reaches it, records the time and the rank's figures until then. What the rank
  // issues next must be meant for after it.
  void lap(uint32_t lane, Nanoseconds issue);

  // Time at which the mark was complete; -1: not yet.
  [[nodiscard]] Nanoseconds completed(Mark mark) const { return marks_[mark]; }
  // Runs until one of the marks is complete. Later work must not be issued before now().
  // Errors: RuntimeFault if none of them can complete.
  void run_until_any(std::span<const Mark> marks);
  // Runs all work. Errors: RuntimeFault if some work can never start.
  void run();

  struct Lap {
    Nanoseconds at = 0, issue = 0;
    StepFigures figures;
    // The rank's other lanes have ended all work that was issued before, and wait for a mark before
    // they do any that was issued later.
    bool separates = false;
  };
  [[nodiscard]] const std::vector<Lap>& laps() const { return laps_; }
  // The last time at which a lane that was ready for work had to wait until it was issued; -1:
  // never.
  [[nodiscard]] Nanoseconds starved_at() const { return starved_at_; }

  [[nodiscard]] Nanoseconds now() const { return now_; }
  [[nodiscard]] const StepFigures& figures(uint32_t rank) const { return ranks_[rank].figures; }
  // How long the rank's collectives waited for later ranks before data moved.
  [[nodiscard]] Nanoseconds waited(uint32_t rank) const { return ranks_[rank].waited; }

 private:
  static constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();
  enum class Kind : uint8_t { kWork, kOperators, kCollective, kMark, kWait, kLap };
  struct Work {
    Nanoseconds issue = 0;
    WorkTime time = {};
    Span* span = nullptr;
    ItemTimes* items = nullptr;  // kOperators: times of `next`
    LinkUse link;                // kCollective
    uint32_t next = 0, end = 0;  // kOperators: the operators after this
    // kCollective: its ticket; kLap: its number; kOperators: the first operator
    uint32_t mark = 0;
    uint16_t communicator = 0;
    Kind kind = Kind::kWork;
    WorkClass what = WorkClass::kOther;
  };
  struct Lane {
    bool running = false;
    bool sleeps = false;  // blocked in a wait
    Mark awaits = 0;      // the wait's mark
    uint32_t rank = 0;
    size_t head = 0, size = 0;  // of `queue`
    Nanoseconds end = kNever, since = 0;
    double left = 0;    // remaining part of time.alone at `since`
    double slower = 1;  // factor on time.alone since then
    std::vector<Work> queue;
    std::span<const OperatorCost> operators;
    std::span<const OperatorSums> sums;
  };
  struct Rank {
    std::array<int32_t, 5> running{};  // by WorkClass
    std::array<int32_t, 2> moving{};   // collectives within the node, and over the network
    StepFigures figures;
    Nanoseconds waited = 0;
  };
  struct Communicator {
    uint32_t participants = 1, arrived = 0, ended = 0;
    uint32_t serving = 0;         // ticket of the current collective
    std::vector<uint32_t> lanes;  // lanes that have arrived
  };

  // A lane at an instant; times relative to it.
  struct LaneState {
    size_t head = 0;
    bool running = false, sleeps = false;
    uint32_t operators = 0;  // left of the current run
    Nanoseconds end = 0, since = 0;
    double left = 0, slower = 1;
  };
  struct Moment {  // what is in progress at an instant
    Nanoseconds at = 0;
    Rank rank;
    std::vector<LaneState> lanes;
    std::vector<uint32_t> serving;  // by communicator
  };

  void push(uint32_t lane, const Work& work);
  void settle();           // starts all work that can start now
  bool begin(Lane& lane);  // true: something happened that other lanes may wait for
  void start(Lane& lane, const Work& work, Nanoseconds duration);
  bool arrive(uint32_t lane, const Work& work);
  [[nodiscard]] bool separates(const Lane& lane, uint32_t lap) const;
  static bool advance(const Lane& lane, Work& work);  // to the next operator; false: none is left
  void apply_interference();
  [[nodiscard]] bool has_beside(uint32_t rank, WorkClass what) const;
  [[nodiscard]] double slowdown(uint32_t rank, const Work& work) const;
  void run_operators(Lane& lane, Nanoseconds others);
  static bool pass_operators(Lane& lane, Nanoseconds others, bool beside);
  static void pass_one_by_one(Lane& lane, Nanoseconds others, bool beside);
  bool step();  // advances to the next instant; false: there is none, nothing runs or is issued
  void pass_equal_layers();
  void take_moment(Moment& out) const;
  [[nodiscard]] bool same_progress(const Moment& a, const Moment& b) const;
  [[nodiscard]] size_t times_repeated(const Moment& before, const Moment& now);
  [[nodiscard]] bool repeats(const Lane& lane,
                             const Work& before,
                             const Work& work,
                             const Moment& earlier,
                             const Moment& now,
                             uint32_t& marks) const;
  [[nodiscard]] bool pass_marks(const Moment& before, const Moment& now, size_t times);
  void pass(const Moment& before, const Moment& now, size_t times);
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
  std::vector<size_t> issued_before_;  // by lap and lane: works issued before the lap
  Nanoseconds now_ = 0, next_issue_ = kNever, starved_at_ = -1;
  // The last starts of runs of operators, of which one is the same as the present one if a layer
  // has at most this many; and how many there were.
  std::array<Moment, 4> moments_;
  size_t moments_seen_ = 0, last_run_ = kNoRun;
  std::vector<Mark> held_;  // that lanes wait for which did nothing between two moments
  static constexpr size_t kNoRun = std::numeric_limits<size_t>::max();
  uint32_t computing_ = 0;  // the lane with operators
};

}  // namespace shardlens::sim
