#include "gui/view/window/run_opener.h"

#include <utility>

#include <QApplication>
#include <QDir>
#include <QFileDialog>
#include <QFileInfo>
#include <QInputDialog>

#include "core/base/error.h"
#include "gui/model/base/in_window.h"
#include "gui/view/timeline/timeline_view.h"
#include "gui/view/widgets/capture_dialog.h"
#include "gui/view/widgets/spec_file.h"
#include "gui/view/widgets/start_page.h"
#include "sim/hardware/hardware_spec.h"

namespace shardlens::gui {
namespace {

// Reading them takes 0.04 s, and making their picture as much again.
constexpr size_t kPreviewEvents = 100'000;

}  // namespace

RunOpener::RunOpener(const WindowParts& parts, Bookmarks& bookmarks, ProjectController& project)
    : parts_(parts), bookmarks_(bookmarks), project_(project) {
  parts_.loader.setPreviewFrom(kPreviewEvents);
  connect(&parts_.loader, &RunLoader::preview, this, [this](const RunPointer& part) {
    parts_.pages.showPreview(part, OpenedRun::label(wanted_));
  });
  connect(&parts_.loader, &RunLoader::loaded, this, &RunOpener::loaded);
  connect(&parts_.loader, &RunLoader::failed, this, &RunOpener::fail);
  connect(&parts_.loader, &RunLoader::cancelled, this, &RunOpener::cancelled);
  connect(&parts_.session, &PlanSession::simulatedOne, this, &RunOpener::showModel);
  connect(&parts_.session, &PlanSession::stateChanged, this, &RunOpener::showModel);
  connect(&parts_.context, &SelectionContext::changed, this, &RunOpener::showModel);
}

void RunOpener::open(const QStringList& paths) {
  if (paths.isEmpty()) {
    return;
  }
  project_.whenSaved([this, paths] {
    if (paths.size() == 1 && is_project_file(paths.front())) {
      openProject(paths.front());
    } else if (paths.size() == 1 && !parts_.messages.unattended() &&
               QFileInfo(paths.front()).fileName() == QStringLiteral("config.json")) {
      chooseHardware(paths.front());
    } else {
      openTraces(paths);
    }
  });
}

void RunOpener::openTraces(const QStringList& paths) {
  parts_.loader.cancel();
  wanted_ = paths;
  project_.forgetExpected();
  parts_.messages.clearError();
  parts_.pages.start().showMessage({});
  parts_.pages.showStart();
  parts_.loader.load(paths_of(paths));
}

void RunOpener::openProject(const QString& path) {
  try {
    Project project = load_project(path.toStdString());
    if (project.traces.empty()) {
      openModel(QString::fromStdString(project.model.string()),
                project.plans.empty() ? QString() : project.plans.front().machine);
    } else {
      openTraces(strings_of(project.traces));
    }
    project_.expect(path, std::move(project));
  } catch (const Error& error) {
    fail(QString::fromStdString(error.what()));
  }
}

void RunOpener::openModel(const QString& config, const QString& hardware) {
  parts_.messages.clearError();
  StartPage& start = parts_.pages.start();
  start.showMessage({});
  if (hardware.isEmpty() && !parts_.messages.unattended()) {
    chooseHardware(config);
    return;
  }
  try {
    if (hardware.isEmpty()) {
      throw UsageError("no machine to simulate the model on: give one with --hardware");
    }
    const plan::ModelConfig model = plan::load_model_config(config.toStdString());
    (void)sim::load_hardware(hardware.toStdString());
    parts_.opened.paths = {config};
    parts_.opened.is_model = true;
    parts_.opened.hardware = hardware;
    project_.forgetExpected();
    parts_.compare.close();
    parts_.session.stop();  // first: without a run, its simulation would be shown as the run
    parts_.context.setRun(nullptr);
    parts_.session.start(model, hardware);
    start.showProgress(-1, tr("Simulating %1").arg(config));
    parts_.pages.showStart();
  } catch (const Error& error) {
    fail(QString::fromStdString(error.what()));
  }
}

// The simulation of a model's plan is shown as the run.
void RunOpener::showModel() {
  const PlanVersion* version = parts_.session.current();
  if (parts_.hasRun() || version == nullptr) {
    return;
  }
  parts_.pages.start().endProgress();
  if (version->run == nullptr) {
    fail(version->error);
    return;
  }
  const QString name = QFileInfo(parts_.opened.paths.front()).absoluteDir().dirName();
  parts_.pages.showRun(version->run, tr("%1, simulated").arg(name));
  project_.restore();
  emit settled();
}

void RunOpener::reload() {
  if (!project_.path().isEmpty()) {
    open({project_.path()});
  } else if (parts_.opened.is_model) {
    project_.whenSaved([this, config = parts_.opened.paths.front()] {
      openModel(config, parts_.opened.hardware);
    });
  } else {
    open(QStringList(parts_.opened.paths));
  }
}

void RunOpener::loaded(const RunPointer& run) {
  parts_.pages.start().endProgress();
  parts_.opened.paths = wanted_;
  parts_.opened.is_model = false;
  if (!project_.isExpected()) {
    parts_.recent.add(wanted_);
  }
  const std::optional<PreviewPage::View> seen = parts_.pages.preview().view();
  parts_.pages.showRun(run, OpenedRun::label(wanted_));
  bookmarks_.restore();
  if (seen) {
    keepView(*seen);
  }
  parts_.compare.close();
  parts_.session.start(run, paths_of(wanted_));
  project_.restore();
  emit settled();
}

// The run is shown where its part was looked at.
void RunOpener::keepView(const PreviewPage::View& seen) {
  const RunData& run = *parts_.context.run();
  for (size_t i = 0; i < run.ranks.size(); ++i) {
    if (run.ranks[i]->figures.rank != seen.rank) {
      continue;
    }
    parts_.context.selectRank(i);
    const analysis::Interval shown =
        seen.own ? run.shown(*run.ranks[i], *seen.own) : analysis::Interval{};
    // They are apart if the file says only at its end what its times are relative to.
    if (shown.start < run.duration && shown.end > 0) {
      parts_.timeline().setView(shown);
    }
  }
}

void RunOpener::cancel() {
  parts_.loader.cancel();
  if (!parts_.hasRun() && parts_.session.isOpen()) {  // a plan for a model
    parts_.session.stop();
    parts_.pages.start().endProgress();
    emit settled();
  }
}

void RunOpener::cancelled() {
  parts_.pages.start().endProgress();
  parts_.pages.endPreview();
  project_.forgetExpected();
  if (parts_.hasRun()) {
    parts_.pages.showWorkspace();
  }
  emit settled();
}

void RunOpener::fail(const QString& message) {
  parts_.messages.setError(message);
  parts_.pages.endPreview();
  project_.close();
  StartPage& start = parts_.pages.start();
  start.endProgress();
  start.showMessage(in_window(message));
  if (parts_.hasRun()) {
    parts_.pages.hideWorkspace();
    parts_.session.stop();  // first: without a run, its simulation would be shown as the run
    parts_.context.setRun(nullptr);
    parts_.compare.close();
    parts_.window.setWindowTitle(QStringLiteral("Shardlens"));
  }
  parts_.pages.showStart();
  emit settled();
}

QString RunOpener::sampleRun() {
  for (const QString& folder :
       {QApplication::applicationDirPath() + QStringLiteral("/../share/shardlens/traces"),
        QStringLiteral(SHARDLENS_SAMPLES)}) {
    const QString run = QDir::cleanPath(folder + QStringLiteral("/llama-emulated8"));
    if (QFileInfo::exists(run)) {
      return run;
    }
  }
  return {};
}

void RunOpener::chooseTraces() {
  auto* dialog = new QFileDialog(&parts_.window, tr("Open traces"));
  dialog->setAttribute(Qt::WA_DeleteOnClose);
  dialog->setFileMode(QFileDialog::ExistingFiles);
  dialog->setNameFilters({tr("Traces (*.json *.json.gz *.json.zst *.spool)"), tr("All files (*)")});
  connect(dialog, &QFileDialog::filesSelected, this, &RunOpener::open);
  dialog->open();
}

void RunOpener::chooseDirectory() {
  auto* dialog = new QFileDialog(&parts_.window, tr("Open a capture directory"));
  dialog->setAttribute(Qt::WA_DeleteOnClose);
  dialog->setFileMode(QFileDialog::Directory);
  connect(dialog, &QFileDialog::filesSelected, this, &RunOpener::open);
  dialog->open();
}

void RunOpener::chooseModel() {
  auto* dialog = new QFileDialog(&parts_.window, tr("New plan for a model"));
  dialog->setAttribute(Qt::WA_DeleteOnClose);
  dialog->setFileMode(QFileDialog::ExistingFile);
  dialog->setNameFilters({tr("Hugging Face configurations (config.json)"), tr("All files (*)")});
  connect(dialog, &QFileDialog::fileSelected, this, [this](const QString& path) {
    project_.whenSaved([this, path] { chooseHardware(path); });
  });
  dialog->open();
}

void RunOpener::chooseHardware(const QString& config) {
  QStringList names;
  for (const std::string& name : sim::hardware_names()) {
    names.append(QString::fromStdString(name));
  }
  const QString file = tr("a spec file …");
  names.append(file);
  auto* dialog = new QInputDialog(&parts_.window);
  dialog->setAttribute(Qt::WA_DeleteOnClose);
  dialog->setWindowTitle(tr("Plan a model"));
  dialog->setLabelText(tr("The GPUs to simulate %1 on").arg(QFileInfo(config).fileName()));
  dialog->setComboBoxItems(names);
  dialog->setOption(QInputDialog::UseListViewForComboBoxItems);
  connect(dialog, &QInputDialog::textValueSelected, this,
          [this, config, file](const QString& name) {
            if (name != file) {
              openModel(config, name);
              return;
            }
            choose_spec_file(parts_.window,
                             [this, config](const QString& path) { openModel(config, path); });
          });
  dialog->open();
}

void RunOpener::chooseProject() {
  auto* dialog = new QFileDialog(&parts_.window, tr("Open a project"));
  dialog->setAttribute(Qt::WA_DeleteOnClose);
  dialog->setFileMode(QFileDialog::ExistingFile);
  dialog->setNameFilters({tr("Projects (*.shardlens)")});
  connect(dialog, &QFileDialog::filesSelected, this, &RunOpener::open);
  dialog->open();
}

void RunOpener::capture() {
  const QString program = QCoreApplication::applicationDirPath() + QStringLiteral("/shardlens");
  auto* dialog = new CaptureDialog(program, parts_.settings, &parts_.window);
  dialog->setAttribute(Qt::WA_DeleteOnClose);
  connect(dialog, &CaptureDialog::captured, this,
          [this](const QString& directory) { open({directory}); });
  dialog->open();
}

}  // namespace shardlens::gui
