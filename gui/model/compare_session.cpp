#include "gui/model/compare_session.h"

#include <exception>

namespace shardlens::gui {

CompareSession::CompareSession(QObject* parent) : QObject(parent) {
  connect(&loader_, &RunLoader::progress, this, &CompareSession::progress);
  connect(&loader_, &RunLoader::loaded, this, &CompareSession::compare);
  connect(&loader_, &RunLoader::failed, this, [this](const QString& message) {
    busy_ = false;
    emit failed(message);
  });
}

void CompareSession::close() {
  ++session_;
  busy_ = false;
  loader_.cancel();
  a_.reset();
  b_.reset();
  comparison_.reset();
  emit changed();
}

void CompareSession::start(const RunPointer& a, const std::vector<std::filesystem::path>& b) {
  ++session_;
  a_ = a;
  b_.reset();
  comparison_.reset();
  busy_ = true;
  loader_.load(b);
}

void CompareSession::start(const RunPointer& a, const RunPointer& b) {
  ++session_;
  loader_.cancel();
  a_ = a;
  comparison_.reset();
  busy_ = true;
  compare(b);
}

void CompareSession::compare(const RunPointer& b) {
  emit progress(-1, tr("Comparing"));
  auto result = std::make_shared<Result>();
  const auto work = [result, a = a_, b] {
    try {
      check::SummaryOptions items;
      items.items = true;
      result->comparison = std::make_shared<const check::Comparison>(check::compare_runs(
          {check::summarize(a->run, items)}, {check::summarize(b->run, items)}));
    } catch (const std::exception& error) {
      result->error = QString::fromStdString(error.what());
    }
  };
  background_.run(work, [this, result, b, session = session_] {
    if (session != session_) {
      return;
    }
    busy_ = false;
    if (result->comparison == nullptr) {
      emit failed(result->error);
      return;
    }
    b_ = b;
    comparison_ = result->comparison;
    emit changed();
  });
}

}  // namespace shardlens::gui
