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
  void addHeading(const QString& title);
  void addKnobs(PlanKnob::Section section, const QString& title);
  void addMachine();
  void addPower();
  void addStep();
  void chooseMachine(const QString& name);
  QSpinBox* addNumber(const QString& title, int most, std::function<void(PlanState&, int)> set);
  QComboBox* addList(const QString& title,
                     const QString& help,
                     const std::vector<QString>& labels,
                     std::function<void(PlanState&, int)> set);
  void markChoices(size_t knob);

  PlanSession& session_;
  QWidget* box_;
  QFormLayout* form_;
  std::vector<QComboBox*> knobs_;
  QComboBox* machine_ = nullptr;
  QSpinBox *power_ = nullptr, *ranks_ = nullptr, *batch_ = nullptr, *seq_ = nullptr,
           *accumulate_ = nullptr;
  QComboBox *sync_ = nullptr, *optimizer_ = nullptr;
  std::vector<MachineChoice> machines_;
  size_t own_machines_ = 0;      // of `machines_`, without files
  std::vector<QString> titles_;  // titles of the knobs that the form has now
};

}  // namespace shardlens::gui
