#pragma once

#include <cstdint>
#include <optional>

#include <QCommandLineParser>
#include <QSize>
#include <QString>
#include <QStringList>

#include "profiler/analysis/events/intervals.h"

namespace shardlens::gui {

// The command line of shardlens-gui.
struct ProgramOptions {
  QStringList paths;
  QStringList plans;
  QStringList compare;
  QStringList hardware;
  QString png, select, theme, panel, choose, dialog, model, run, config_dir;
  std::optional<analysis::Interval> range;
  std::optional<int64_t> step;
  QSize size{1280, 800};
  bool selftest = false, simulate = false, figures = false, find_best = false;
  // Whether the program ends by itself, without a user.
  [[nodiscard]] bool unattended() const { return selftest || figures || !png.isEmpty(); }
};

// Adds the options to the parser, which can then print its help. Errors: UsageError.
[[nodiscard]] ProgramOptions parse_options(QCommandLineParser& parser,
                                           const QStringList& arguments);

}  // namespace shardlens::gui
