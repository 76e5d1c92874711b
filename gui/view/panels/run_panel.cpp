#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <QApplication>
#include <QClipboard>
#include <QComboBox>
#include <QDir>
#include <QFileDialog>
#include <QFormLayout>
#include <QHBoxLayout>
#include <QLabel>
#include <QLineEdit>
#include <QPlainTextEdit>
#include <QProgressBar>
#include <QPushButton>
#include <QScrollArea>
#include <QSpinBox>
#include <QTabWidget>
#include <QTableView>
#include <QVBoxLayout>

#include "gui/model/base/in_window.h"
#include "gui/model/base/time_axis.h"
#include "gui/model/compare/plan_runs.h"
#include "gui/model/what_if/run_script.h"
#include "gui/view/panel_parts/part_bars.h"
#include "gui/view/panel_parts/part_errors.h"
#include "gui/view/panels/panel.h"
#include "gui/view/panels/panel_table.h"
#include "gui/view/panels/panel_views.h"
#include "gui/view/widgets/text_lines.h"

namespace shardlens::gui {
namespace {

using Stage = PlanRun::Stage;

std::vector<ColumnTable::Column> run_columns(const PlanRuns& runs) {
  const auto of = [&runs](size_t r) -> const PlanRun& { return runs.list()[r]; };
  const auto if_measured = [of](auto&& text) {
    return [of, text](size_t r) {
      return of(r).stage == Stage::kMeasured ? text(of(r)) : QStringLiteral("–");
    };
  };
  std::vector<ColumnTable::Column> out{
      {QObject::tr("Run"), [of](size_t r) { return of(r).name; }},
      {QObject::tr("Predicted"),
       [of](size_t r) {
         return of(r).predicted.duration() > 0 ? durationText(of(r).predicted.duration())
                                               : QStringLiteral("–");
       },
       [of](size_t r) { return static_cast<double>(of(r).predicted.duration()); }, true,
       QObject::tr("The simulated step"), ColumnTable::Scale::kNone},
      {QObject::tr("Measured"),
       [of](size_t r) {
         switch (of(r).stage) {
           case Stage::kRunning:
             return QObject::tr("step %1 of %2").arg(of(r).step).arg(of(r).steps);
           case Stage::kReading:
             return QObject::tr("is read");
           case Stage::kMeasured:
             return durationText(of(r).duration);
           case Stage::kFailed:
             return QObject::tr("failed");
           default:
             return QObject::tr("stopped");
         }
       },
       [of](size_t r) { return static_cast<double>(of(r).duration); }, true,
       QObject::tr("The median step"), ColumnTable::Scale::kNone, true},
      {QObject::tr("Error"), if_measured([](const PlanRun& run) {
         return QObject::tr("%1 %").arg(signedPercent(run.error()));
       }),
       nullptr, true, QObject::tr("Predicted less measured, of the measured step")}};
  const QString titles[] = {QObject::tr("Compute"), QObject::tr("Exposed"), QObject::tr("Copies"),
                            QObject::tr("Idle")};
  for (int part = 0; part < PartBars::kParts; ++part) {
    out.push_back({titles[part], if_measured([part](const PlanRun& run) {
                     return run.measured ? QObject::tr("%1 %").arg(signedPercent(
                                               run.errors().at(static_cast<size_t>(part))))
                                         : QStringLiteral("–");
                   }),
                   nullptr, true,
                   QObject::tr("The part of the error that is %1; the parts sum to it")
                       .arg(name_of_part(part))});
  }
  out.push_back({QObject::tr("Peak"), if_measured([](const PlanRun& run) {
                   return run.peak ? changeText(static_cast<double>(run.predicted_peak),
                                                static_cast<double>(*run.peak))
                                   : QStringLiteral("–");
                 }),
                 nullptr, true,
                 QObject::tr("Predicted peak memory against the measured one, where the run "
                             "recorded its allocator")});
  out.push_back({QObject::tr("Version"), [of](size_t r) { return of(r).version; }});
  return out;
}

// " Of it compute −1.2 %, exposed communication +0.4 %, …": they sum to the error.
QString parts_text(const PlanRun& run) {
  QStringList parts;
  for (int part = 0; part < PartBars::kParts; ++part) {
    parts.append(QObject::tr("%1 %2 %").arg(
        name_of_part(part), signedPercent(run.errors().at(static_cast<size_t>(part)))));
  }
  return QObject::tr(" Of it %1.").arg(parts.join(QStringLiteral(", ")));
}

// Each part of both steps, and its error.
PartErrors::Rows rows_of(const PlanRun& run) {
  PartErrors::Rows out;
  const auto predicted = parts_of(run.predicted);
  const auto measured = parts_of(*run.measured);
  for (size_t part = 0; part < PartBars::kParts; ++part) {
    const auto time = [part](const auto& parts) {
      return durationText(static_cast<Nanoseconds>(parts.at(part)));
    };
    out.at(part) = {time(predicted), time(measured),
                    QObject::tr("%1 %").arg(signedPercent(run.errors().at(part)))};
  }
  out.back() = {durationText(run.predicted.duration()), durationText(run.duration),
                QObject::tr("%1 %").arg(signedPercent(run.error()))};
  return out;
}

// Runs the current version of the plan, and shows what was predicted and measured.
class RunPanel final : public Panel {
 public:
  explicit RunPanel(const PanelContext& context);
  void setTheme(const Theme& theme) override {
    bars_->setTheme(theme);
    errors_->setTheme(theme);
  }
  void becameVisible() override { showVersion(); }

