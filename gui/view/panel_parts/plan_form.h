#pragma once

#include <functional>
#include <vector>

#include <QScrollArea>

#include "gui/model/what_if/edit_history.h"

class QComboBox;
class QFormLayout;
class QSpinBox;

namespace shardlens::gui {

// Form for a session's state: the plan's knobs, the machine, the ranks and the step settings.
// Choices that cannot be simulated, or that the engine cannot run, are marked in the lists.
class PlanForm : public QScrollArea {
  Q_OBJECT
 public:
  explicit PlanForm(PlanSession& session, QWidget* parent = nullptr);
  [[nodiscard]] QComboBox& knob(size_t index) { return *knobs_[index]; }
  [[nodiscard]] QComboBox& machine() { return *machine_; }

 protected:
  bool eventFilter(QObject* object, QEvent* event) override;

 private:
  void rebuild();   // after the model or the machines changed
  void fitWidth();  // to what the form contains
  void update();    // shows the session's state
  void addField(const QString& title, QWidget* box);
  void addKnobs();
  void addMachine();
  void addStep();
  QSpinBox* addNumber(const QString& title, int most, std::function<void(PlanState&, int)> set);
  QComboBox* addList(const QString& title,
                     const QString& help,
                     const std::vector<QString>& labels,
                     std::function<void(PlanState&, int)> set);
  void markChoices(size_t knob);
  // Why the state cannot be simulated, or the engine cannot run it; "" if both are possible.
  // `suffix`: a short form of the reason, for the entry in the list.
  [[nodiscard]] QString standing(const PlanState& state, QString& suffix) const;

  PlanSession& session_;
  QWidget* box_;
  QFormLayout* form_;
  std::vector<QComboBox*> knobs_;
  QComboBox* machine_ = nullptr;
  QSpinBox *ranks_ = nullptr, *batch_ = nullptr, *seq_ = nullptr, *accumulate_ = nullptr;
  QComboBox *sync_ = nullptr, *optimizer_ = nullptr;
  std::vector<MachineChoice> machines_;
  std::vector<QString> titles_;  // titles of the knobs that the form has now
};

}  // namespace shardlens::gui
