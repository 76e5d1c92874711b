#include "sim/engine/machine.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/error.h"

namespace shardlens::sim {

Machine::Machine(uint32_t ranks, uint32_t lanes_per_rank, bool shares_cores)
    : lanes_per_rank_(lanes_per_rank),
      shares_cores_(shares_cores),
      lanes_(size_t{ranks} * lanes_per_rank),
      ranks_(ranks) {
  for (size_t i = 0; i < lanes_.size(); ++i) {
    lanes_[i].rank = static_cast<uint32_t>(i / lanes_per_rank);
  }
}

uint32_t Machine::add_communicator(uint32_t participants) {
  communicators_.emplace_back().participants = participants;
  return static_cast<uint32_t>(communicators_.size() - 1);
}

void Machine::push(uint32_t lane, const Work& work) {
  lanes_[lane].queue.push_back(work);
  ++lanes_[lane].size;
}

void Machine::work(
    uint32_t lane, Nanoseconds issue, const WorkTime& time, WorkClass what, Span* span) {
  push(lane, {.issue = issue, .time = time, .span = span, .kind = Kind::kWork, .what = what});
}

void Machine::set_operators(uint32_t lane,
                            std::span<const OperatorCost> operators,
                            std::span<const OperatorSums> sums) {
  lanes_[lane].operators = operators;
  lanes_[lane].sums = sums;
  computing_ = lane;
}

void Machine::operators(uint32_t lane,
                        Nanoseconds issued,
                        uint32_t first,
                        uint32_t count,
                        ItemTimes* items,
                        Span* span) {
  Work work{.issue = issued,
            .span = span,
            .items = items,
            .next = first,
            .end = first + count,
            .mark = first,
            .kind = Kind::kOperators,
            .what = WorkClass::kCompute};
  if (advance(lanes_[lane], work)) {
    push(lane, work);
  }
}

bool Machine::advance(const Lane& lane, Work& work) {
  while (work.next != work.end) {
    const OperatorCost& cost = lane.operators[work.next++];
    work.issue += cost.issue;
    work.span = work.items == nullptr ? work.span : &work.items++->stream;
    if (cost.run.alone > 0) {
      work.time = cost.run;
      return true;
    }
  }
  return false;
}

void Machine::collective(uint32_t lane,
                         Nanoseconds issue,
                         const WorkTime& time,
                         const LinkUse& link,
                         uint32_t communicator,
                         uint32_t ticket,
                         Span* span) {
  push(lane, {.issue = issue,
              .time = time,
              .span = span,
              .link = link,
              .mark = ticket,
              .communicator = static_cast<uint16_t>(communicator),
              .kind = Kind::kCollective,
              .what = link.takes_cores ? WorkClass::kCommunication : WorkClass::kPeerWait});
}

Mark Machine::mark(uint32_t lane, Nanoseconds issue, Span* span) {
  const auto mark = static_cast<Mark>(marks_.size());
  marks_.push_back(-1);
  push(lane, {.issue = issue, .span = span, .mark = mark, .kind = Kind::kMark});
  return mark;
}

void Machine::wait(uint32_t lane, Nanoseconds issue, Mark mark, Span* span, Nanoseconds waking) {
  push(lane,
       {.issue = issue, .time = {waking, waking}, .span = span, .mark = mark, .kind = Kind::kWait});
}

void Machine::lap(uint32_t lane, Nanoseconds issue) {
  const auto number = static_cast<uint32_t>(issued_before_.size() / lanes_.size());
  for (const Lane& each : lanes_) {
    issued_before_.push_back(each.size);
  }
  push(lane, {.issue = issue, .mark = number, .kind = Kind::kLap});
}

bool Machine::separates(const Lane& lane, uint32_t lap) const {
  const size_t* const before = issued_before_.data() + lap * lanes_.size();
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const Lane& other = lanes_[i];
    if (&other == &lane || other.rank != lane.rank) {
      continue;
    }
    const bool waits = other.sleeps || other.head == other.size;
    if (other.running || other.head != before[i] || !waits) {
      return false;
    }
  }
  return true;
}

void Machine::start(Lane& lane, const Work& work, Nanoseconds duration) {
  lane.running = true;
  lane.slower = 1;
  lane.since = now_;
  lane.left = static_cast<double>(work.time.alone);
  lane.end = duration == kNever ? kNever : now_ + duration;
  ++ranks_[lane.rank].running[static_cast<size_t>(work.what)];
  if (work.span != nullptr && work.span->start < 0) {
    work.span->start = now_;
  }
}

// A rank reaches a collective. When the last rank reaches it, it starts to move data on all ranks.
bool Machine::arrive(uint32_t lane, const Work& work) {
  Communicator& on = communicators_[work.communicator];
  if (on.serving != work.mark) {
    return false;  // an earlier collective of the communicator has not ended
  }
  start(lanes_[lane], work, kNever);
  on.lanes.push_back(lane);
  if (++on.arrived == on.participants) {
    for (const uint32_t each : on.lanes) {
      Lane& other = lanes_[each];
      const Work& begun = other.queue[other.head];
      ranks_[other.rank].waited += now_ - other.since;
      other.since = now_;
      other.slower = 1;
      other.end = now_ + begun.time.alone;
      ++ranks_[other.rank].moving[begun.link.across_nodes ? 1 : 0];
    }
    on.lanes.clear();
    on.arrived = 0;
  }
  return true;
}

