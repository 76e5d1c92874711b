#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <QString>

#include "gui/model/base/text_pattern.h"
#include "profiler/analysis/events/intervals.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::gui {

// Which events of a rank are listed.
struct EventFilter {
  std::optional<analysis::Interval> window;  // in the rank's own time: events that overlap it
  QString text;                              // that the name contains, as TextPattern
  QString category;                          // as event_categories() names it; "": all
  friend bool operator==(const EventFilter&, const EventFilter&) = default;
};

// Tests events of one trace. There are few names but many events, so each name is matched once.
class EventTest {
 public:
  EventTest(const trace::Trace& trace, const EventFilter& filter);
  // Whether it is in the window and of the category.
  [[nodiscard]] bool isInside(const trace::Event& event) const {
    return (!window_ || (event.start < window_->end && event.end() >= window_->start)) &&
           (all_ || category_of(event) == category_);
  }
  [[nodiscard]] bool isNamed(const trace::Event& event) {
    int8_t& known = named_[event.name];
    if (known < 0) {
      known = matches(event) ? 1 : 0;
    }
    return known == 1;
  }
  // A number of the event's category, below kCategories.
  [[nodiscard]] static uint32_t category_of(const trace::Event& event) {
    return event.category == trace::Category::kOther
               ? static_cast<uint32_t>(trace::kCategoryCount) + event.other_category
               : static_cast<uint32_t>(event.category);
  }
  static constexpr uint32_t kCategories = static_cast<uint32_t>(trace::kCategoryCount) + 256;

 private:
  [[nodiscard]] bool matches(const trace::Event& event) const;
  const trace::Trace& trace_;
  std::optional<analysis::Interval> window_;
  TextPattern pattern_;
  std::vector<int8_t> named_;  // by StringId; -1: not known yet
  bool all_ = true;            // categories
  uint32_t category_ = kCategories;
};

// The categories of a trace's events ("kernel", "cpu_op", …), the most frequent first.
// Complexity: a pass over all events.
[[nodiscard]] std::vector<QString> event_categories(const trace::Trace& trace);

}  // namespace shardlens::gui
