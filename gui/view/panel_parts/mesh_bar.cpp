#include "gui/view/panel_parts/mesh_bar.h"

#include <algorithm>

#include <QEvent>
#include <QHBoxLayout>
#include <QMenu>
#include <QPixmap>
#include <QToolButton>

#include "core/plan/mesh_sizes.h"
#include "gui/model/base/words.h"
#include "gui/model/what_if/mesh_edits.h"
#include "gui/model/what_if/module_edits.h"
#include "gui/view/panel_parts/mesh_map.h"

namespace shardlens::gui {

MeshBar::MeshBar(PlanSession& session, QWidget* parent) : QWidget(parent), session_(session) {
  auto* row = new QHBoxLayout(this);
  row->setContentsMargins(6, 3, 6, 3);
  row->setSpacing(4);
  for (size_t axis = 0; axis < plan::mesh_axes().size(); ++axis) {
    auto* button = new QToolButton;
    button->setToolButtonStyle(Qt::ToolButtonTextBesideIcon);
    button->setPopupMode(QToolButton::InstantPopup);
    button->setFocusPolicy(Qt::StrongFocus);
    button->setAccessibleName(tr("Edit the mesh: %1").arg(words(plan::mesh_axes()[axis])));
    auto* menu = new QMenu(button);
    menu->setToolTipsVisible(true);
    button->setMenu(menu);
    button->installEventFilter(this);
    connect(menu, &QMenu::aboutToShow, this, [this, axis] { fill(axis); });
    row->addWidget(button);
    buttons_.push_back(button);
  }
  row->addStretch(1);
  connect(&session_, &PlanSession::stateChanged, this, &MeshBar::update);
  update();
}

void MeshBar::setTheme(const Theme& theme) {
  for (size_t axis = 0; axis < buttons_.size(); ++axis) {
    QPixmap square(12, 12);
    square.fill(theme[ink_of_axis(plan::mesh_axes()[axis])]);
    buttons_[axis]->setIcon(QIcon(square));
  }
}

void MeshBar::update() {
  for (size_t axis = 0; axis < buttons_.size(); ++axis) {
    const std::string& name = plan::mesh_axes()[axis];
    const bool open = session_.isOpen();
    buttons_[axis]->setEnabled(open);
    buttons_[axis]->setText(
        open ? QStringLiteral("%1 %2").arg(words(name)).arg(degree_of(session_, name))
             : words(name));
    buttons_[axis]->setToolTip(open ? tr("The size of the axis; splits, and merges with others")
                                    : session_.why());
  }
}

QMenu& MeshBar::menu(const std::string& axis) {
  const auto& axes = plan::mesh_axes();
  const auto index = static_cast<size_t>(std::ranges::find(axes, axis) - axes.begin());
  fill(index);
  return *buttons_.at(index)->menu();
}

void MeshBar::fill(size_t axis) {
  QMenu* menu = buttons_[axis]->menu();
  menu->clear();
  if (!session_.isOpen()) {
    return;
  }
  bool degrees = true;
  for (const MeshEdit& edit : mesh_edits(session_, plan::mesh_axes()[axis])) {
    if (degrees && !edit.is_degree) {
      menu->addSeparator();
    }
    degrees = edit.is_degree;
    const StateStanding standing = standing_of(session_, edit.next);
    QAction* action = menu->addAction(edit.label + standing.suffix);
    action->setCheckable(edit.is_degree);
    action->setChecked(edit.is_degree && edit.holds);
    action->setToolTip(standing.why);
    connect(action, &QAction::triggered, this,
            [this, edit] { session_.edit(edit.title, edit.next); });
  }
}

bool MeshBar::eventFilter(QObject* object, QEvent* event) {
  const auto button = std::ranges::find(buttons_, object);
  if (button != buttons_.end() &&
      (event->type() == QEvent::Enter || event->type() == QEvent::Leave)) {
    emit axisLit(event->type() == QEvent::Enter
                     ? plan::mesh_axes()[static_cast<size_t>(button - buttons_.begin())]
                     : std::string());
  }
  return QWidget::eventFilter(object, event);
}

}  // namespace shardlens::gui
