#include "gui/app/view_texts.h"

#include <string>

#include <nlohmann/json.hpp>

#include <QAbstractItemView>
#include <QLabel>
#include <QTextDocumentFragment>
#include <QTreeView>

#include "gui/view/panels/panel.h"
#include "gui/view/widgets/headline_strip.h"

namespace shardlens::gui {
namespace {

using nlohmann::ordered_json;

void add_rows(const QAbstractItemModel& model,
              const QModelIndex& parent,
              int depth,
              bool tree,
              ordered_json& out) {
  for (int row = 0; row < model.rowCount(parent); ++row) {
    ordered_json cells = ordered_json::array();
    for (int column = 0; column < model.columnCount(parent); ++column) {
      cells.push_back(model.index(row, column, parent).data().toString().toStdString());
    }
    if (tree) {
      cells.push_back(depth);
    }
    out.push_back(std::move(cells));
    add_rows(model, model.index(row, 0, parent), depth + 1, tree, out);
  }
}

ordered_json texts_of(const Panel& panel) {
  ordered_json out{{"notes", ordered_json::array()}};
  for (const QLabel* label : panel.findChildren<QLabel*>()) {
    if (!label->text().isEmpty() && label->isVisibleTo(&panel)) {
      const QString text = Qt::mightBeRichText(label->text())
                               ? QTextDocumentFragment::fromHtml(label->text()).toPlainText()
                               : label->text();
      out["notes"].push_back(text.toStdString());
    }
  }
  const QAbstractItemView* view = panel.view();
  if (view == nullptr || view->model() == nullptr) {
    return out;
  }
  const QAbstractItemModel& model = *view->model();
  out["columns"] = out["rows"] = ordered_json::array();
  for (int column = 0; column < model.columnCount(); ++column) {
    out["columns"].push_back(
        model.headerData(column, Qt::Horizontal, Qt::DisplayRole).toString().toStdString());
  }
  add_rows(model, {}, 0, qobject_cast<const QTreeView*>(view) != nullptr, out["rows"]);
  return out;
}

}  // namespace

ordered_json view_texts(MainWindow& window) {
  ordered_json out{{"headline", window.headline().bar().text().toStdString()},
                   {"panels", ordered_json::object()}};
  for (const Panels::Docked& docked : window.panels().all()) {
    out["panels"][docked.row->id] = texts_of(*docked.panel);
  }
  return out;
}

}  // namespace shardlens::gui
