// Notes, versions of the plan and bookmarks are not lost without a question.
#include <QFile>
#include <QFileDialog>
#include <QMessageBox>
#include <QPushButton>

#include "gui/view/panels/notes_panel.h"
#include "gui/view/timeline/timeline_view.h"
#include "gui/view/widgets/capture_dialog.h"
#include "tests/gui/view/window_test.h"

namespace shardlens::gui {
namespace {

// A kind of unsaved work, and whether there is a project.
struct State {
  const char* made;  // "notes", "version" or "bookmark"
  bool project;
};

class UnsavedTest : public WindowTest, public testing::WithParamInterface<State> {
 protected:
  void SetUp() override {
    WindowTest::SetUp();
    QObject::connect(window_.get(), &MainWindow::settled, [this] { ++settled_; });
    open(sample_run());
    ASSERT_TRUE(wait_for([&] { return !window_->session().isObserving(); }));
    if (GetParam().project) {
      ASSERT_TRUE(window_->saveProject(project()));
    }
    const QString made = GetParam().made;
    if (made == "notes") {
      notes().setPlainText("what I found");
    } else if (made == "version") {
      window_->session().choose(2, 2);
      window_->session().simulateNow();
      ASSERT_TRUE(wait_for([&] { return !window_->session().isBusy(); }));
    } else {
      window_->timeline().setBookmark(1'000'000, "here");
    }
    ASSERT_TRUE(window_->isWindowModified());
    settled_ = 0;
  }
  [[nodiscard]] QString project() const { return folder_.path() + "/work.shardlens"; }
  QPlainTextEdit& notes() { return window_->panels().get<NotesPanel>().edit(); }
  // Whether what was made is still there.
  bool isKept() {
    const QString made = GetParam().made;
    return window_->context().run() != nullptr &&
           (made == "notes"     ? notes().toPlainText() == "what I found"
            : made == "version" ? window_->session().undoStack().count() == 1
                                : window_->timeline().scene().bookmarks.size() == 1);
  }
  QMessageBox* question() {
    QApplication::processEvents();
    for (QMessageBox* box : window_->findChildren<QMessageBox*>()) {
      if (box->isVisible()) {
        return box;
      }
    }
    return nullptr;
  }
  template <class Dialog>
  Dialog* dialog() {
    for (Dialog* each : window_->findChildren<Dialog*>()) {
      if (each->isVisible()) {
        return each;
      }
    }
    return nullptr;
  }
  // Each begins something that would lose what is unsaved.
  static constexpr const char* kWays[] = {"close", "open", "capture", "new plan", "reload"};
  void begin(const QString& way) {
    if (way == "close") {
      EXPECT_FALSE(window_->close());
    } else if (way == "open") {
      window_->open({QString::fromStdString(pytorch_run("fsdp2-default"))});
    } else if (way == "capture") {
      window_->actions().trigger("file.capture");
      auto* capture = dialog<CaptureDialog>();
      ASSERT_NE(capture, nullptr);
      emit capture->captured(QString::fromStdString(pytorch_run("fsdp2-default")));
      capture->reject();
    } else if (way == "new plan") {
      window_->actions().trigger("file.newPlan");
      auto* files = dialog<QFileDialog>();
      ASSERT_NE(files, nullptr);
      emit files->fileSelected(QString::fromStdString(sample_run() + "/config.json"));
      files->reject();
    } else {
      window_->actions().trigger("file.reload");
    }
  }
  int settled_ = 0;
};

TEST_P(UnsavedTest, EveryWayToLoseItAsks) {
  for (const char* way : kWays) {
    begin(way);
    QMessageBox* box = question();
    ASSERT_NE(box, nullptr) << way;
    const QString made = GetParam().made;
    EXPECT_TRUE(box->informativeText().contains(GetParam().project  ? "changed since it was saved"
                                                : made == "notes"   ? "your notes"
                                                : made == "version" ? "1 edit of the plan"
                                                                    : "1 bookmark"))
        << box->informativeText().toStdString();
    box->button(QMessageBox::Cancel)->click();
    QApplication::processEvents();
    EXPECT_EQ(question(), nullptr) << way;
    EXPECT_TRUE(window_->isVisible()) << way;
    EXPECT_TRUE(isKept()) << way;
    EXPECT_TRUE(window_->isWindowModified()) << way;
    EXPECT_EQ(settled_, 0) << way;
  }
}

TEST_P(UnsavedTest, DiscardLosesItOnlyWhenSomethingElseIsOpen) {
  begin("open");
  ASSERT_NE(question(), nullptr);
  question()->button(QMessageBox::Discard)->click();
  // The other run is being read. If that is stopped, everything is as before.
  window_->loader().cancel();
  ASSERT_TRUE(wait_for([&] { return settled_ == 1; }));
  EXPECT_TRUE(isKept());
  EXPECT_TRUE(window_->isWindowModified());

  begin("open");
  ASSERT_NE(question(), nullptr);
  question()->button(QMessageBox::Discard)->click();
  ASSERT_TRUE(wait_for([&] { return settled_ == 2; }));
  EXPECT_FALSE(window_->isWindowModified());
  EXPECT_TRUE(notes().toPlainText().isEmpty());
  EXPECT_TRUE(window_->close());
}

TEST_P(UnsavedTest, SaveWritesAProjectThenGoesOn) {
  begin("close");
  ASSERT_NE(question(), nullptr);
  question()->button(QMessageBox::Save)->click();
  QApplication::processEvents();
  if (!GetParam().project) {
    auto* files = dialog<QFileDialog>();
    ASSERT_NE(files, nullptr);
    emit files->fileSelected(project());
  }
  ASSERT_TRUE(wait_for([&] { return !window_->isVisible(); }));
  const Project saved = load_project(project().toStdString());
  const QString made = GetParam().made;
  EXPECT_EQ(saved.notes.isEmpty(), made != "notes");
  EXPECT_EQ(saved.plans.size(), made == "version" ? 2 : 1);
  EXPECT_EQ(saved.bookmarks.size(), made == "bookmark" ? 1 : 0);
}

TEST_P(UnsavedTest, DiscardClosesTheWindow) {
  begin("close");
  ASSERT_NE(question(), nullptr);
  question()->button(QMessageBox::Discard)->click();
  EXPECT_TRUE(wait_for([&] { return !window_->isVisible(); }));
}

INSTANTIATE_TEST_SUITE_P(States,
                         UnsavedTest,
                         testing::Values(State{"notes", false},
                                         State{"notes", true},
                                         State{"version", false},
                                         State{"version", true},
                                         State{"bookmark", false},
                                         State{"bookmark", true}),
                         [](const testing::TestParamInfo<State>& state) {
                           return std::string(state.param.made) +
                                  (state.param.project ? "InAProject" : "");
                         });

// A program that writes where it is told, as `shardlens capture` does.
class CaptureOverTest : public WindowTest {
 protected:
  void SetUp() override {
    WindowTest::SetUp();
    const QString program = folder_.path() + "/shardlens";
    QFile file(program);
    ASSERT_TRUE(file.open(QIODevice::WriteOnly));
    file.write("#!/bin/sh\nmkdir -p \"$7\" && echo new > \"$7/run.json\"\n");
    file.setPermissions(QFile::ReadOwner | QFile::WriteOwner | QFile::ExeOwner);
    file.close();
    dialog_ = new CaptureDialog(program, *settings_, window_.get());
    QObject::connect(dialog_, &CaptureDialog::captured,
                     [this](const QString& directory) { captured_ = directory; });
    CaptureOptions options;
    options.model = "model";
    options.tokens = "tokens";
    options.out = out();
    dialog_->setOptions(options);
    dialog_->show();
    ASSERT_TRUE(QDir().mkpath(out()));
    write("old");
  }
  [[nodiscard]] QString out() const { return folder_.path() + "/run"; }
  void write(const QByteArray& text) {
    QFile run(out() + "/run.json");
    ASSERT_TRUE(run.open(QIODevice::WriteOnly));
    run.write(text);
  }
  QByteArray at(const QString& directory) {
    QFile run(directory + "/run.json");
    return run.open(QIODevice::ReadOnly) ? run.readAll().trimmed() : QByteArray();
  }
  QPushButton* button(const QString& title) {
    auto* box = dialog_->findChild<QMessageBox*>();
    for (QAbstractButton* each : box != nullptr ? box->buttons() : QList<QAbstractButton*>()) {
      if (each->text().remove(u'&').startsWith(title)) {
        return qobject_cast<QPushButton*>(each);
      }
    }
    return nullptr;
  }
  CaptureDialog* dialog_ = nullptr;
  QString captured_;
};

TEST_F(CaptureOverTest, AnEarlierRunStays) {
  dialog_->begin();
  ASSERT_NE(button("Cancel"), nullptr);
  button("Cancel")->click();
  EXPECT_FALSE(dialog_->job().isRunning());
  EXPECT_EQ(at(out()), "old");
  QApplication::processEvents();
  QCoreApplication::sendPostedEvents(nullptr, QEvent::DeferredDelete);

  dialog_->begin();
  ASSERT_NE(button("Write to run-2"), nullptr);
  button("Write to run-2")->click();
  ASSERT_TRUE(wait_for([&] { return !captured_.isEmpty(); }));
  EXPECT_EQ(captured_, out() + "-2");
  EXPECT_EQ(at(out()), "old");
  EXPECT_EQ(at(captured_), "new");
}

TEST_F(CaptureOverTest, ItIsReplacedIfTheUserWantsThat) {
  dialog_->begin();
  ASSERT_NE(button("Replace"), nullptr);
  EXPECT_EQ(at(out()), "old");
  button("Replace")->click();
  ASSERT_TRUE(wait_for([&] { return !captured_.isEmpty(); }));
  EXPECT_EQ(at(out()), "new");
}

// Nothing to lose: no question.
TEST_F(CaptureOverTest, ANewDirectoryIsUsedAtOnce) {
  CaptureOptions options = dialog_->options();
  options.out = folder_.path() + "/other";
  dialog_->setOptions(options);
  dialog_->begin();
  EXPECT_EQ(dialog_->findChild<QMessageBox*>(), nullptr);
  ASSERT_TRUE(wait_for([&] { return !captured_.isEmpty(); }));
  EXPECT_EQ(at(captured_), "new");
}

}  // namespace
}  // namespace shardlens::gui
