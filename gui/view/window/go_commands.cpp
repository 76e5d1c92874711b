#include "gui/view/timeline/timeline_view.h"
#include "gui/view/window/command_adder.h"
#include "gui/view/window/commands.h"
#include "gui/view/window/palette_search.h"

namespace shardlens::gui {
namespace {

void add_history(CommandAdder& go, SelectionContext& context) {
  go.add(
      QStringLiteral("go.back"), QObject::tr("Back to the previous selection"),
      {QStringLiteral("Alt+Left")}, [&context] { context.back(); },
      [&context] { return context.canGoBack(); }, QObject::tr("Nothing was selected before"));
  go.add(
      QStringLiteral("go.forward"), QObject::tr("Forward to the next selection"),
      {QStringLiteral("Alt+Right")}, [&context] { context.forward(); },
      [&context] { return context.canGoForward(); },
      QObject::tr("Nothing was selected after this"));
}

void add_walks(CommandAdder& go, TimelineView& timeline) {
  const QString no_exposed = QObject::tr("No exposed collective there"),
                no_item = QObject::tr("Select an event that has a neighbour there");
  go.separate();
  go.add(
      QStringLiteral("go.nextExposed"), QObject::tr("Next exposed collective, from the worst on"),
      {QStringLiteral("E")}, [&timeline] { timeline.selectExposed(1); },
      [&timeline] { return timeline.nextExposed(1).has_value(); }, no_exposed);
  go.add(
      QStringLiteral("go.previousExposed"), QObject::tr("Exposed collective before"),
      {QStringLiteral("Shift+E")}, [&timeline] { timeline.selectExposed(-1); },
      [&timeline] { return timeline.nextExposed(-1).has_value(); }, no_exposed);
  go.add(
      QStringLiteral("go.next"), QObject::tr("Next on the same row"),
      {QStringLiteral("."), QStringLiteral("Right")}, [&timeline] { timeline.selectNeighbour(1); },
      [&timeline] { return timeline.neighbour(1).has_value(); }, no_item);
  go.add(
      QStringLiteral("go.previous"), QObject::tr("Previous on the same row"),
      {QStringLiteral(","), QStringLiteral("Left")}, [&timeline] { timeline.selectNeighbour(-1); },
      [&timeline] { return timeline.neighbour(-1).has_value(); }, no_item);
  go.add(
      QStringLiteral("go.follow"), QObject::tr("Follow the arrow to the compute that waits"),
      {QStringLiteral("]")}, [&timeline] { timeline.followArrow(1); },
      [&timeline] { return timeline.arrowEnd(1).has_value(); },
      QObject::tr("Select a collective that compute waited for"));
  go.add(
      QStringLiteral("go.followBack"), QObject::tr("Follow the arrow back to the collective"),
      {QStringLiteral("[")}, [&timeline] { timeline.followArrow(-1); },
      [&timeline] { return timeline.arrowEnd(-1).has_value(); },
      QObject::tr("Select an event with an earlier collective that was needed"));
  go.add(
      QStringLiteral("go.launch"), QObject::tr("To the launch of a kernel, or to what it launched"),
      {QStringLiteral("L")}, [&timeline] { timeline.goToLaunch(); },
      [&timeline] { return timeline.launchEnd().has_value(); },
      QObject::tr("Select an event of a GPU, idle time of it, or the host's part of its launch"));
}

void add_marks(CommandAdder& go, TimelineView& timeline, Bookmarks& bookmarks) {
  const QString no_mark = QObject::tr("No bookmark there");
  go.separate();
  go.add(QStringLiteral("go.mark"), QObject::tr("Set or remove a bookmark"), {QStringLiteral("M")},
         [&timeline] { timeline.toggleBookmark(timeline.markedTime()); });
  go.add(QStringLiteral("go.note"), QObject::tr("Bookmark with a note …"),
         {QStringLiteral("Shift+M")},
         [&timeline, &bookmarks] { bookmarks.edit(timeline.markedTime()); });
  go.add(
      QStringLiteral("go.nextMark"), QObject::tr("Next bookmark"), {QStringLiteral("Ctrl+]")},
      [&timeline] { timeline.jumpToBookmark(1); },
      [&timeline] { return timeline.nextBookmark(1).has_value(); }, no_mark);
  go.add(
      QStringLiteral("go.previousMark"), QObject::tr("Previous bookmark"),
      {QStringLiteral("Ctrl+[")}, [&timeline] { timeline.jumpToBookmark(-1); },
      [&timeline] { return timeline.nextBookmark(-1).has_value(); }, no_mark);
}

}  // namespace

void add_go_commands(const WindowParts& parts, Bookmarks& bookmarks) {
  CommandAdder go(
      parts.actions, QObject::tr("&Go"), [parts] { return parts.hasRun(); },
      QObject::tr("Open a run first"));
  add_history(go, parts.context);
  add_walks(go, parts.timeline());
  add_marks(go, parts.timeline(), bookmarks);
  go.separate();
  go.add(QStringLiteral("go.find"), QObject::tr("Find events by name"), {QStringLiteral("Ctrl+F")},
         [parts] { parts.panels.focusSearch(); });
  go.add(QStringLiteral("go.nextFound"), QObject::tr("Next found event"), {QStringLiteral("F3")},
         [parts] { parts.panels.walkFound(1); });
  go.add(QStringLiteral("go.previousFound"), QObject::tr("Previous found event"),
         {QStringLiteral("Shift+F3")}, [parts] { parts.panels.walkFound(-1); });
  go.add(
      QStringLiteral("go.palette"), QObject::tr("Command, unit, module, rank or step …"),
      {QStringLiteral("Ctrl+K"), QStringLiteral("Ctrl+Shift+P")}, [parts] { show_palette(parts); },
      [] { return true; }, {});
  SelectionContext& context = parts.context;
  go.add(
      QStringLiteral("go.measure"), QObject::tr("Measure the selected event, or up to it"),
      {QStringLiteral("R")}, [&context] { context.measureItem(); },
      [&context] { return context.itemInterval().has_value(); }, QObject::tr("Select an event"));
  go.add(
      QStringLiteral("go.clear"), QObject::tr("Clear the selection"), {QStringLiteral("Escape")},
      [&context] { context.clear(); }, [&context] { return context.canClear(); },
      QObject::tr("Nothing is selected"));
}

}  // namespace shardlens::gui
