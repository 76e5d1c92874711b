// See [Note: Equal layers].
#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "sim/engine/machine.h"

namespace shardlens::sim {

void Machine::take_moment(Moment& out) const {
  out.at = now_;
  out.rank = ranks_.front();
  out.lanes.resize(lanes_.size());
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const Lane& lane = lanes_[i];
    LaneState& state = out.lanes[i];
    state = {.head = lane.head, .running = lane.running, .sleeps = lane.sleeps};
    if (lane.running) {
      const Work& work = lane.queue[lane.head];
      state.operators = work.kind == Kind::kOperators ? work.end - work.next : 0;
      state.end = lane.end - now_;
      state.since = lane.since - now_;
      state.left = lane.left;
      state.slower = lane.slower;
    }
  }
  out.serving.resize(communicators_.size());
  for (size_t i = 0; i < communicators_.size(); ++i) {
    out.serving[i] = communicators_[i].serving;
  }
}

// Whether what is in progress is as far along. A lane that did nothing in between must wait for
// something that has not happened, or have nothing left.
bool Machine::same_progress(const Moment& a, const Moment& b) const {
  if (a.rank.running != b.rank.running || a.rank.moving != b.rank.moving) {
    return false;
  }
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const LaneState &x = a.lanes[i], &y = b.lanes[i];
    if (x.running != y.running || x.sleeps != y.sleeps || x.operators != y.operators ||
        x.end != y.end || x.since != y.since || x.left != y.left || x.slower != y.slower ||
        (x.head == y.head && !y.sleeps && y.head < lanes_[i].size)) {
      return false;
    }
  }
  return true;
}

// Whether `work` does the same as `before`, one period later. `marks`: how many marks a period has;
// kNoMark: not known yet.
bool Machine::repeats(const Lane& lane,
                      const Work& before,
                      const Work& work,
                      const Moment& earlier,
                      const Moment& now,
                      uint32_t& marks) const {
  if (before.kind != work.kind || before.what != work.what || work.issue > now_ ||
      work.span != nullptr || work.items != nullptr) {
    return false;
  }
  switch (work.kind) {
    case Kind::kWork:
      return before.time == work.time;
    case Kind::kOperators: {
      const uint32_t count = work.end - work.mark;
      const OperatorCost* const costs = lane.operators.data();
      static_assert(std::has_unique_object_representations_v<OperatorCost>);
      return before.end - before.mark == count &&
             work.issue + lane.sums[work.end].issue - lane.sums[work.next].issue <= now_ &&
             std::memcmp(costs + work.mark, costs + before.mark, count * sizeof(OperatorCost)) == 0;
    }
    case Kind::kCollective:
      return before.time == work.time && before.link == work.link &&
             before.communicator == work.communicator &&
             work.mark - before.mark ==
                 now.serving[work.communicator] - earlier.serving[work.communicator];
    case Kind::kWait:
      if (before.time != work.time) {
        return false;
      }
      if (before.mark == work.mark) {
        return marks_[work.mark] >= 0 && marks_[work.mark] <= earlier.at;
      }
      [[fallthrough]];
    case Kind::kMark:
      if (work.kind == Kind::kMark && std::ranges::find(held_, work.mark) != held_.end()) {
        return false;
      }
      marks = marks == kNoMark ? work.mark - before.mark : marks;
      return work.mark - before.mark == marks;
    case Kind::kLap:
      return false;
  }
  return false;
}

// How often what happened between the two moments happens again from the later one on.
size_t Machine::times_repeated(const Moment& before, const Moment& now) {
  size_t times = std::numeric_limits<size_t>::max();
  uint32_t marks = kNoMark;
  held_.clear();
  for (size_t i = 0; i < lanes_.size(); ++i) {
    if (lanes_[i].sleeps && before.lanes[i].head == now.lanes[i].head) {
      held_.push_back(lanes_[i].awaits);
    }
  }
  const auto count = [&](size_t i) {
    const Lane& lane = lanes_[i];
    const size_t head = now.lanes[i].head, period = head - before.lanes[i].head;
    if (period == 0) {
      return;
    }
    // What is in progress at the end must be the same too.
    const size_t last =
        times < (lane.size - head) / period ? head + (times + 1) * period : lane.size;
    size_t end = head;
    while (end < last &&
           repeats(lane, lane.queue[end - period], lane.queue[end], before, now, marks)) {
      ++end;
    }
    times = std::min(times, end == head ? 0 : (end - head - 1) / period);
  };
  count(computing_);
  for (size_t i = 0; i < lanes_.size() && times > 0; ++i) {
    if (i != computing_) {
      count(i);
    }
  }
  return times == std::numeric_limits<size_t>::max() ? 0 : times;
}

