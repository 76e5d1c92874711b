#include "tests/core/schedule/torch_program.h"

#include <utility>

namespace shardlens::schedule::test {
namespace {

using Node = AutogradQueue::Node;

Schedule make_schedule(const std::vector<UnitSpec>& specs, const ScheduleOptions& options) {
  Result<Schedule> schedule = Schedule::make(specs, options);
  if (!schedule.ok()) {
    throw std::runtime_error(schedule.message());
  }
  return std::move(schedule.value());
}

}  // namespace

TorchProgram::TorchProgram(const OrdersCase& test,
                           plan::Layout layout,
                           FinalCallback final_callback)
    : test_(test),
      final_callback_(final_callback),
      units_(units_of(test)),
      specs_(specs_of(test, units_, layout)),
      schedule_(make_schedule(specs_, options_of(test, layout))),
      ledger_(specs_, options_of(test, layout)),
      leaves_(units_.size(), AutogradQueue::kNone),
      views_(units_.size(), AutogradQueue::kNone),
      gradient_(units_.size(), false),
      in_pre_backward_(units_.size(), false),
      after_backward_(units_.size(), false),
      ran_pre_backward_(units_.size(), false),
      reshard_only_(units_.size(), false),
      full_(units_.size(), false) {
  if (test.special == "set_raf_true" || test.special == "set_raf_false") {
    set(Setting::Kind::kReshardAfterForward, test.special == "set_raf_true", 0, Recurse::kNo);
  }
  if (test.special == "no_unshard_emb") {
    set(Setting::Kind::kUnshardInBackward, false, 1, Recurse::kNo);
  }
}

void TorchProgram::set(Setting::Kind kind, bool flag, UnitId unit, Recurse recurse) {
  Setting setting;
  setting.kind = kind;
  setting.flag = flag;
  if (const Result<void> done = schedule_.set(unit, setting, recurse); !done.ok()) {
    failure_ += done.message() + "\n";
  }
}

// FSDP2's setters are called before a microbatch; FSDP1's no_sync encloses it.
void TorchProgram::set_flags(const std::string& label) {
  const bool last = label != "acc" && label != "micro";
  if (test_.fsdp1()) {
    set(Setting::Kind::kGradientSync, label != "acc");
    return;
  }
  if (test_.special == "all_reduce_last") {
    set(Setting::Kind::kAllReduce, last);
  } else if (label == "acc" || label == "sync") {
    set(Setting::Kind::kGradientSync, label != "acc");
  }
  if (test_.special == "is_last") {
    set(Setting::Kind::kLastBackward, last);
  }
  if (test_.special == "keep") {
    set(Setting::Kind::kReshardAfterBackward, last);
  }
}

void TorchProgram::write(char code, UnitId unit) {
  if (!events_.empty()) {
    events_ += ' ';
  }
  events_ += code;
  events_ += units_[unit].name;
}

AutogradQueue::Tag TorchProgram::tag(Happening what, UnitId unit) {
  tags_.emplace_back(what, unit);
  return static_cast<AutogradQueue::Tag>(tags_.size() - 1);
}

void TorchProgram::render(const Action& action, const Action* before) {
  const bool fsdp1 = test_.fsdp1();
  switch (action.op) {
    case Op::kAllGather:
      ++counts_[in_backward_ ? 1 : 0];
      return write('A', action.unit);
    case Op::kReduceScatter:
      ++counts_[2];
      return write('R', action.unit);
    case Op::kAllReduce:
      ++counts_[3];
      return write('X', action.unit);
    case Op::kHostWait:
      return write('L', action.unit);
    case Op::kStreamWait:  // recorded: FSDP1's wait of compute for its whole unshard stream
      if (fsdp1 && action.stream == Stream::kCompute && action.cause != Cause::kBackwardEnd) {
        write('W', action.unit);
      }
      return;
    case Op::kUseFull:
      if (!fsdp1 && !full_[action.unit]) {
        write('W', action.unit);
      }
      full_[action.unit] = true;
      if (fsdp1 && grad_mode_ && !in_backward_ && !units_[action.unit].frozen) {
        const Node leaf = parameters(action.unit);
        views_[action.unit] = graph_.add(std::array{leaf});
      }
      return;
    case Op::kUseShard: {
      const bool sub = before != nullptr && before->op == Op::kCopyOut &&
                       before->buffer.kind == BufferKind::kSubShard;
      full_[action.unit] = false;
      if (!fsdp1) {
        write(sub ? 'K' : 'S', action.unit);
      }
      return;
    }
    case Op::kFree:
      if (fsdp1 && action.buffer.kind == BufferKind::kUnsharded) {
        write('S', action.unit);
      }
      return;
    default:
      return;
  }
}

void TorchProgram::raise(Hook hook, UnitId unit, Grads grads, bool recompute) {
  const HookEvent event{
      .hook = hook, .unit = unit, .grad_mode = grad_mode_, .recompute = recompute, .grads = grads};
  ActionList actions;
  if (const Result<void> done = schedule_.on(event, actions); !done.ok()) {
    failure_ += done.message() + "\n";
    return;
  }
  for (size_t i = 0; i < actions.size(); ++i) {
    if (const Result<void> kept = ledger_.consume(actions[i]);
        !kept.ok() && failure_.size() < 1000) {
      failure_ += kept.message() + "\n";
    }
    render(actions[i], i > 0 ? &actions[i - 1] : nullptr);
    actions_.push_back(actions[i]);
  }
}

// The accumulator of the unit's parameters (FSDP2) or of its flat parameter (FSDP1).
Node TorchProgram::parameters(UnitId unit) {
  if (leaves_[unit] == AutogradQueue::kNone) {
    leaves_[unit] = graph_.add_accumulator();
    graph_.at(leaves_[unit], tag(Happening::kGradient, unit));
    if (test_.fsdp1()) {
      graph_.at(leaves_[unit], tag(Happening::kPostBackward, unit));
    }
  }
  return leaves_[unit];
}

TorchProgram::Value TorchProgram::enter(UnitId unit, Value input) {
  if (unit == 0) {
    raise(Hook::kRootPreForward, unit);
  }
  write('F', unit);
  raise(Hook::kPreForward, unit);
  if (!grad_mode_ || !has_parameters(unit) || input.node == AutogradQueue::kNone) {
    return input;
  }
  if (!test_.fsdp1()) {  // RegisterPostBackwardFunction
    const Node node = graph_.add(std::array{input.node});
    graph_.at(node, tag(Happening::kPostBackward, unit));
    return {node};
  }
  if (units_[unit].frozen && !reshard_only_[unit]) {  // register_multi_grad_hook on the input
    reshard_only_[unit] = true;
    graph_.before(input.node, tag(Happening::kReshardOnly, unit));
  }
  return input;
}

TorchProgram::Value TorchProgram::apply(UnitId unit, Value input, bool uses_parameters) {
  const bool trains = uses_parameters && !units_[unit].frozen;
  if (!grad_mode_ || (input.node == AutogradQueue::kNone && !trains)) {
    return {};
  }
  const Node weights = !trains         ? AutogradQueue::kNone
                       : test_.fsdp1() ? views_[unit]
                                       : parameters(unit);
  return {graph_.add(std::array{input.node, weights})};
}

void TorchProgram::leave(UnitId unit, const std::vector<Value>& outputs) {
  bool trains = false;
  for (const Value& output : outputs) {
    trains = trains || output.node != AutogradQueue::kNone;
  }
  raise(Hook::kPostForward, unit, trains ? Grads::kAll : Grads::kNone);
  write('f', unit);
  for (const Value& output : outputs) {
    if (output.node != AutogradQueue::kNone) {
      graph_.before(output.node, tag(Happening::kPreBackward, unit));
    }
  }
}

// Linear, ReLU, Linear.
TorchProgram::Value TorchProgram::block(UnitId unit, Value input) {
  Value x = apply(unit, input, true);
  x = apply(unit, x, false);
  x = apply(unit, x, true);
  if ((test_.ac == "outside" || test_.ac == "composable") && x.node != AutogradQueue::kNone) {
    // The first saved tensor that backward reads.
    graph_.at(x.node, tag(Happening::kRecompute, unit));
  }
  return x;
}

std::vector<TorchProgram::Value> TorchProgram::forward_groups(Value input) {
  enter(0, input);
  Value x = input;
  const std::array<std::pair<UnitId, int>, 5> order{{{1, 0}, {3, 1}, {4, 2}, {5, 2}, {2, 0}}};
  for (const auto& [unit, blocks] : order) {
    x = enter(unit, x);
    for (int i = 0; i < blocks; ++i) {
      x = block(unit, x);
    }
    const int linears = blocks > 0 ? 0 : unit == 1 ? 1 : 2;
    for (int i = 0; i < linears; ++i) {
      x = apply(unit, x, true);
    }
    leave(unit, {x});
  }
  leave(0, {x});
  return {x};
}

std::vector<TorchProgram::Value> TorchProgram::forward_branches(Value input) {
  enter(0, input);
  const auto linear = [this](UnitId unit, Value x) {
    x = apply(unit, enter(unit, x), true);
    leave(unit, {x});
    return x;
  };
  const Value x = linear(1, input);
  const Value left = linear(2, x);
  const Value right = linear(3, x);
  leave(0, {left, right});
  return {left, right};
}

std::vector<TorchProgram::Value> TorchProgram::forward(Value input) {
  if (test_.special == "groups" || test_.special == "no_unshard_emb") {
    return forward_groups(input);
  }
  if (test_.special == "branches") {
    return forward_branches(input);
  }
  const auto run_block = [this](int64_t i, Value x) {
    const auto unit = static_cast<UnitId>(i + 1);
    x = block(unit, enter(unit, x));
    leave(unit, {x});
    return x;
  };
  Value x = enter(0, input);
  if (test_.root) {
    x = apply(0, x, true);
  }
  if (test_.unused_loss) {
    run_block(*test_.unused_loss, x);
  }
  for (const int64_t i : test_.calls) {
    x = run_block(i, x);
  }
  if (test_.root) {
    x = apply(0, x, true);
  }
  leave(0, {x});
  return {x};
}

void TorchProgram::post_backward(UnitId unit) {
  write('P', unit);
  const bool has = gradient_[unit];
  gradient_[unit] = false;
  raise(Hook::kGradsReady, unit, has ? Grads::kAll : Grads::kNone);
  write('p', unit);
  in_pre_backward_[unit] = false;
  after_backward_[unit] = true;
}

void TorchProgram::happens(Happening what, UnitId unit) {
  switch (what) {
    case Happening::kPreBackward: {
      const bool first = !has_parameters(unit) ||
                         !(test_.fsdp1() ? ran_pre_backward_[unit] : in_pre_backward_[unit]);
      if (!callback_queued_ && (!test_.fsdp1() || unit == 0)) {
        callback_queued_ = true;
        callback_unit_ = unit;
      }
      if (first) {
        write('B', unit);
      }
      raise(Hook::kPreBackward, unit);
      if (first) {
        write('b', unit);
      }
      in_pre_backward_[unit] = ran_pre_backward_[unit] = true;
      after_backward_[unit] = false;
      return;
    }
    case Happening::kPostBackward:
      return post_backward(unit);
    case Happening::kReshardOnly:
      write('O', unit);
      raise(Hook::kGradsReady, unit, Grads::kNone);
      return write('o', unit);
    case Happening::kRecompute:
      write('Q', unit);
      return raise(Hook::kPreForward, unit, Grads::kAll, /*recompute=*/true);
    case Happening::kGradient:
      gradient_[unit] = true;
      return;
  }
}

void TorchProgram::final_callback() {
  write('C', callback_unit_);
  if (!test_.fsdp1()) {
    for (UnitId unit = 0; unit < units_.size(); ++unit) {
      const bool raised = final_callback_ == FinalCallback::kPerUnit || gradient_[unit];
      if (has_parameters(unit) && !after_backward_[unit] && raised) {
        post_backward(unit);
      }
      after_backward_[unit] = false;
      // A state is listed once per module. From the second time on it is idle again, and
      // post_backward has nothing to do.
      for (int64_t module = 1;
           module < units_[unit].modules && final_callback_ == FinalCallback::kPerUnit; ++module) {
        post_backward(unit);
        after_backward_[unit] = false;
      }
    }
  }
  raise(Hook::kBackwardEnd, 0);
  write('c', callback_unit_);
  callback_queued_ = false;
  std::fill(in_pre_backward_.begin(), in_pre_backward_.end(), false);
  std::fill(ran_pre_backward_.begin(), ran_pre_backward_.end(), false);
  std::fill(reshard_only_.begin(), reshard_only_.end(), false);
}

void TorchProgram::backward(Node loss) {
  graph_.backward(loss,
                  [this](AutogradQueue::Tag tag) { happens(tags_[tag].first, tags_[tag].second); });
  final_callback();
}

void TorchProgram::abort() {
  raise(Hook::kAbort, 0);
}

std::string TorchProgram::run(const std::string& label) {
  events_.clear();
  counts_ = {};
  actions_.clear();
  graph_.clear();
  tags_.clear();
  std::fill(leaves_.begin(), leaves_.end(), AutogradQueue::kNone);
  std::fill(views_.begin(), views_.end(), AutogradQueue::kNone);
  set_flags(label);
  grad_mode_ = label != "eval";
  in_backward_ = false;
  const auto sum = [this](Node node) { return graph_.add(std::array{node}); };
  Value input;
  if (test_.xgrad) {
    input.node = graph_.add_accumulator();
  }
  std::vector<Value> outputs = forward(input);
  Node loss = AutogradQueue::kNone;
  if (label == "two") {
    const Node first = sum(outputs[0].node);
    outputs = forward(input);
    loss = graph_.add(std::array{first, sum(outputs[0].node)});
  }
  events_ += " |";
  in_backward_ = true;
  if (test_.special == "manual_reshard") {
    for (UnitId unit = 0; unit < units_.size(); ++unit) {
      raise(Hook::kReshard, unit);
    }
  }
  if (test_.special == "branches") {
    set(Setting::Kind::kLastBackward, false);
    backward(sum(outputs[1].node));
    events_ += " |";
    set(Setting::Kind::kLastBackward, true);
    backward(sum(outputs[0].node));
  } else if (label != "eval" && label != "fwd") {
    backward(loss != AutogradQueue::kNone ? loss : sum(outputs[0].node));
  }
  in_backward_ = false;
  grad_mode_ = true;
  if (label == "sync" || label == "two") {
    raise(Hook::kOptimizerDone, 0);
  }
  return events_;
}

}  // namespace shardlens::schedule::test
