#include "gui/model/base/action_registry.h"

#include <algorithm>
#include <utility>

#include "core/base/error.h"

namespace shardlens::gui {

int match_score(const QString& text, const QString& title) {
  if (text.isEmpty()) {
    return 1;
  }
  const qsizetype at = title.indexOf(text, 0, Qt::CaseInsensitive);
  if (at == 0) {
    return 1000 - static_cast<int>(std::min<qsizetype>(title.size(), 400));
  }
  if (at > 0) {
    const bool word = !title[at - 1].isLetterOrNumber();
    return (word ? 500 : 300) - static_cast<int>(std::min<qsizetype>(at, 200));
  }
  qsizetype from = 0;
  for (const QChar c : text) {
    if (c.isSpace()) {
      continue;
    }
    from = title.indexOf(c, from, Qt::CaseInsensitive);
    if (from < 0) {
      return 0;
    }
    ++from;
  }
  return 50 - static_cast<int>(std::min<qsizetype>(from, 49));
}

void ActionRegistry::add(Command command) {
  SHARDLENS_CHECK(find(command.id) == nullptr,
                  "a command's id is already used: " + command.id.toStdString());
  for (const QString& shortcut : command.shortcuts) {
    for (const Command& other : commands_) {
      SHARDLENS_CHECK(!other.shortcuts.contains(shortcut),
                      "a shortcut is already used: " + shortcut.toStdString());
    }
  }
  commands_.push_back(std::move(command));
}

const Command* ActionRegistry::find(const QString& id) const {
  const auto found = std::find_if(commands_.begin(), commands_.end(),
                                  [&id](const Command& c) { return c.id == id; });
  return found == commands_.end() ? nullptr : &*found;
}

bool ActionRegistry::trigger(const QString& id) {
  const Command* command = find(id);
  if (command == nullptr || !command->enabled()) {
    return false;
  }
  command->run();
  refresh();
  return true;
}

void ActionRegistry::refresh() {
  std::vector<bool> now;
  now.reserve(commands_.size());
  for (const Command& command : commands_) {
    now.push_back(command.enabled());
  }
  if (now != enabled_) {
    enabled_ = std::move(now);
    emit changed();
  }
}

std::vector<const Command*> ActionRegistry::matching(const QString& text) const {
  std::vector<std::pair<int, const Command*>> scored;
  for (const Command& command : commands_) {
    const int score = match_score(text, command.title);
    if (score > 0) {
      scored.emplace_back(score, &command);
    }
  }
  std::stable_sort(scored.begin(), scored.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<const Command*> out;
  out.reserve(scored.size());
  for (const auto& [score, command] : scored) {
    out.push_back(command);
  }
  return out;
}

}  // namespace shardlens::gui
