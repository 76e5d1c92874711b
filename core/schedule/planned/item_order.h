#pragma once

#include <cstdint>
#include <vector>

#include "core/schedule/planned/awaited_communications.h"
#include "core/schedule/planned/planned.h"
#include "core/workload/communications.h"
#include "core/workload/workload.h"

namespace shardlens::schedule {

// Adds a workload's operators and communications, by plan::number_of(), to the order of a step,
// with a kWait before the item that needs the result of a communication.
//
// Ownership  refers to the workload and the order, which must outlive it.
class ItemOrder {
 public:
  ItemOrder(const plan::Workload& workload, std::vector<PlannedItem>& order)
      : workload_(workload), order_(order), awaited_(workload) {}

  void keep(bool keep) { keep_ = keep; }  // false: nothing is added
  [[nodiscard]] bool keeps() const { return keep_; }
  // False: communication of the workload that reduces gradients is not added, as in a microbatch
  // that only adds up gradients.
  void reduce_gradients(bool reduce) { reduces_ = reduce; }
  // Operators that follow each other become one item.
  void merge_operators() { merges_ = true; }

  [[nodiscard]] bool communicates(uint32_t number) const {
    return number >= workload_.operators.size();
  }

  // Operators from this number on, or one communication.
  void add(uint32_t number, uint32_t count = 1) {
    if (!keep_ || count == 0) {
      return;
    }
    if (communicates(number)) {
      const uint32_t index = number - static_cast<uint32_t>(workload_.operators.size());
      if (!reduces_ && plan::sums_gradients(workload_.communications[index])) {
        return;
      }
      return awaited_.begin(index, order_);
    }
    if (awaited_.empty()) {
      return add_operators(number, count);
    }
    for (uint32_t i = number; i < number + count; ++i) {
      awaited_.wait_before({plan::WorkloadItem::Kind::kOperator, i}, order_);
      add_operators(i, 1);
    }
  }

  // Adds the item later, together with the operators that follow it: flush() must come before any
  // other function.
  void follow(uint32_t number) {
    if (count_ > 0 && number == from_ + count_ && !communicates(number)) {
      ++count_;
      return;
    }
    add(from_, count_);
    from_ = number;
    count_ = 1;
  }
  void flush() {
    add(from_, count_);
    count_ = 0;
  }

  void wait_before(const HookEvent& event) { awaited_.wait_before(event, order_); }
  void wait_for_all() { awaited_.wait_for_all(order_); }

 private:
  void add_operators(uint32_t index, uint32_t count) {
    if (merges_) {
      if (!order_.empty() && order_.back().kind == PlannedItem::Kind::kOperator &&
          order_.back().index + order_.back().count == index) {
        order_.back().count += count;
      } else {
        order_.push_back({PlannedItem::Kind::kOperator, index, count});
      }
      return;
    }
    for (uint32_t i = 0; i < count; ++i) {
      order_.push_back({PlannedItem::Kind::kOperator, index + i});
    }
  }

  const plan::Workload& workload_;
  std::vector<PlannedItem>& order_;
  AwaitedCommunications awaited_;
  uint32_t from_ = 0, count_ = 0;  // operators that follow() has not added yet
  bool keep_ = false, merges_ = false, reduces_ = true;
};

}  // namespace shardlens::schedule
