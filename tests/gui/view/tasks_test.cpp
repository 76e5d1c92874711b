// Tasks of a new user, done with the keyboard only. docs/gui.md lists them with the number of
// actions: a key, or a text that is typed, is one. None needs more than five.
#include <algorithm>
#include <map>

#include <QAbstractItemView>
#include <QApplication>
#include <QDockWidget>
#include <QFile>
#include <QFileInfo>
#include <QKeySequence>
#include <QRegularExpression>

#include "gui/view/timeline/timeline_view.h"
#include "tests/gui/view/window_test.h"

namespace shardlens::gui {
namespace {

class TasksTest : public WindowTest {
 protected:
  void SetUp() override {
    WindowTest::SetUp();
    QObject::connect(window_.get(), &MainWindow::settled, [this] { settled_ = true; });
    window_->activateWindow();
    ASSERT_TRUE(QTest::qWaitForWindowActive(window_.get()));
  }

  // What has the keyboard: in a dialog if one is open.
  QWidget* focused() {
    QApplication::processEvents();
    if (QWidget* dialog = QApplication::activeModalWidget()) {
      return dialog->focusWidget() != nullptr ? dialog->focusWidget() : dialog;
    }
    QWidget* focus = QApplication::focusWidget();
    return focus != nullptr ? focus : window_.get();
  }
  void press(const char* keys) {
    ++actions_;
    const QKeyCombination chord = QKeySequence(QString(keys))[0];
    QTest::keyClick(focused(), chord.key(), chord.keyboardModifiers());
    QApplication::processEvents();
  }
  void type(const QString& text) {
    ++actions_;
    QTest::keyClicks(focused(), text);
    QApplication::processEvents();
  }
  template <class Done>
  void wait(Done done) {
    ASSERT_TRUE(wait_for(done));
    window_->panels().flush();
    QApplication::processEvents();
  }
  bool isShown(const char* panel) {
    const QDockWidget* dock = window_->panels().find(panel).dock;
    return dock->isVisible() && !dock->visibleRegion().isEmpty();
  }
  const Selection& chosen() { return window_->context().current(); }

  // The number of actions that docs/gui.md has for the task.
  static int documented(const QString& task) {
    QFile file(QString(SHARDLENS_TEST_DATA) + "/../../docs/gui.md");
    EXPECT_TRUE(file.open(QIODevice::ReadOnly));
    const QRegularExpression row("^\\| " + QRegularExpression::escape(task) + " \\| (\\d+) \\|",
                                 QRegularExpression::MultilineOption);
    const auto match = row.match(QString::fromUtf8(file.readAll()));
    return match.hasMatch() ? match.captured(1).toInt() : -1;
  }
  void done(const char* task) {
    EXPECT_EQ(actions_, documented(task)) << task;
    EXPECT_LE(actions_, 5) << task;
    actions_ = 0;
  }
  int actions_ = 0;
  bool settled_ = false;
};

TEST_F(TasksTest, CompareTwoRuns) {
  open(pytorch_run("fsdp2-prefetch"));
  window_->timeline().setFocus();
  press("Ctrl+D");
  type(QFileInfo(QString::fromStdString(pytorch_run("fsdp2-no-reshard"))).canonicalFilePath());
  press("Return");
  wait([&] { return window_->compare().isOpen(); });
  EXPECT_TRUE(isShown("compare"));
  done("Compare with another run");
}

TEST_F(TasksTest, PlanAnEightBillionModel) {
  const QString path = folder_.path() + "/config.json";
  QFile file(path);
  ASSERT_TRUE(file.open(QIODevice::WriteOnly));
  // Llama 3 8B. Source: its config.json on Hugging Face.
  file.write(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": false})");
  file.close();
  press("Ctrl+N");
  type(path);
  press("Return");
  type("8xH100");
  press("Return");
  wait([&] {
    return window_->context().run() != nullptr && window_->session().current() != nullptr;
  });
  EXPECT_EQ(window_->session().state().world_size, 8);
  done("Plan an 8B model on 8 GPUs");
}

TEST_F(TasksTest, MeasureAndExport) {
  open(sample_run());
  window_->timeline().setFocus();
  const QString file = folder_.path() + "/window.png";
  press("E");
  press("R");
  EXPECT_EQ(chosen().range, window_->context().itemInterval());
  press("Ctrl+E");
  type(file);
  press("Return");
  wait([&] { return QFileInfo::exists(file); });
  done("Measure the worst one and save a picture");

  // From one event to another.
  const analysis::Interval first = *chosen().range;
  window_->timeline().setFocus();
  press("E");
  press("R");
  const analysis::Interval second = *window_->context().itemInterval();
  EXPECT_EQ(chosen().range, (analysis::Interval{std::min(first.start, second.start),
                                                std::max(first.end, second.end)}));
}

}  // namespace
}  // namespace shardlens::gui
