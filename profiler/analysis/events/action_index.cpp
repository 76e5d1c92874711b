#include "profiler/analysis/events/action_index.h"

#include <algorithm>

namespace shardlens::analysis {

using schedule::Op;

ActionIndex::ActionIndex(const trace::Trace& trace) {
  if (trace.actions.empty() && trace.hooks.empty()) {
    return;
  }
  for (const trace::Event& event : trace.events) {
    if (const trace::ActionArgs* args = trace.action(event)) {
      actions_.push_back({args->seq, event.start, args});
    } else if (const trace::HookArgs* hook = trace.hook(event)) {
      hooks_.emplace(hook->seq, hook->hook);
    }
  }
  std::stable_sort(actions_.begin(), actions_.end(),
                   [](const Entry& a, const Entry& b) { return a.seq < b.seq; });
  for (size_t i = 0; i < actions_.size(); ++i) {
    const schedule::Action& action = actions_[i].args->action;
    const bool blocks = action.op == Op::kHostWait || (action.op == Op::kStreamWait &&
                                                       action.stream == schedule::Stream::kCompute);
    if (blocks && action.event != schedule::kNoEvent) {
      waits_[action.event].push_back(i);
    }
  }
}

size_t ActionIndex::position(uint32_t seq) const {
  const auto it = std::lower_bound(actions_.begin(), actions_.end(), seq,
                                   [](const Entry& e, uint32_t s) { return e.seq < s; });
  return it != actions_.end() && it->seq == seq ? static_cast<size_t>(it - actions_.begin())
                                                : actions_.size();
}

const ActionIndex::Entry* ActionIndex::action(uint32_t seq) const {
  const size_t at = position(seq);
  return at < actions_.size() ? &actions_[at] : nullptr;
}

const HookEvent* ActionIndex::hook_of(const Entry& action) const {
  const auto it = hooks_.find(action.args->hook_seq);
  return it == hooks_.end() ? nullptr : &it->second;
}

std::optional<Nanoseconds> ActionIndex::needed_at(uint32_t seq) const {
  const size_t at = position(seq);
  if (at == actions_.size()) {
    return std::nullopt;
  }
  const schedule::Stream stream = actions_[at].args->action.stream;
  for (size_t i = at + 1; i < actions_.size(); ++i) {
    const schedule::Action& action = actions_[i].args->action;
    if (action.op != Op::kRecord || action.stream != stream) {
      continue;
    }
    const auto waits = waits_.find(action.event);
    if (waits == waits_.end()) {
      return std::nullopt;
    }
    const auto first = std::upper_bound(waits->second.begin(), waits->second.end(), i);
    return first == waits->second.end() ? std::nullopt : std::optional(actions_[*first].time);
  }
  return std::nullopt;
}

ActionIndex::Limiter ActionIndex::limiter(uint32_t seq) const {
  const size_t at = position(seq);
  Limiter found;
  if (at == actions_.size() || actions_[at].args->hook_seq == 0) {
    return found;
  }
  for (size_t i = at; i-- > 0 && actions_[i].args->hook_seq == actions_[at].args->hook_seq;) {
    const schedule::Action& action = actions_[i].args->action;
    if (action.op == Op::kAllGather || action.op == Op::kReduceScatter ||
        action.op == Op::kAllReduce) {
      break;
    }
    if (action.cause != schedule::Cause::kLimiter) {
      continue;
    }
    const bool stream_wait = action.op == Op::kStreamWait;
    if (action.op == Op::kHostWait ||
        (stream_wait && action.stream == schedule::Stream::kCompute)) {
      // The time of an action is when its execution began, so the wait lasts until the next action.
      found.host_waited += actions_[i + 1].time - actions_[i].time;
    } else if (stream_wait && action.stream == actions_[at].args->action.stream) {
      found.stream_waits = true;
    }
  }
  return found;
}

}  // namespace shardlens::analysis