 protected:
  void runChanged() override { takeDefaults(); }
  void fitColumns() override { elided_ = fit_columns(*table_); }
  void widthChanged() override { share_width(*table_, elided_); }

 private:
  QLineEdit* line(const QString& title, const QString& help);
  QWidget* makeForm();
  QWidget* makeScript();
  void takeDefaults();
  void showVersion();
  void showRuns();
  void showBars();
  void showScript();
  void start();
  [[nodiscard]] CaptureOptions options() const;
  [[nodiscard]] PlanRuns& runs() const { return planRuns(); }

  ColumnTable model_;
  QTableView* table_ = make_table(model_, tr("Runs of versions"));
  PartBars* bars_ = new PartBars(tr("Predicted and measured step, by part"));
  PartErrors* errors_ = new PartErrors;  // of one measured run
  QFormLayout* form_ = new QFormLayout;
  QLabel* version_ = make_note();
  QLineEdit *name_ = nullptr, *folder_ = nullptr, *tokens_ = nullptr;
  QSpinBox *steps_ = new QSpinBox, *warmup_ = new QSpinBox;
  QComboBox* device_ = new QComboBox;
  QPushButton *start_ = new QPushButton(tr("Run")), *stop_ = new QPushButton(tr("Stop"));
  QProgressBar* progress_ = new QProgressBar;
  QLabel* message_ = make_note();
  QPlainTextEdit *output_ = new QPlainTextEdit, *script_ = new QPlainTextEdit;
  QTabWidget* tabs_ = new QTabWidget;
  std::vector<int> elided_;
  QString named_for_;  // the version that the name was made from
  size_t shown_ = 0;
};

// Where it runs, in the order of the list.
constexpr std::pair<const char*, const char*> kPlaces[] = {
    {"cpu", "gloo"}, {"cpu", "emulated"}, {"cuda", "nccl"}, {"cuda", "emulated"}};

RunPanel::RunPanel(const PanelContext& context) : Panel(context), model_(run_columns(runs())) {
  model_.setErrors([this](size_t r) { return runs().list()[r].stage == Stage::kFailed; });
  model_.setTooltip([this](size_t r) {
    const PlanRun& run = runs().list()[r];
    return run.message.isEmpty() ? run.directory
                                 : QStringLiteral("%1\n%2").arg(run.directory, run.message);
  });
  setView(*table_);
  watchWidth();
  connect(table_->selectionModel(), &QItemSelectionModel::selectionChanged, this,
          [this] { showBars(); });
  output_->setReadOnly(true);
  output_->setMaximumBlockCount(2000);
  output_->setAccessibleName(tr("Output of the capture"));
  output_->setTabChangesFocus(true);
  auto* results = new QWidget;
  auto* both = new QHBoxLayout(results);
  both->setContentsMargins(0, 0, 0, 0);
  both->setSpacing(0);
  both->addWidget(table_, 1);
  auto* picture = new QVBoxLayout;
  picture->setContentsMargins(0, 0, 0, 0);
  picture->setSpacing(0);
  picture->addWidget(bars_);
  picture->addWidget(errors_);
  errors_->hide();  // its width would be the window's until there is a run
  picture->addStretch(1);
  both->addLayout(picture, 1);
  tabs_->addTab(results, tr("Predicted and measured"));
  tabs_->addTab(output_, tr("Output"));
  tabs_->addTab(makeScript(), tr("On another machine"));
  tabs_->setDocumentMode(true);
  tabs_->setAccessibleName(tr("Runs, output and script"));
  connect(tabs_, &QTabWidget::currentChanged, this, [this] { showScript(); });
  message_->setTextFormat(Qt::RichText);
  auto* right = new QVBoxLayout;
  right->setContentsMargins(0, 0, 0, 0);
  right->setSpacing(0);
  right->addWidget(message_);
  right->addWidget(tabs_, 1);
  auto* row = new QHBoxLayout(this);
  row->setContentsMargins(0, 0, 0, 0);
  row->setSpacing(0);
  row->addWidget(makeForm(), 1);
  row->addLayout(right, 3);
  connect(&runs(), &PlanRuns::changed, this, &RunPanel::showRuns);
  connect(&runs(), &PlanRuns::line, output_, &QPlainTextEdit::appendPlainText);
  connect(&session(), &PlanSession::stateChanged, this, &RunPanel::showVersion);
  connect(&session(), &PlanSession::simulatedOne, this, &RunPanel::showVersion);
  connect(&session(), &PlanSession::observed, this, &RunPanel::takeDefaults);
  takeDefaults();
  showRuns();
}

QLineEdit* RunPanel::line(const QString& title, const QString& help) {
  auto* edit = new QLineEdit;
  edit->setAccessibleName(title);
  edit->setToolTip(help);
  edit->setPlaceholderText(help);
  form_->addRow(title, edit);
  connect(edit, &QLineEdit::textChanged, this, [this] { showScript(); });
  return edit;
}

QWidget* RunPanel::makeForm() {
  auto* inside = new QWidget;
  auto* column = new QVBoxLayout(inside);
  column->setContentsMargins(8, 2, 8, 4);
  form_->setVerticalSpacing(3);
  name_ = line(tr("Name"), tr("of the run, and of its directory"));
  folder_ = line(tr("Folder"), tr("where the run's directory is made"));
  tokens_ = line(tr("Tokens"), tr("a file of tokens, or any text"));
  for (const auto& [title, box, least, most] :
       {std::tuple(tr("Steps"), steps_, 1, 10'000), std::tuple(tr("Warm-up"), warmup_, 0, 9'999)}) {
    box->setRange(least, most);
    box->setAccessibleName(title);
    form_->addRow(title, box);
    connect(box, &QSpinBox::valueChanged, this, [this] { showScript(); });
  }
  steps_->setValue(10);
  steps_->setToolTip(tr("All steps, with those of the warm-up"));
  warmup_->setValue(2);
  warmup_->setToolTip(tr("First steps that are not recorded"));
  for (const QString& place : {tr("CPU, a process a rank"), tr("CPU, emulated world"),
                               tr("GPUs, one a rank"), tr("one GPU, emulated world")}) {
    device_->addItem(place);
  }
  device_->setAccessibleName(tr("Runs on"));
  device_->setSizeAdjustPolicy(QComboBox::AdjustToMinimumContentsLengthWithIcon);
  device_->setMinimumContentsLength(8);
  form_->addRow(tr("Runs on"), device_);
  connect(device_, &QComboBox::currentIndexChanged, this, [this] { showScript(); });
  column->addLayout(form_);
  column->addStretch(1);
  auto* buttons = new QHBoxLayout;
  buttons->setContentsMargins(8, 0, 8, 2);
  buttons->addWidget(start_);
  buttons->addWidget(stop_);
  buttons->addWidget(progress_, 1);
  progress_->setAccessibleName(tr("Progress"));
  connect(start_, &QPushButton::clicked, this, &RunPanel::start);
  connect(stop_, &QPushButton::clicked, this, [this] { runs().cancel(); });
  auto* scroll = new QScrollArea;
  scroll->setWidget(inside);
  scroll->setWidgetResizable(true);
  scroll->setFrameShape(QFrame::NoFrame);
  scroll->setHorizontalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
  scroll->setAccessibleName(tr("How the plan is run"));
  scroll->setFocusPolicy(Qt::NoFocus);
  // The buttons stay in sight while the fields are scrolled.
  auto* out = new QWidget;
  out->setMinimumWidth(250);
  out->setMaximumWidth(380);
  auto* rows = new QVBoxLayout(out);
  rows->setContentsMargins(0, 0, 0, 0);
  rows->setSpacing(2);
  rows->addWidget(version_);
  rows->addLayout(buttons);
  rows->addWidget(scroll, 1);
  return out;
}

QWidget* RunPanel::makeScript() {
  script_->setReadOnly(true);
  script_->setTabChangesFocus(true);
  script_->setLineWrapMode(QPlainTextEdit::NoWrap);
  script_->setAccessibleName(tr("Script that runs the plan on another machine"));
  auto* copy = new QPushButton(tr("Copy"));
  connect(copy, &QPushButton::clicked, this,
          [this] { QApplication::clipboard()->setText(script_->toPlainText()); });
  auto* out = new QWidget;
  auto* row = new QHBoxLayout(out);
  row->setContentsMargins(0, 0, 4, 0);
  row->addWidget(script_, 1);
  row->addWidget(copy, 0, Qt::AlignTop);
  return out;
}

// Fills the form with the options that the open run was captured with.
void RunPanel::takeDefaults() {
  if (session().isOpen()) {
    const CaptureOptions of = runs().options();
    tokens_->setText(of.tokens);
    for (int i = 0; i < static_cast<int>(std::size(kPlaces)); ++i) {
      if (of.device == QLatin1String(kPlaces[i].first) &&
          of.backend == QLatin1String(kPlaces[i].second)) {
        device_->setCurrentIndex(i);
      }
    }
  }
  if (folder_->text().isEmpty()) {
    folder_->setText(QDir::home().filePath(QStringLiteral("shardlens-runs")));
  }
  showVersion();
}

void RunPanel::showVersion() {
  const QString version = runs().version();
  const QString why = runs().why();
  if (!version.isEmpty() && version != named_for_) {
    named_for_ = version;
    name_->setText(directory_name(version));
  }
  const PlanState& state = session().state();
  version_->setText(why.isEmpty() ? tr("%1: %2, batch %3, sequence %4")
                                        .arg(with_breaks(version),
                                             countText(state.world_size, tr("rank"), tr("ranks")))
                                        .arg(state.step.batch)
                                        .arg(state.step.seq.value_or(1))
                                  : with_breaks(in_window(why)));
  start_->setEnabled(why.isEmpty() && !runs().isBusy());
  start_->setToolTip(why.isEmpty() ? tr("Runs this version, as a process of its own") : why);
  showScript();
}

CaptureOptions RunPanel::options() const {
  CaptureOptions out = runs().options();
  const auto& [device, backend] = kPlaces[std::max(0, device_->currentIndex())];
  const bool was_emulated = out.backend == QStringLiteral("emulated");
  out.device = QLatin1String(device);
  out.backend = QLatin1String(backend);
  if (was_emulated && out.backend != QStringLiteral("emulated")) {
    if (const auto at = out.more.indexOf(QStringLiteral("--hardware")); at >= 0) {
      out.more.remove(at, 2);
    }
  }
  out.tokens = tokens_->text();
  out.steps = steps_->value();
  if (warmup_->value() > 0) {
    out.more << QStringLiteral("--warmup") << QString::number(warmup_->value());
  }
  out.out = QDir(folder_->text()).filePath(directory_name(name_->text()));
  return out;
}

void RunPanel::start() {
  CaptureOptions chosen = options();
  for (QLineEdit* edit : {name_, folder_, tokens_}) {
    if (edit->text().trimmed().isEmpty()) {
      message_->setText(in_error_colour(
          tr("%1: expected %2.").arg(edit->accessibleName(), edit->toolTip()), *message_));
      edit->setFocus();
      return;
    }
  }
  chosen.out = free_directory(chosen.out);
  output_->clear();
  runs().start(QDir(chosen.out).dirName(), chosen);
}

void RunPanel::showRuns() {
  const std::vector<PlanRun>& list = runs().list();
  const QModelIndexList selected = table_->selectionModel()->selectedRows();
  size_t row = selected.isEmpty() ? 0 : model_.rowAt(selected.front());
  model_.reset(list.size());
  if (list.size() != shown_) {
    shown_ = list.size();
    row = shown_ - 1;
    fitColumns();
    widthChanged();
  }
  show_row(*table_, row < list.size() ? model_.indexOf(row) : QModelIndex());
  const bool busy = runs().isBusy();
  stop_->setEnabled(busy);
  progress_->setVisible(busy);
  const PlanRun* last = list.empty() ? nullptr : &list.back();
  if (busy && last != nullptr) {
    const bool counts = last->stage == Stage::kRunning && last->step > 0;
    progress_->setRange(0, counts ? last->steps : 0);
    progress_->setValue(counts ? last->step : 0);
  }
  const auto plain = [](const QString& text) { return with_breaks(text).toHtmlEscaped(); };
  if (last == nullptr) {
    message_->setText(
        tr("Runs the current version of the plan and measures it. It is opened as B "
           "next to its prediction."));
  } else if (last->stage == Stage::kFailed) {
    message_->setText(in_error_colour(
        tr("%1 failed: %2").arg(last->name, with_breaks(in_window(last->message))), *message_));
  } else if (last->stage == Stage::kMeasured) {
    message_->setText(
        plain(tr("%1: %2 measured, %3 predicted, %4 %.")
                  .arg(last->name, durationText(last->duration),
                       durationText(last->predicted.duration()), signedPercent(last->error()))) +
        (last->measured ? plain(parts_text(*last))
                        : plain(tr(" Its parts are not known: the measured step is not in the "
                                   "analysis of the run."))));
  } else {
    message_->setText(plain(last->stage == Stage::kRunning ? tr("%1 runs …").arg(last->name)
                            : last->stage == Stage::kReading
                                ? tr("%1 is read …").arg(last->name)
                                : tr("%1 was stopped.").arg(last->name)));
  }
  showVersion();
  showBars();
}

// Shows the bars of the selected run, else of all.
void RunPanel::showBars() {
  std::vector<size_t> which;
  for (const QModelIndex& index : table_->selectionModel()->selectedRows()) {
    which.push_back(model_.rowAt(index));
  }
  std::vector<PartBars::Bar> bars;
  for (const size_t r : which) {
    const PlanRun& run = runs().list()[r];
    bars.push_back({tr("predicted"), durationText(run.predicted.duration()),
                    parts_of(run.predicted), false, false, run.version});
    if (run.stage != Stage::kMeasured) {
      continue;
    }
    PartBars::Bar measured{tr("measured"), durationText(run.duration), {}, false, false, run.name};
    measured.failed = !run.measured;
    if (run.measured) {
      measured.parts = parts_of(*run.measured);
    }
    bars.push_back(measured);
  }
  const PlanRun* one = which.size() == 1 ? &runs().list()[which.front()] : nullptr;
  const bool known = one != nullptr && one->stage == Stage::kMeasured && one->measured;
  if (known) {
    errors_->show(rows_of(*one));
  }
  errors_->setVisible(known);
  bars_->setLegend(!known);
  bars_->setVisible(!bars.empty());
  bars_->show(std::move(bars));
}

void RunPanel::showScript() {
  if (tabs_->currentWidget() == nullptr || !tabs_->currentWidget()->isAncestorOf(script_)) {
    return;
  }
  script_->setPlainText(session().isOpen() ? runs().script(options()) : QString());
}

}  // namespace

PanelPointer make_run_panel(const PanelContext& context) {
  return std::make_unique<RunPanel>(context);
}

}  // namespace shardlens::gui
