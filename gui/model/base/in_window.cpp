#include "gui/model/base/in_window.h"

namespace shardlens::gui {

QString in_window(QString message) {
  static constexpr struct {
    const char *said, *shown;
  } kPhrases[] = {
      {"(--by rank)", "(the panel Ranks)"},
      {" (--comm-regex can select communication events by name)", ""},
      {"; add --device N, or run one process", "; run one process"},
      {"give --hardware to use that hardware's", "choose a machine that adds a GPU's"},
      {"; search with --model", "; File › New plan plans for its config.json"},
      {"made with --seq ", "made with a sequence of "},
      {"`shardlens simulate --model` takes", "File › New plan takes"},
      {"--world-size: ", "Ranks: "},
      {"--power-limit: ", "Power limit: "},
      {"--stack: ", "Stack: "},
  };
  for (const auto& phrase : kPhrases) {
    message.replace(QString::fromUtf8(phrase.said), QString::fromUtf8(phrase.shown));
  }
  return message;
}

}  // namespace shardlens::gui
