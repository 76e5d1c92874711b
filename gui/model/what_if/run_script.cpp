#include "gui/model/what_if/run_script.h"

#include <algorithm>

#include <QRegularExpression>
#include <QStringList>

namespace shardlens::gui {
namespace {

// As a word of a shell.
QString shell_word(const QString& word) {
  static const QRegularExpression kPlain(QStringLiteral("^[A-Za-z0-9_./:=,@%+-]+$"));
  return kPlain.match(word).hasMatch()
             ? word
             : u'\'' + QString(word).replace(u'\'', QStringLiteral("'\\''")) + u'\'';
}

// A flag and its value on each line.
QString command_text(const QString& program, const QStringList& arguments) {
  QString out = program;
  for (const QString& each : arguments) {
    out += each.startsWith(QStringLiteral("--")) ? QStringLiteral(" \\\n  ") : QStringLiteral(" ");
    out += shell_word(each);
  }
  return out;
}

}  // namespace

QString directory_name(const QString& name) {
  static const QRegularExpression kOther(QStringLiteral("[^A-Za-z0-9._]+"));
  constexpr qsizetype kLongest = 60;
  QString out = QString(name).replace(kOther, QStringLiteral("-")).left(kLongest).toLower();
  if (out.endsWith(QStringLiteral(".json"))) {  // the version of a plan file
    out.chop(5);
  }
  while (out.startsWith(u'-') || out.startsWith(u'.')) {
    out.remove(0, 1);
  }
  while (out.endsWith(u'-')) {
    out.chop(1);
  }
  return out.isEmpty() ? QStringLiteral("run") : out;
}

QStringList step_flags(const plan::StepSettings& step) {
  const plan::StepSettings usual;
  QStringList out;
  if (step.accumulate != usual.accumulate) {
    out << QStringLiteral("--accumulate") << QString::number(step.accumulate);
  }
  if (step.optimizer != usual.optimizer) {
    const std::string_view name = plan::name_of(step.optimizer);
    out << QStringLiteral("--optimizer")
        << QString::fromUtf8(name.data(), static_cast<qsizetype>(name.size()));
  }
  if (step.momentum != usual.momentum) {
    out << QStringLiteral("--momentum") << QString::number(step.momentum);
  }
  if (step.clip) {
    out << QStringLiteral("--clip") << QString::number(*step.clip);
  }
  if (!step.sync_every_microbatch) {
    out << QStringLiteral("--no-sync");
  }
  return out;
}

QString run_script(CaptureOptions options,
                   const QString& title,
                   const std::string& plan_json,
                   int64_t ranks,
                   int64_t ranks_per_node) {
  const int64_t nodes = std::max<int64_t>(1, (ranks + ranks_per_node - 1) / ranks_per_node);
  options.plan = QStringLiteral("plan.json");
  options.nproc = static_cast<int>(nodes == 1 ? ranks : ranks_per_node);
  QStringList arguments = options.arguments();
  QString run;
  if (nodes == 1) {
    run = command_text(QStringLiteral("shardlens"), arguments);
  } else {
    arguments.removeFirst();  // "capture"
    run = command_text(
        QStringLiteral("torchrun"),
        QStringList{QStringLiteral("--nnodes"), QString::number(nodes),
                    QStringLiteral("--nproc-per-node"), QString::number(ranks_per_node),
                    QStringLiteral("--rdzv-backend"), QStringLiteral("c10d"),
                    QStringLiteral("--rdzv-endpoint"), QStringLiteral("$MASTER:29500"),
                    QStringLiteral("--no-python"), QStringLiteral("shardlens-worker")} +
            arguments);
    run.replace(QStringLiteral("'$MASTER:29500'"), QStringLiteral("\"$MASTER:29500\""));
  }
  return QStringLiteral("#!/bin/sh\n# %1: %2\nset -e\n%3cat > plan.json <<'PLAN'\n%4\nPLAN\n%5\n")
      .arg(QString(title).replace(u'\n', u' '),
           nodes == 1 ? QObject::tr("%1 ranks on one node").arg(ranks)
                      : QObject::tr("%1 ranks on %2 nodes; start it on each of them, with the "
                                    "name of the first one in MASTER")
                            .arg(ranks)
                            .arg(nodes),
           nodes == 1 ? QString()
                      : QStringLiteral(": \"${MASTER:?the host name of the first node}\"\n"),
           QString::fromStdString(plan_json).trimmed(), run);
}

}  // namespace shardlens::gui
