#include "gui/app/program_options.h"

#include <string>

#include <QRegularExpression>

#include "core/base/error.h"
#include "gui/view/panels/panel_table.h"

namespace shardlens::gui {
namespace {

// "12ms", "3.5us", "1s"; without a unit, milliseconds.
std::optional<Nanoseconds> parse_time(const QString& text) {
  static const QRegularExpression kForm(QStringLiteral("^([0-9]+(?:\\.[0-9]+)?)(ns|us|ms|s|)$"));
  const auto match = kForm.match(text.trimmed());
  if (!match.hasMatch()) {
    return std::nullopt;
  }
  const QString unit = match.captured(2);
  const double scale = unit == QStringLiteral("ns")   ? 1
                       : unit == QStringLiteral("us") ? 1e3
                       : unit == QStringLiteral("s")  ? 1e9
                                                      : 1e6;
  return static_cast<Nanoseconds>(match.captured(1).toDouble() * scale);
}

analysis::Interval parse_range(const QString& text) {
  const QStringList ends = text.split(QStringLiteral(".."));
  const auto from = parse_time(ends.value(0)), to = parse_time(ends.value(1));
  if (ends.size() != 2 || !from || !to || *from >= *to) {
    throw UsageError("--range '" + text.toStdString() +
                     "': expected two times, such as 12ms..18.5ms");
  }
  return {*from, *to};
}

QSize parse_size(const QString& text) {
  static const QRegularExpression kForm(QStringLiteral("^([0-9]{3,5})x([0-9]{3,5})$"));
  const auto match = kForm.match(text);
  if (!match.hasMatch()) {
    throw UsageError("--size '" + text.toStdString() +
                     "': expected WIDTHxHEIGHT, such as 1920x1080");
  }
  return {match.captured(1).toInt(), match.captured(2).toInt()};
}

void add_options(QCommandLineParser& parser) {
  const auto option = [&parser](const char* name, const char* help, const char* value = "") {
    parser.addOption({QString::fromUtf8(name), QString::fromUtf8(help), QString::fromUtf8(value)});
  };
  parser.addPositionalArgument(QStringLiteral("PATH"),
                               QStringLiteral("traces, or a capture directory"),
                               QStringLiteral("[PATH…]"));
  option("select", "select this unit", "UNIT");
  option("step", "select this step", "N");
  option("model", "a model's config.json; its plan is simulated and shown instead of a run",
         "FILE");
  option(
      "hardware",
      "simulate each plan on this spec (a name or a file); may be repeated; required with --model",
      "SPEC");
  option("plan", "simulate this plan file too; may be repeated", "FILE");
  option("find-best", "search for the best plan, as Find best in Advice does");
  option("run",
         "run the last of the plans, as Run plan does, and write its run into this directory",
         "DIR");
  option("simulate", "show the run's own plan, simulated, below the run");
  option(
      "compare",
      "a run to compare with, or a directory of several runs; may be repeated for the run's traces",
      "PATH");
  option("range", "select this range of time, such as 12ms..18ms", "FROM..TO");
  const std::string panels = "bring this panel to the front: " + panel_names().toStdString();
  option("panel", panels.c_str(), "NAME");
  option("choose", "choose this entry of a list in the panel, such as 'By module'", "ENTRY");
  option("dialog", "open this dialog: capture, palette or shortcuts", "NAME");
  option("theme", "light or dark", "THEME");
  option("size", "size of the window [1280x800]", "WxH");
  option("export-png", "write a picture of the window and exit", "FILE");
  option("figures",
         "print the window's figures of the run and of each simulated plan as JSON, and exit");
  option("selftest", "check the window with the run (or the sample run) and exit");
  option("config-dir", "directory of the settings file", "DIR");
  parser.addHelpOption();
  parser.addVersionOption();
}

// The options that are texts or switches, as they are.
ProgramOptions plain_values(const QCommandLineParser& parser) {
  ProgramOptions out;
  out.paths = parser.positionalArguments();
  out.png = parser.value(QStringLiteral("export-png"));
  out.select = parser.value(QStringLiteral("select"));
  out.model = parser.value(QStringLiteral("model"));
  out.run = parser.value(QStringLiteral("run"));
  out.compare = parser.values(QStringLiteral("compare"));
  out.plans = parser.values(QStringLiteral("plan"));
  out.panel = parser.value(QStringLiteral("panel"));
  out.choose = parser.value(QStringLiteral("choose"));
  out.dialog = parser.value(QStringLiteral("dialog"));
  out.theme = parser.value(QStringLiteral("theme"));
  out.selftest = parser.isSet(QStringLiteral("selftest"));
  out.simulate = parser.isSet(QStringLiteral("simulate"));
  out.find_best = parser.isSet(QStringLiteral("find-best"));
  out.figures = parser.isSet(QStringLiteral("figures"));
  out.hardware = parser.values(QStringLiteral("hardware"));
  out.config_dir = parser.value(QStringLiteral("config-dir"));
  return out;
}

}  // namespace

ProgramOptions parse_options(QCommandLineParser& parser, const QStringList& arguments) {
  add_options(parser);
  if (!parser.parse(arguments)) {
    throw UsageError(parser.errorText().toStdString());
  }
  ProgramOptions out = plain_values(parser);
  if (!out.theme.isEmpty() && out.theme != QStringLiteral("light") &&
      out.theme != QStringLiteral("dark")) {
    throw UsageError("--theme: expected light or dark, found '" + out.theme.toStdString() + "'");
  }
  if (!out.choose.isEmpty() && out.panel.isEmpty()) {
    throw UsageError("--choose needs --panel, the panel whose list has the entry");
  }
  if (parser.isSet(QStringLiteral("range"))) {
    out.range = parse_range(parser.value(QStringLiteral("range")));
  }
  if (parser.isSet(QStringLiteral("size"))) {
    out.size = parse_size(parser.value(QStringLiteral("size")));
  }
  if (parser.isSet(QStringLiteral("step"))) {
    bool ok = false;
    out.step = parser.value(QStringLiteral("step")).toLongLong(&ok);
    if (!ok) {
      throw UsageError("--step: expected a number");
    }
  }
  if (!out.png.isEmpty() && !out.png.endsWith(QStringLiteral(".png"), Qt::CaseInsensitive)) {
    throw UsageError("--export-png: expected a name that ends in .png");
  }
  return out;
}

}  // namespace shardlens::gui