bool Machine::begin(Lane& lane) {
  bool changed = false;
  while (!lane.running && lane.head < lane.size) {
    const Work& work = lane.queue[lane.head];
    if (work.issue > now_) {
      next_issue_ = std::min(next_issue_, work.issue);
      starved_at_ = now_;
      break;
    }
    if (work.kind == Kind::kWork || work.kind == Kind::kOperators) {
      start(lane, work, work.time.alone);
      if (work.time.alone == 0) {
        finish(lane);
      }
      continue;
    }
    if (work.kind == Kind::kCollective) {
      if (!arrive(static_cast<uint32_t>(&lane - lanes_.data()), work)) {
        break;
      }
      if (lane.end == now_) {
        finish(lane);
        changed = true;  // the communicator's next collective may begin
      }
      continue;
    }
    if (work.span != nullptr && work.span->start < 0) {
      work.span->start = now_;
    }
    if (work.kind == Kind::kWait && marks_[work.mark] < 0) {
      lane.sleeps = true;
      lane.awaits = work.mark;
      break;
    }
    const bool slept = std::exchange(lane.sleeps, false);
    if (work.kind == Kind::kLap) {
      laps_.push_back({now_, work.issue, ranks_[lane.rank].figures, separates(lane, work.mark)});
    }
    if (work.kind == Kind::kMark) {
      marks_[work.mark] = now_;
      changed = true;
    }
    if (work.span != nullptr) {
      work.span->end = now_;
    }
    if (slept && work.time.alone > 0) {
      lane.queue[lane.head] = {.issue = work.issue, .time = work.time};
      continue;
    }
    ++lane.head;
  }
  return changed;
}

void Machine::settle() {
  bool changed = true;
  while (changed) {
    changed = false;
    next_issue_ = kNever;
    for (Lane& lane : lanes_) {
      if (lane.running) {
        if (lane.end == now_) {
          finish(lane);  // a collective of no length whose last rank has just arrived
          changed = true;
        }
      } else if (lane.head < lane.size && !(lane.sleeps && marks_[lane.awaits] < 0)) {
        changed = begin(lane) || changed;
      }
    }
  }
}

bool Machine::has_beside(uint32_t rank, WorkClass what) const {
  const auto runs = [&running = ranks_[rank].running](WorkClass each) {
    return running[static_cast<size_t>(each)] > 0;
  };
  if (what != WorkClass::kCommunication && what != WorkClass::kPeerWait) {
    return runs(WorkClass::kCommunication);
  }
  return runs(WorkClass::kCompute) ||
         (shares_cores_ && (runs(WorkClass::kCopy) || runs(WorkClass::kOther)));
}

double Machine::slowdown(uint32_t rank, const Work& work) const {
  const auto alone = static_cast<double>(work.time.alone);
  double out = has_beside(rank, work.what) ? static_cast<double>(work.time.beside) / alone : 1;
  if (work.link.transfer > 0) {
    const int32_t others = ranks_[rank].moving[work.link.across_nodes ? 1 : 0] - 1;
    out *= (alone + others * static_cast<double>(work.link.transfer)) / alone;
  }
  return out;
}

// See [Note: Interference] and [Note: Shared links].
void Machine::apply_interference() {
  for (Lane& lane : lanes_) {
    if (!lane.running || lane.end == kNever) {
      continue;
    }
    const Work& work = lane.queue[lane.head];
    if ((work.time.alone == work.time.beside && work.link.transfer == 0) || work.time.alone == 0) {
      continue;
    }
    const double slower = slowdown(lane.rank, work);
    if (slower == lane.slower) {
      continue;
    }
    const auto elapsed = static_cast<double>(now_ - lane.since);
    lane.left = std::max(0.0, lane.left - elapsed / lane.slower);
    lane.since = now_;
    lane.slower = slower;
    lane.end = now_ + std::llround(lane.left * slower);
  }
}

void Machine::finish(Lane& lane) {
  Work& work = lane.queue[lane.head];
  lane.running = false;
  lane.end = kNever;
  --ranks_[lane.rank].running[static_cast<size_t>(work.what)];
  if (work.span != nullptr) {
    work.span->end = now_;
  }
  if (work.kind == Kind::kCollective) {
    --ranks_[lane.rank].moving[work.link.across_nodes ? 1 : 0];
    Communicator& on = communicators_[work.communicator];
    if (++on.ended == on.participants) {
      on.ended = 0;
      ++on.serving;
    }
  }
  if (work.kind != Kind::kOperators || !advance(lane, work)) {
    ++lane.head;
  }
}

