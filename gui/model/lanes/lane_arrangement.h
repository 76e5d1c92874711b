#pragma once

#include <cstdint>
#include <vector>

#include <QString>
#include <QStringList>

namespace shardlens::gui {

// How the user arranged the lanes of the timeline. Lanes are named by what they show ("compute",
// "all-gather", …), so that an arrangement holds for every rank and every run.
struct LaneArrangement {
  struct Pin {
    int64_t rank = 0;  // its number, not its position
    QString lane;
    friend bool operator==(const Pin&, const Pin&) = default;
  };
  QStringList order;        // from top to bottom; lanes that it lacks stay below their neighbours
  QStringList hidden;       // of all ranks
  std::vector<Pin> pinned;  // shown above all ranks too, without scrolling
  bool nested = false;      // operators of the host are shown with those that they call
  friend bool operator==(const LaneArrangement&, const LaneArrangement&) = default;

  // The given lanes, which are in their default order, in the order of the arrangement; hidden ones
  // are included.
  [[nodiscard]] QStringList arranged(const QStringList& lanes) const;
  // Moves a lane by one place among those of `lanes` that are not hidden, down (+1) or up (-1).
  // Returns false if there is no such place.
  bool move(const QString& lane, int way, const QStringList& lanes);
  void toggleHidden(const QString& lane);
  void togglePin(const Pin& pin);
  [[nodiscard]] bool isPinned(const Pin& pin) const;
  [[nodiscard]] bool isFirst() const { return *this == LaneArrangement{}; }
};

}  // namespace shardlens::gui
