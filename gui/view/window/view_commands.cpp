#include <QMessageBox>

#include "gui/view/timeline/timeline_view.h"
#include "gui/view/widgets/command_palette.h"
#include "gui/view/window/command_adder.h"
#include "gui/view/window/commands.h"

namespace shardlens::gui {
namespace {

void add_moves(CommandAdder& view, TimelineView& timeline) {
  view.add(QStringLiteral("view.in"), QObject::tr("Zoom in"),
           {QStringLiteral("W"), QStringLiteral("Ctrl++")}, [&timeline] { timeline.zoomBy(0.75); });
  view.add(QStringLiteral("view.out"), QObject::tr("Zoom out"),
           {QStringLiteral("S"), QStringLiteral("Ctrl+-")},
           [&timeline] { timeline.zoomBy(1 / 0.75); });
  view.add(QStringLiteral("view.left"), QObject::tr("Pan left"), {QStringLiteral("A")},
           [&timeline] { timeline.panBy(-0.15); });
  view.add(QStringLiteral("view.right"), QObject::tr("Pan right"), {QStringLiteral("D")},
           [&timeline] { timeline.panBy(0.15); });
  view.add(QStringLiteral("view.up"), QObject::tr("Scroll up"), {QStringLiteral("Shift+W")},
           [&timeline] { timeline.scrollBy(-60); });
  view.add(QStringLiteral("view.down"), QObject::tr("Scroll down"), {QStringLiteral("Shift+S")},
           [&timeline] { timeline.scrollBy(60); });
  view.separate();
  view.add(QStringLiteral("view.fit"), QObject::tr("Fit the selection"), {QStringLiteral("F")},
           [&timeline] { timeline.fitSelection(); });
  view.add(QStringLiteral("view.all"), QObject::tr("Fit the whole run"), {QStringLiteral("0")},
           [&timeline] { timeline.fitAll(); });
  view.separate();
  view.add(QStringLiteral("view.fold"), QObject::tr("Fold all ranks"),
           {QStringLiteral("Ctrl+Shift+F")}, [&timeline] { timeline.setAllCollapsed(true); });
  view.add(QStringLiteral("view.unfold"), QObject::tr("Unfold all ranks"),
           {QStringLiteral("Ctrl+Shift+U")}, [&timeline] { timeline.setAllCollapsed(false); });
}

}  // namespace

void add_view_commands(const WindowParts& parts, std::function<void()> switch_theme) {
  CommandAdder view(
      parts.actions, QObject::tr("&View"), [parts] { return parts.hasRun(); },
      QObject::tr("Open a run first"));
  add_moves(view, parts.timeline());
  add_lane_commands(parts);
  view.separate();
  view.add(QStringLiteral("view.dark"), QObject::tr("Switch between light and dark"),
           {QStringLiteral("Ctrl+Shift+D")}, std::move(switch_theme), [] { return true; }, {});
  view.add(QStringLiteral("view.panels"), QObject::tr("Give the panels the whole window, or not"),
           {QStringLiteral("F11")}, [parts] { parts.panels.setLarge(!parts.panels.isLarge()); });
  view.add(QStringLiteral("view.reset"), QObject::tr("Reset the layout of the panels"), {},
           [parts] { parts.panels.arrange(); });
  view.separate();
  for (const Panels::Docked& docked : parts.panels.all()) {
    const QString id = QLatin1String(docked.row->id);
    view.add(QStringLiteral("panel.") + id,
             QObject::tr("Show the panel %1").arg(title_of(*docked.row)), {},
             [parts, id] { parts.panels.raise(id); });
  }
}

void add_help_commands(const WindowParts& parts) {
  CommandAdder help(parts.actions, QObject::tr("&Help"), [] { return true; }, {});
  help.add(QStringLiteral("help.shortcuts"), QObject::tr("Shortcuts"),
           {QStringLiteral("?"), QStringLiteral("F1")}, [parts] {
             auto* sheet = new ShortcutSheet(parts.actions, &parts.window);
             sheet->setAttribute(Qt::WA_DeleteOnClose);
             sheet->open();
           });
  help.add(QStringLiteral("help.about"), QObject::tr("About Shardlens"), {}, [parts] {
    auto* box = new QMessageBox(
        QMessageBox::NoIcon, QObject::tr("About Shardlens"),
        QObject::tr("Shardlens %1\nWhich rank owns which bytes, when each collective "
                    "runs, and how much of it is hidden.\nMIT license")
            .arg(QStringLiteral(SHARDLENS_VERSION)),
        QMessageBox::Ok, &parts.window);
    box->setAttribute(Qt::WA_DeleteOnClose);
    box->open();
  });
}

}  // namespace shardlens::gui
