#pragma once

#include <functional>
#include <utility>

#include <QObject>
#include <QStringList>

#include "gui/model/base/action_registry.h"

namespace shardlens::gui {

// Adds commands of one menu to a registry.
class CommandAdder {
 public:
  // `enabled`, `needs`: of commands that have no condition of their own.
  CommandAdder(ActionRegistry& actions,
               const QString& menu,
               std::function<bool()> enabled,
               const QString& needs)
      : actions_(actions), menu_(menu), enabled_(std::move(enabled)), needs_(needs) {}

  void separate() { separated_ = true; }  // a separator above the next command
  void add(const QString& id,
           const QString& title,
           const QStringList& keys,
           std::function<void()> run) {
    add(id, title, keys, std::move(run), enabled_, needs_);
  }
  void add(const QString& id,
           const QString& title,
           const QStringList& keys,
           std::function<void()> run,
           std::function<bool()> enabled,
           const QString& needs) {
    actions_.add({id, menu_, title, keys, std::move(run), std::move(enabled), needs,
                  std::exchange(separated_, false)});
  }

 private:
  ActionRegistry& actions_;
  QString menu_;
  std::function<bool()> enabled_;
  QString needs_;
  bool separated_ = false;
};

}  // namespace shardlens::gui
