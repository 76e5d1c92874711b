#include "gui/view/window/share_page.h"

#include <QHeaderView>
#include <QTableView>
#include <QTreeView>

#include "gui/model/base/time_axis.h"
#include "gui/model/details/inspected.h"
#include "gui/model/run/run_notes.h"
#include "gui/view/panels/notes_panel.h"
#include "gui/view/panels/panel_views.h"
#include "gui/view/timeline/picture.h"
#include "gui/view/timeline/timeline_view.h"
#include "profiler/analysis/figures/figure_table.h"
#include "profiler/report/table.h"

namespace shardlens::gui {
namespace {

constexpr int kSharedRows = 500;  // of a table

QString cell(const char* tag, const QString& text) {
  return QStringLiteral("<%1>%2</%1>").arg(QLatin1String(tag), text.toHtmlEscaped());
}

bool is_hidden(const QAbstractItemView& view, const QModelIndex& index) {
  const auto* tree = qobject_cast<const QTreeView*>(&view);
  const auto* table = qobject_cast<const QTableView*>(&view);
  return tree != nullptr ? tree->isRowHidden(index.row(), index.parent())
                         : table != nullptr && table->isRowHidden(index.row());
}

// The rows as the view shows them: unfolded ones only, hidden ones left out, indented by depth.
void add_rows(QString& out,
              const QAbstractItemView& view,
              const std::vector<int>& columns,
              const QModelIndex& parent,
              int depth,
              int& left) {
  const QAbstractItemModel& model = *view.model();
  const auto* tree = qobject_cast<const QTreeView*>(&view);
  for (int row = 0; row < model.rowCount(parent); ++row) {
    const QModelIndex first = model.index(row, 0, parent);
    if (is_hidden(view, first)) {
      continue;
    }
    if (left-- <= 0) {
      return;
    }
    out += QStringLiteral("<tr>");
    for (const int column : columns) {
      const QString indent = column == 0 ? QString(depth * 2, QChar(0x00A0)) : QString();
      out += cell("td", indent + first.siblingAtColumn(column).data().toString());
    }
    out += QStringLiteral("</tr>\n");
    if (tree != nullptr && tree->isExpanded(first)) {
      add_rows(out, view, columns, first, depth + 1, left);
    }
  }
}

QString table_of(const QAbstractItemView& view) {
  const auto* tree = qobject_cast<const QTreeView*>(&view);
  const auto* table = qobject_cast<const QTableView*>(&view);
  const std::vector<int> columns =
      shown_columns(tree != nullptr ? *tree->header() : *table->horizontalHeader());
  QString out = QStringLiteral("<table><tr>");
  for (const int column : columns) {
    out += cell("th", view.model()->headerData(column, Qt::Horizontal).toString());
  }
  out += QStringLiteral("</tr>\n");
  int left = kSharedRows;
  add_rows(out, view, columns, {}, 0, left);
  out += QStringLiteral("</table>\n");
  return left >= 0 ? out : out + cell("p", QObject::tr("Only the first %1 rows.").arg(kSharedRows));
}

QString headline_of(const WindowParts& parts) {
  const analysis::WindowFigures figures =
      parts.context.rank()->partition.figures(parts.context.window());
  QString out = QStringLiteral("<table>");
  for (const analysis::FigureRow& row : analysis::figure_table()) {
    out += QStringLiteral("<tr>") + cell("td", QObject::tr(row.label.data())) +
           cell("td", row.time != nullptr
                          ? durationText(row.time(figures))
                          : QString::fromStdString(report::format_percent(row.ratio(figures)))) +
           QStringLiteral("</tr>\n");
  }
  return out + QStringLiteral("</table>\n");
}

QString what_of(const WindowParts& parts) {
  const Selection& chosen = parts.context.current();
  const RankData& rank = *parts.context.rank();
  const QString of = QObject::tr("rank %1, ").arg(rank.figures.rank);
  return of + (chosen.range ? QObject::tr("a range of %1").arg(durationText(chosen.range->length()))
               : chosen.step ? QObject::tr("step %1").arg(rank.figures.steps[*chosen.step].step)
                             : QObject::tr("all steps"));
}

}  // namespace

QByteArray share_page(const WindowParts& parts) {
  const RunData& run = *parts.context.run();
  QString out = QStringLiteral(
      "<!DOCTYPE html>\n<html><head><meta charset=\"utf-8\">\n<meta "
      "http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:; "
      "style-src 'unsafe-inline'\">\n<style>body{font:14px sans-serif;margin:2em;max-width:1600px}"
      "table{border-collapse:collapse;margin:0.5em 0}td,th{border:1px solid #ccc;padding:2px 8px;"
      "text-align:left}img{max-width:100%;border:1px solid #ccc}pre{white-space:pre-wrap}"
      "</style>\n");
  out += cell("title", parts.window.windowTitle()) + QStringLiteral("</head><body>\n");
  out += cell("h1", parts.window.windowTitle());
  if (is_simulated(run)) {
    out += cell("p", QObject::tr("This run was simulated, not measured."));
  }
  out += cell("h2", what_of(parts)) + headline_of(parts);
  out +=
      QStringLiteral("<img alt=\"%1\" src=\"data:image/svg+xml;base64,%2\">\n")
          .arg(
              QObject::tr("timeline"),
              QString::fromLatin1(svg_of(parts.window.windowTitle(), parts.timeline()).toBase64()));
  if (parts.context.canClear()) {
    out += cell("h2", QObject::tr("Selection")) +
           inspected(parts.context, parts.session.recovered(parts.context.run()));
  }
  for (const Panels::Docked& docked : parts.panels.all()) {
    const QAbstractItemView* view = docked.panel->view();
    if (view != nullptr && docked.panel->isVisible() && !docked.panel->visibleRegion().isEmpty()) {
      out += cell("h2", docked.dock->windowTitle()) + table_of(*view);
    }
  }
  const std::vector<Bookmark>& bookmarks = parts.timeline().scene().bookmarks;
  if (!bookmarks.empty()) {
    out += cell("h2", QObject::tr("Bookmarks")) + QStringLiteral("<table>");
    for (const Bookmark& mark : bookmarks) {
      out += QStringLiteral("<tr>") + cell("td", timeText(mark.time, 1e3)) + cell("td", mark.note) +
             QStringLiteral("</tr>\n");
    }
    out += QStringLiteral("</table>\n");
  }
  const QString notes = parts.panels.get<NotesPanel>().edit().toPlainText();
  if (!notes.isEmpty()) {
    out += cell("h2", QObject::tr("Notes")) + cell("pre", notes);
  }
  return (out + QStringLiteral("</body></html>\n")).toUtf8();
}

}  // namespace shardlens::gui