void Machine::account(Nanoseconds passed) {
  for (Rank& rank : ranks_) {
    const bool computes = rank.running[static_cast<size_t>(WorkClass::kCompute)] > 0;
    const bool communicates = rank.running[static_cast<size_t>(WorkClass::kCommunication)] > 0 ||
                              rank.running[static_cast<size_t>(WorkClass::kPeerWait)] > 0;
    const bool copies = rank.running[static_cast<size_t>(WorkClass::kCopy)] > 0;
    rank.figures.compute += computes ? passed : 0;
    rank.figures.comm += communicates ? passed : 0;
    rank.figures.overlap += computes && communicates ? passed : 0;
    rank.figures.exposed_comm += !computes && communicates ? passed : 0;
    rank.figures.exposed_copy += !computes && !communicates && copies ? passed : 0;
    rank.figures.idle += !computes && !communicates && !copies ? passed : 0;
  }
}

// See [Note: Runs of operators]. The first operator that ends at `others` or later, or the last
// one, becomes the current one. False: some have not been issued, or their times are asked for.
bool Machine::pass_operators(Lane& lane, Nanoseconds others, bool beside) {
  Work& work = lane.queue[lane.head];
  const OperatorSums* const sums = lane.sums.data();
  const Nanoseconds issued = work.issue + sums[work.end].issue - sums[work.next].issue;
  if (work.items != nullptr || issued > lane.end) {
    return false;
  }
  const auto sum = beside ? &OperatorSums::beside : &OperatorSums::alone;
  const Nanoseconds before = lane.end - sums[work.next].*sum;  // end of an operator: before + sum
  const Nanoseconds until = std::min(others, before + sums[work.end].*sum);
  if (until == lane.end) {
    return true;  // no operator of any length is left
  }
  const OperatorSums* const after = std::lower_bound(
      sums + work.next + 1, sums + work.end, until - before,
      [sum](const OperatorSums& each, Nanoseconds least) { return each.*sum < least; });
  work.issue += after->issue - sums[work.next].issue;
  work.next = static_cast<uint32_t>(after - sums);
  work.time = lane.operators[work.next - 1].run;
  lane.since = before + after[-1].*sum;
  lane.end = before + after->*sum;
  return true;
}

void Machine::pass_one_by_one(Lane& lane, Nanoseconds others, bool beside) {
  Work& work = lane.queue[lane.head];
  while (lane.end < others) {
    uint32_t next = work.next;
    Nanoseconds issue = work.issue;
    while (next != work.end && lane.operators[next].run.alone == 0) {
      issue += lane.operators[next++].issue;
    }
    if (next == work.end || issue + lane.operators[next].issue > lane.end) {
      break;
    }
    if (work.items != nullptr) {
      work.span->end = lane.end;
      work.items += next - work.next;
      work.span = &work.items++->stream;
      work.span->start = lane.end;
    }
    work.issue = issue + lane.operators[next].issue;
    work.time = lane.operators[next].run;
    work.next = next + 1;
    lane.since = lane.end;
    lane.end += beside ? work.time.beside : work.time.alone;
  }
}

// The work of `lane` ends before the work of all other lanes.
void Machine::run_operators(Lane& lane, Nanoseconds others) {
  const Work& work = lane.queue[lane.head];
  const uint32_t next = work.next;
  const bool communicates =
      ranks_[lane.rank].running[static_cast<size_t>(WorkClass::kCommunication)] > 0;
  if (!pass_operators(lane, others, communicates)) {
    pass_one_by_one(lane, others, communicates);
  }
  if (work.next == next) {
    return;
  }
  const bool beside = communicates && work.time.alone != work.time.beside;
  lane.slower =
      beside ? static_cast<double>(work.time.beside) / static_cast<double>(work.time.alone) : 1;
  lane.left = static_cast<double>(work.time.alone);
  account(lane.since - now_);
  now_ = lane.since;
}

bool Machine::step() {
  apply_interference();
  Nanoseconds next = kNever, others = next_issue_;
  Lane* first = nullptr;
  for (Lane& lane : lanes_) {
    if (lane.end < next) {
      others = std::min(others, next);
      next = lane.end;
      first = &lane;
    } else {
      others = std::min(others, lane.end);
    }
  }
  if (next < others && first->queue[first->head].kind == Kind::kOperators) {
    run_operators(*first, others);
    next = first->end;
  }
  next = std::min(next, others);
  if (next == kNever) {
    return false;
  }
  account(next - now_);
  now_ = next;
  for (Lane& lane : lanes_) {
    if (lane.end == now_) {
      finish(lane);
    }
  }
  return true;
}

bool Machine::any_complete(std::span<const Mark> marks) const {
  return std::any_of(marks.begin(), marks.end(), [this](Mark mark) { return marks_[mark] >= 0; });
}

void Machine::run_until_any(std::span<const Mark> marks) {
  while (!any_complete(marks)) {
    settle();
    if (any_complete(marks)) {
      return;
    }
    if (!step()) {
      throw RuntimeFault("internal error: the simulated host waits for work that never ends");
    }
  }
}

void Machine::run() {
  do {
    settle();
    pass_equal_layers();
  } while (step());
  for (const Lane& lane : lanes_) {
    if (lane.head < lane.size) {
      throw RuntimeFault("internal error: simulated work waits for other work that never ends");
    }
  }
}

}  // namespace shardlens::sim
