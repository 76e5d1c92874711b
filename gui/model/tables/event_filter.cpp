#include "gui/model/tables/event_filter.h"

#include <algorithm>
#include <array>
#include <string>

#include "gui/model/base/shown_text.h"

namespace shardlens::gui {
namespace {

// An event of the category with this number.
trace::Event event_of(uint32_t category) {
  trace::Event out;
  const auto known = static_cast<uint32_t>(trace::kCategoryCount);
  out.category =
      category < known ? static_cast<trace::Category>(category) : trace::Category::kOther;
  out.other_category = static_cast<uint8_t>(category < known ? 0 : category - known);
  return out;
}

QString name_of_category(const trace::Trace& trace, uint32_t category) {
  return shown_text(trace.category(event_of(category)));
}

// Numbers that name a category of the trace.
uint32_t numbers_in(const trace::Trace& trace) {
  return static_cast<uint32_t>(trace::kCategoryCount + trace.other_categories.size());
}

}  // namespace

EventTest::EventTest(const trace::Trace& trace, const EventFilter& filter)
    : trace_(trace),
      window_(filter.window),
      pattern_(filter.text),
      named_(trace.strings.size(), filter.text.isEmpty() ? int8_t{1} : int8_t{-1}),
      all_(filter.category.isEmpty()) {
  for (uint32_t i = 0; !all_ && i < numbers_in(trace) && category_ == kCategories; ++i) {
    // kOther itself names nothing: its events have the names that follow.
    if (i != static_cast<uint32_t>(trace::Category::kOther) &&
        name_of_category(trace, i) == filter.category) {
      category_ = i;
    }
  }
}

bool EventTest::matches(const trace::Event& event) const {
  return pattern_.matches(shown_text(trace_.name(event)));
}

std::vector<QString> event_categories(const trace::Trace& trace) {
  std::array<int64_t, EventTest::kCategories> counts{};
  for (const trace::Event& event : trace.events) {
    ++counts[EventTest::category_of(event)];
  }
  std::vector<uint32_t> used;
  for (uint32_t i = 0; i < EventTest::kCategories; ++i) {
    if (counts[i] > 0) {
      used.push_back(i);
    }
  }
  std::ranges::stable_sort(used, std::ranges::greater{}, [&](uint32_t i) { return counts[i]; });
  std::vector<QString> out;
  for (const uint32_t i : used) {
    out.push_back(name_of_category(trace, i));
  }
  return out;
}

}  // namespace shardlens::gui