// Completes the marks of the works that are passed. False, and nothing changed: one of these works
// waits for a mark that is not complete then.
bool Machine::pass_marks(const Moment& before, const Moment& now, size_t times) {
  const Nanoseconds period = now.at - before.at;
  const auto each = [&](Kind kind, const auto& visit) {
    for (size_t i = 0; i < lanes_.size(); ++i) {
      const std::vector<Work>& queue = lanes_[i].queue;
      const size_t head = now.lanes[i].head, works = head - before.lanes[i].head;
      for (size_t at = head; at < head + times * works; ++at) {
        if (queue[at].kind == kind) {
          visit(queue[at].mark, queue[at - works].mark);
        }
      }
    }
  };
  each(Kind::kMark, [&](Mark mark, Mark earlier) { marks_[mark] = marks_[earlier] + period; });
  bool complete = true;
  each(Kind::kWait, [&](Mark mark, Mark) { complete = complete && marks_[mark] >= 0; });
  if (!complete) {
    each(Kind::kMark, [&](Mark mark, Mark) { marks_[mark] = -1; });
  }
  return complete;
}

void Machine::pass(const Moment& before, const Moment& now, size_t times) {
  const auto count = static_cast<Nanoseconds>(times);
  const Nanoseconds passed = count * (now.at - before.at);
  for (size_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = lanes_[i];
    const size_t works = now.lanes[i].head - before.lanes[i].head;
    const Work* const current = lane.head < lane.size ? &lane.queue[lane.head] : nullptr;
    lane.head += times * works;
    if (lane.running) {
      lane.end += lane.end == kNever ? 0 : passed;
      lane.since += passed;
      if (Work& work = lane.queue[lane.head]; work.kind == Kind::kOperators && works > 0) {
        const uint32_t next = work.end - (current->end - current->next);
        work.issue += lane.sums[next].issue - lane.sums[work.next].issue;
        work.next = next;
        work.time = current->time;
      }
    }
    lane.awaits = lane.sleeps ? lane.queue[lane.head].mark : lane.awaits;
  }
  for (size_t i = 0; i < communicators_.size(); ++i) {
    communicators_[i].serving +=
        static_cast<uint32_t>(times) * (now.serving[i] - before.serving[i]);
  }
  Rank& rank = ranks_.front();
  for (Nanoseconds StepFigures::*part :
       {&StepFigures::compute, &StepFigures::comm, &StepFigures::overlap,
        &StepFigures::exposed_comm, &StepFigures::exposed_copy, &StepFigures::idle}) {
    rank.figures.*part += count * (now.rank.figures.*part - before.rank.figures.*part);
  }
  rank.waited += count * (now.rank.waited - before.rank.waited);
  now_ += passed;
}

// Called when all work that can start has started. Moments are those at which a run of operators
// has just started.
void Machine::pass_equal_layers() {
  const Lane& lane = lanes_[computing_];
  if (ranks_.size() > 1 || !lane.running || lane.head == last_run_) {
    return;
  }
  const Work& run = lane.queue[lane.head];
  if (run.kind != Kind::kOperators || run.span != nullptr || run.items != nullptr) {
    return;
  }
  last_run_ = lane.head;
  const size_t known = std::min(moments_seen_, moments_.size() - 1);
  Moment& now = moments_[moments_seen_++ % moments_.size()];
  take_moment(now);
  for (size_t back = 1; back <= known; ++back) {
    const Moment& before = moments_[(moments_seen_ - 1 - back) % moments_.size()];
    if (starved_at_ >= before.at) {
      return;
    }
    const size_t times = same_progress(before, now) ? times_repeated(before, now) : 0;
    if (times > 0 && pass_marks(before, now, times)) {
      pass(before, now, times);
      last_run_ = lane.head;
      moments_seen_ = 0;
      return;
    }
  }
}

}  // namespace shardlens::sim
