#include "gui/model/lanes/lane_arrangement.h"

#include <algorithm>

namespace shardlens::gui {

QStringList LaneArrangement::arranged(const QStringList& lanes) const {
  QStringList out;
  for (const QString& lane : order) {
    if (lanes.contains(lane) && !out.contains(lane)) {
      out.append(lane);
    }
  }
  for (qsizetype i = 0; i < lanes.size(); ++i) {
    if (!out.contains(lanes[i])) {
      out.insert(i == 0 ? 0 : out.indexOf(lanes[i - 1]) + 1, lanes[i]);
    }
  }
  return out;
}

bool LaneArrangement::move(const QString& lane, int way, const QStringList& lanes) {
  QStringList all = arranged(lanes);
  const qsizetype from = all.indexOf(lane);
  qsizetype to = from + way;
  while (to >= 0 && to < all.size() && hidden.contains(all[to])) {
    to += way;
  }
  if (from < 0 || to < 0 || to >= all.size()) {
    return false;
  }
  all.move(from, to);
  for (const QString& other : order) {  // of other runs
    if (!all.contains(other)) {
      all.append(other);
    }
  }
  order = all;
  return true;
}

void LaneArrangement::toggleHidden(const QString& lane) {
  if (hidden.removeAll(lane) == 0) {
    hidden.append(lane);
  }
}

void LaneArrangement::togglePin(const Pin& pin) {
  if (std::erase(pinned, pin) == 0) {
    pinned.push_back(pin);
  }
}

bool LaneArrangement::isPinned(const Pin& pin) const {
  return std::ranges::find(pinned, pin) != pinned.end();
}

}  // namespace shardlens::gui
