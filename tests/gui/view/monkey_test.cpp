#include "tests/gui/view/monkey.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <optional>

#include <malloc.h>
#include <unistd.h>

#include <QBackingStore>
#include <QDir>
#include <QImage>
#include <QLineEdit>
#include <QPixmapCache>
#include <QPlainTextEdit>
#include <QTest>

#include "core/base/heap.h"
#include "tests/gui/view/window_test.h"
#include "tests/support/generated_run.h"

#ifdef __SANITIZE_ADDRESS__
// GCC has no header for it.
extern "C" size_t __sanitizer_get_current_allocated_bytes();  // NOLINT: AddressSanitizer's name
#endif

namespace shardlens::gui {
namespace {

// Environment variables: SHARDLENS_MONKEY_ACTIONS, actions per test (250);
// SHARDLENS_MONKEY_SECONDS, go on for so long; both print the heap in use after every
// kBetweenHeaps actions, which must not grow;
// SHARDLENS_MONKEY_SEED (1); SHARDLENS_MONKEY_LOG, prints each action; SHARDLENS_MONKEY_RUN, the
// path that AnyRun opens.
int setting(const char* name, int otherwise) {
  bool set = false;
  const int value = qEnvironmentVariableIntValue(name, &set);
  return set ? value : otherwise;
}

// Actions after which the run is opened again and the heap in use is printed.
constexpr int kBetweenHeaps = 1000;
// What Qt keeps of styles and letters that were drawn once grows by 1.3 MiB in an hour, most of it
// in the first minutes, and long runs vary by up to 4.5 MiB. A leak of 1 KiB for each action is
// more than this after 8000.
constexpr size_t kMostGrowth = 8 << 20;
// Before it is printed, the events of this many rounds are processed.
constexpr int kRounds = 10;
constexpr int kRoundMs = 20;

// Bytes, without what was freed.
size_t heap_in_use() {
#ifdef __SANITIZE_ADDRESS__
  return __sanitizer_get_current_allocated_bytes();
#else
  const struct mallinfo2 heap = ::mallinfo2();
  return heap.uordblks + heap.hblkhd;
#endif
}

// Bytes of the process that are in memory; those of a sanitizer too.
size_t resident_bytes() {
  std::ifstream status("/proc/self/statm");
  size_t pages = 0, resident = 0;
  status >> pages >> resident;
  return resident * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

// Bytes of what windows, menus and dialogs were last drawn into, which Qt keeps while they are
// hidden.
size_t pictures_of_windows() {
  size_t bytes = 0;
  for (const QWidget* widget : QApplication::topLevelWidgets()) {
    QBackingStore* store = widget->backingStore();
    const QPaintDevice* picture = store != nullptr ? store->paintDevice() : nullptr;
    if (picture != nullptr && picture->devType() == QInternal::Image) {
      bytes += static_cast<size_t>(static_cast<const QImage*>(picture)->sizeInBytes());
    }
  }
  return bytes;
}

class MonkeyTest : public WindowTest {
 protected:
  void SetUp() override {
    give_back_freed_memory();  // as the program does
    QCoreApplication::setAttribute(Qt::AA_DontUseNativeDialogs);
    WindowTest::SetUp();
    QApplication::setQuitOnLastWindowClosed(false);
    window_->setUnattended();
    // Qt 6.4 keeps the names of pixmaps that its cache dropped, one for each size and state of a
    // control that was ever drawn: hundreds of bytes for each of thousands of random sizes.
    QPixmapCache::setCacheLimit(0);
    before_ = QDir::currentPath();
    QDir::setCurrent(folder_.path());  // files with relative names are written here
  }
  void TearDown() override {
    QDir::setCurrent(before_);
    WindowTest::TearDown();
  }
  void play(const std::function<void()>& open_again) {
    const int seconds = setting("SHARDLENS_MONKEY_SECONDS", 0);
    const int actions = setting("SHARDLENS_MONKEY_ACTIONS", seconds > 0 ? 0 : 250);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    const QString title = window_->windowTitle();
    Monkey monkey(*window_, static_cast<uint32_t>(setting("SHARDLENS_MONKEY_SEED", 1)));
    for (int i = 0; i < actions || std::chrono::steady_clock::now() < end; ++i) {
      if (i % 100 == 0 && i > 0 &&
          (window_->context().run() == nullptr || window_->windowTitle() != title)) {
        open_again();
        if (HasFatalFailure()) {
          return;
        }
      }
      if (i % kBetweenHeaps == 0 && i > 0) {
        printHeap(i, open_again);
      }
      if (HasFatalFailure()) {
        return;
      }
      monkey.act();
      const QStringList broken = monkey.broken();
      ASSERT_TRUE(broken.isEmpty() && !HasFailure())
          << "action " << i << ": " << broken.join("; ").toStdString() << "\nafter:\n  "
          << monkey.log().join("\n  ").toStdString();
    }
    if (actions >= kBetweenHeaps) {
      printHeap(actions, open_again);
    }
  }
  // With the run just opened, plans that were made before are gone, the window has the size and the
  // panels of the first time, fields have no text to undo, and there are no notes, into which whole
  // tables are pasted now and then: what is in use then is not what the user keeps or sees.
  // Pictures of windows are left out: 7 to 12 MiB, as large as each was last.
  void printHeap(int actions, const std::function<void()>& open_again) {
    const std::weak_ptr<const RunData> before = window_->context().run();
    open_again();
    for (QLineEdit* field : window_->findChildren<QLineEdit*>()) {
      field->setText(field->text());  // forgets what was typed
    }
    for (QPlainTextEdit* notes : window_->findChildren<QPlainTextEdit*>()) {
      notes->clear();
    }
    // Qt keeps the style rules of every state in which a control was drawn, and 1 kB of each combo
    // box, spin box and table that was deleted, until no widget has a style sheet.
    const QString style = window_->styleSheet();
    window_->setStyleSheet(QString());
    window_->setStyleSheet(style);
    window_->resize(kSize);
    window_->actions().trigger(QStringLiteral("view.reset"));
    ASSERT_TRUE(wait_for([&] {
      return !window_->session().isBusy() && !window_->panels().isBusy() && before.expired();
    })) << "the run that was open before is still held";
    for (int i = 0; i < kRounds; ++i) {
      QTest::qWait(kRoundMs);
      QApplication::sendPostedEvents(nullptr, QEvent::DeferredDelete);
    }
    const size_t in_use = heap_in_use() - pictures_of_windows();
    std::printf("after %d actions, resident %zu\nheap in use %zu\n", actions, resident_bytes(),
                in_use);
    std::fflush(stdout);
    first_in_use_ = first_in_use_.value_or(in_use);
    EXPECT_LE(in_use, *first_in_use_ + kMostGrowth) << "after " << actions << " actions";
  }
  void openModel(const std::string& config) {
    // What was begun before may settle first.
    const std::shared_ptr<const RunData> before = window_->context().run();
    window_->openModel(QString::fromStdString(config), "8xH100");
    ASSERT_TRUE(wait_for([&] {
      const std::shared_ptr<const RunData> run = window_->context().run();
      return run != nullptr && run != before;
    }));
    window_->panels().flush();
  }
  QString before_;
  std::optional<size_t> first_in_use_;  // bytes, after the first kBetweenHeaps actions
};

TEST_F(MonkeyTest, ACapture) {
  open(sample_run());
  play([this] { open(sample_run()); });
}

TEST_F(MonkeyTest, ATraceOfPyTorch) {
  open(pytorch_run("fsdp2-default"));
  play([this] { open(pytorch_run("fsdp2-default")); });
}

TEST_F(MonkeyTest, EightRanksOfGpus) {
  test::GeneratedRun generated;
  generated.ranks = 8;
  generated.steps = 4;
  const std::string directory = write_run(generated.run().traces, "run");
  open(directory);
  ASSERT_EQ(window_->context().run()->ranks.size(), 8);
  play([&] { open(directory); });
}

// A GPU that shardlens.record recorded, or the run that is asked for.
TEST_F(MonkeyTest, AnyRun) {
  const std::string path = qEnvironmentVariable("SHARDLENS_MONKEY_RUN").toStdString();
  const std::string run =
      path.empty() ? std::string(SHARDLENS_TEST_DATA) + "/../../traces/fsdp2-h200" : path;
  open(run);
  ASSERT_NE(window_->context().run(), nullptr) << window_->lastError().toStdString();
  play([&] { open(run); });
}

// A plan without a run, with all plans of a search in the plan space.
TEST_F(MonkeyTest, APlanOnly) {
  const auto search = [this] {
    openModel(sample_run() + "/config.json");
    ASSERT_TRUE(wait_for(
        [&] { return window_->session().current() != nullptr && !window_->proposals().isBusy(); }));
    ASSERT_TRUE(window_->actions().trigger("plan.searchSpace"));
    ASSERT_TRUE(wait_for([&] { return !window_->proposals().isBusy(); }));
    ASSERT_FALSE(window_->proposals().space().points.empty());
  };
  search();
  play(search);
}

}  // namespace
}  // namespace shardlens::gui
