#include "profiler/record/operators/operator_observer.h"

#include <algorithm>
#include <deque>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <ATen/ThreadLocalState.h>
#include <ATen/core/TensorBody.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/record_function.h>

#include "core/base/error.h"
#include "profiler/trace/spool/spool_trace.h"
#include "tests/profiler/record/recorded_run.h"

namespace shardlens::record {
namespace {

using trace::Event;
using trace::Trace;

Trace finish(SpoolRecorder& recorder) {
  recorder.step_end();
  recorder.finish();
  return spool_to_trace(trace::read_spool(recorder.path()));
}

std::vector<Event> named(const Trace& trace, std::string_view name) {
  std::vector<Event> found;
  std::copy_if(trace.events.begin(), trace.events.end(), std::back_inserter(found),
               [&](const Event& event) { return trace.name(event) == name; });
  return found;
}

TEST(OperatorObserverTest, RecordsOperatorsWithTheShapesOfProducts) {
  const TestDirectory directory;
  SpoolRecorder recorder(options_in(directory.path()));
  const at::Tensor a = at::ones({3, 4}), b = at::ones({4, 5}), bias = at::ones({5}),
                   batch = at::ones({2, 3, 3});
  recorder.step_begin(0);
  {
    const OperatorObserver observer(recorder);
    (void)at::mm(a, b);
    (void)at::addmm(bias, a, b);
    (void)at::bmm(batch, batch);
    (void)at::relu(a);
  }
  (void)at::mm(b, at::ones({5, 1}));  // not observed
  const Trace trace = finish(recorder);

  const auto products = named(trace, "aten::mm");
  ASSERT_EQ(products.size(), 1U);
  EXPECT_EQ(trace.args_json(products[0]), R"({"Input Dims": [[3, 4], [4, 5]]})");
  const auto sums = named(trace, "aten::addmm");
  ASSERT_EQ(sums.size(), 1U);
  EXPECT_EQ(trace.args_json(sums[0]), R"({"Input Dims": [[5], [3, 4], [4, 5], [], []]})");
  const auto batched = named(trace, "aten::bmm");
  ASSERT_EQ(batched.size(), 1U);
  EXPECT_EQ(trace.args_json(batched[0]), R"({"Input Dims": [[2, 3, 3], [2, 3, 3]]})");
  ASSERT_EQ(named(trace, "aten::relu").size(), 1U);
  EXPECT_EQ(trace.args_json(named(trace, "aten::relu")[0]), "");
}

// What products, views and allocations call takes no time of its own, and neither does the view
// within a reshape, which may copy instead. What follows such an operator is recorded again.
TEST(OperatorObserverTest, LeavesOutTheHelpersOfProductsViewsAndAllocations) {
  const TestDirectory directory;
  SpoolRecorder recorder(options_in(directory.path()));
  const at::Tensor a = at::ones({3, 4});
  recorder.step_begin(0);
  {
    const OperatorObserver observer(recorder);
    const at::Tensor b = a.t();
    (void)at::mm(a, b);
    (void)b.reshape({12});
    (void)a.reshape({12});  // calls aten::view
    (void)a.view({12});
    (void)at::ones({2});
  }
  const Trace trace = finish(recorder);
  for (const char* helper :
       {"aten::transpose", "aten::as_strided", "aten::resolve_conj", "aten::fill_"}) {
    EXPECT_TRUE(named(trace, helper).empty()) << helper;
  }
  for (const char* kept : {"aten::t", "aten::mm", "aten::clone", "aten::view", "aten::ones"}) {
    EXPECT_EQ(named(trace, kept).size(), 1U) << kept;
  }
  EXPECT_EQ(named(trace, "aten::reshape").size(), 2U);
}

TEST(OperatorObserverTest, RecordsBackwardNodesAndWhatTheyRun) {
  const TestDirectory directory;
  SpoolRecorder recorder(options_in(directory.path()));
  const at::Tensor a = at::ones({3, 4}), weight = at::ones({4, 5});
  weight.set_requires_grad(true);
  recorder.step_begin(0);
  {
    const OperatorObserver observer(recorder);
    at::mm(a, weight).backward(at::ones({3, 5}));
  }
  const Trace trace = finish(recorder);
  const auto nodes = named(trace, "autograd::engine::evaluate_function: MmBackward0");
  ASSERT_EQ(nodes.size(), 1U);
  const auto products = named(trace, "aten::mm");
  ASSERT_EQ(products.size(), 2U);  // one forward, one for the weight's gradient
  const Event& inner = products[1];
  EXPECT_EQ(trace.args_json(inner), R"({"Input Dims": [[4, 3], [3, 5]]})");
  EXPECT_TRUE(std::any_of(nodes.begin(), nodes.end(), [&](const Event& node) {
    return node.track == inner.track && node.start <= inner.start && inner.end() <= node.end();
  }));
}

TEST(OperatorObserverTest, FollowsAutogradToItsThreadsAndLeavesOthersOut) {
  const TestDirectory directory;
  SpoolRecorder recorder(options_in(directory.path()));
  const at::Tensor a = at::ones({3, 3});
  recorder.step_begin(0);
  {
    const OperatorObserver observer(recorder);
    (void)at::mm(a, a);
    const at::ThreadLocalState state;  // as autograd passes its state to a worker
    std::thread([&] {
      const at::ThreadLocalStateGuard guard(state);
      (void)at::mm(a, a);
    }).join();
    std::thread([&] { (void)at::relu(a); }).join();
  }
  const Trace trace = finish(recorder);
  const auto products = named(trace, "aten::mm");
  ASSERT_EQ(products.size(), 2U);
  EXPECT_NE(products[0].track, products[1].track);
  EXPECT_EQ(named(trace, "aten::relu").size(), 0U);
}

TEST(OperatorObserverTest, TakesShapesInTheFirstRecordedStepOnly) {
  const TestDirectory directory;
  SpoolRecorder recorder(options_in(directory.path()));
  const at::Tensor a = at::ones({3, 3});
  {
    const OperatorObserver observer(recorder);
    for (int64_t step = 0; step < 3; ++step) {
      recorder.step_begin(step);
      (void)at::mm(a, a);
      recorder.step_end();
    }
  }
  recorder.finish();
  const Trace trace = spool_to_trace(trace::read_spool(recorder.path()));
  const auto products = named(trace, "aten::mm");
  ASSERT_EQ(products.size(), 3U);
  EXPECT_EQ(trace.args_json(products[0]), R"({"Input Dims": [[3, 3], [3, 3]]})");
  EXPECT_EQ(trace.args_json(products[1]), "");
  EXPECT_EQ(trace.args_json(products[2]), "");
}

TEST(OperatorObserverTest, RecordsNothingBeforeTheFirstRecordedStep) {
  const TestDirectory directory;
  SpoolOptions options = options_in(directory.path());
  options.warmup = 1;
  SpoolRecorder recorder(options);
  const at::Tensor a = at::ones({3, 3});
  {
    const OperatorObserver observer(recorder);
    (void)at::mm(a, a);
    recorder.step_begin(0);
    (void)at::mm(a, a);
    recorder.step_end();
    recorder.step_begin(1);
    (void)at::relu(a);
  }
  const Trace trace = finish(recorder);
  EXPECT_EQ(named(trace, "aten::mm").size(), 0U);
  EXPECT_EQ(named(trace, "aten::relu").size(), 1U);
}

TEST(OperatorObserverTest, TellsNamesInReusedTemporaryStringsApart) {
  const TestDirectory directory;
  SpoolRecorder recorder(options_in(directory.path()));
  recorder.step_begin(0);
  {
    const OperatorObserver observer(recorder);
    for (int i = 0; i < 20; ++i) {
      const std::string name = "range " + std::to_string(i % 3);
      at::RecordFunction function(at::RecordScope::FUNCTION);
      function.before(name.c_str());
    }
  }
  const Trace trace = finish(recorder);
  EXPECT_EQ(named(trace, "range 0").size(), 7U);
  EXPECT_EQ(named(trace, "range 1").size(), 7U);
  EXPECT_EQ(named(trace, "range 2").size(), 6U);
}

// The names of backward nodes are in temporary strings. Such strings are at ever other addresses.
TEST(OperatorObserverTest, NamesAtManyAddressesTakeNoMoreMemory) {
  constexpr size_t kMost = size_t{256} << 10;
  const TestDirectory directory;
  SpoolRecorder recorder(options_in(directory.path()));
  recorder.step_begin(0);
  {
    const OperatorObserver observer(recorder);
    const std::string name = "a name too long to be in the string itself";
    // A RecordFunction copies its name to a string of its own, whose address no later one has while
    // a string of that size takes it.
    const auto record_names = [&](std::deque<std::string>& taken) {
      for (int i = 0; i < 20'000; ++i) {
        taken.push_back(name);
        at::RecordFunction function(at::RecordScope::FUNCTION);
        function.before(name.c_str());
      }
      recorder.flush();  // records that wait to be written take memory too
    };
    std::deque<std::string> first, second;
    record_names(first);
    const size_t before = ::mallinfo2().uordblks;
    record_names(second);
    second.clear();
    EXPECT_LT(::mallinfo2().uordblks, before + kMost);
  }
  EXPECT_EQ(named(finish(recorder), "a name too long to be in the string itself").size(), 40'000U);
}

TEST(OperatorObserverTest, RefusesASecondObserverAndTakesAnotherRecorderLater) {
  const TestDirectory first_directory;
  const TestDirectory second_directory;
  SpoolRecorder first(options_in(first_directory.path()));
  SpoolRecorder second(options_in(second_directory.path()));
  const at::Tensor a = at::ones({3, 3});
  first.step_begin(0);
  second.step_begin(0);
  second.text("something else, so that ids differ");
  {
    const OperatorObserver observer(first);
    EXPECT_THROW(OperatorObserver{second}, UsageError);
    (void)at::relu(a);
  }
  {
    const OperatorObserver observer(second);
    (void)at::relu(a);
  }
  EXPECT_EQ(named(finish(first), "aten::relu").size(), 1U);
  EXPECT_EQ(named(finish(second), "aten::relu").size(), 1U);
}

}  // namespace
}  // namespace shardlens::record
