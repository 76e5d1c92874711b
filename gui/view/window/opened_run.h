#pragma once

#include <QString>
#include <QStringList>

namespace shardlens::gui {

// The run or model that is open, by the paths that the user gave.
struct OpenedRun {
  QStringList paths;      // of the run; or the config.json of a model
  bool is_model = false;  // a model without a run
  QString hardware;       // that the model is simulated on
  QStringList compared;   // of run B

  // The name of a run in titles: the last part of its first path.
  [[nodiscard]] static QString label(const QStringList& paths);
};

}  // namespace shardlens::gui
