#pragma once

#include <QString>
#include <QWidget>

namespace shardlens::gui {

// Messages to the user, and the last error for programs that use the window without a user.
class Messages {
 public:
  explicit Messages(QWidget& window) : window_(window) {}
  // From now on no questions are asked and no boxes are shown.
  void setUnattended() { unattended_ = true; }
  [[nodiscard]] bool unattended() const { return unattended_; }

  // The error of the last load or export; "": none.
  [[nodiscard]] const QString& lastError() const { return error_; }
  void setError(const QString& error) { error_ = error; }
  void clearError() { error_.clear(); }
  // Shows a message box, unless unattended.
  void tell(const QString& title, const QString& message);

 private:
  QWidget& window_;
  QString error_;
  bool unattended_ = false;
};

}  // namespace shardlens::gui
