#include "gui/view/widgets/theme.h"

#include <array>
#include <cmath>
#include <functional>

#include <gtest/gtest.h>

namespace shardlens::gui {
namespace {

using Rgb = std::array<double, 3>;

double linear(double c) {
  return c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4);
}

Rgb linear_of(const QColor& c) {
  return {linear(c.redF()), linear(c.greenF()), linear(c.blueF())};
}

// A colour as a dichromat sees it. Source: Machado, Oliveira and Fernandes (2009), severity 1, on
// linear RGB.
Rgb seen(const Rgb& c, const std::array<std::array<double, 3>, 3>& m) {
  Rgb out{};
  for (size_t i = 0; i < 3; ++i) {
    out[i] = std::clamp(m[i][0] * c[0] + m[i][1] * c[1] + m[i][2] * c[2], 0.0, 1.0);
  }
  return out;
}

Rgb lab(const Rgb& c) {
  const auto f = [](double t) { return t > 0.008856 ? std::cbrt(t) : 7.787 * t + 16.0 / 116; };
  const double x = f((0.4124 * c[0] + 0.3576 * c[1] + 0.1805 * c[2]) / 0.9505);
  const double y = f(0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2]);
  const double z = f((0.0193 * c[0] + 0.1192 * c[1] + 0.9505 * c[2]) / 1.089);
  return {116 * y - 16, 500 * (x - y), 200 * (y - z)};
}

double distance(const Rgb& a, const Rgb& b) {
  const Rgb x = lab(a), y = lab(b);
  return std::hypot(x[0] - y[0], x[1] - y[1], x[2] - y[2]);
}

constexpr std::array<std::array<double, 3>, 3> kNormal{{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}};
constexpr std::array<std::array<double, 3>, 3> kProtan{{{0.152286, 1.052583, -0.204868},
                                                        {0.114503, 0.786281, 0.099216},
                                                        {-0.003882, -0.048116, 1.051998}}};
constexpr std::array<std::array<double, 3>, 3> kDeutan{{{0.367322, 0.860646, -0.227968},
                                                        {0.280085, 0.672501, 0.047413},
                                                        {-0.011820, 0.042940, 0.968881}}};
constexpr std::array<std::array<double, 3>, 3> kTritan{{{1.255528, -0.076749, -0.178779},
                                                        {-0.078411, 0.930809, 0.147602},
                                                        {0.004733, 0.691367, 0.303900}}};

TEST(ThemeTest, TextHasTheContrastThatWcagAsksFor) {
  for (const Theme* theme : {&Theme::light(), &Theme::night()}) {
    for (const Ink behind : {Ink::kBackground, Ink::kPanel, Ink::kBand}) {
      EXPECT_GE(contrast((*theme)[Ink::kText], (*theme)[behind]), 7);
      EXPECT_GE(contrast((*theme)[Ink::kFaintText], (*theme)[behind]), 4.5);
      EXPECT_GE(contrast((*theme)[Ink::kAccent], (*theme)[behind]), 4.5);
      EXPECT_GE(contrast((*theme)[Ink::kWarning], (*theme)[behind]), 4.5);
    }
    for (int i = 0; i <= static_cast<int>(Ink::kMemory); ++i) {
      EXPECT_GE(contrast(text_on(theme->inks[static_cast<size_t>(i)]),
                         theme->inks[static_cast<size_t>(i)]),
                4.5)
          << i;
    }
    EXPECT_GE(contrast(text_on((*theme)[Ink::kGathered]), (*theme)[Ink::kGathered]), 4.5);
  }
}

// Lanes are next to each other, so their hues must differ with any colour blindness.
TEST(ThemeTest, KindsDifferWithAnyColourBlindness) {
  for (const Theme* theme : {&Theme::light(), &Theme::night()}) {
    for (const auto* eye : {&kNormal, &kProtan, &kDeutan, &kTritan}) {
      const std::array kinds{Ink::kCompute, Ink::kAllGather, Ink::kReduceScatter,
                             Ink::kCopy,    Ink::kGathered,  Ink::kBackground};
      for (size_t a = 0; a < kinds.size(); ++a) {
        for (size_t b = a + 1; b < kinds.size(); ++b) {
          EXPECT_GE(distance(seen(linear_of((*theme)[kinds[a]]), *eye),
                             seen(linear_of((*theme)[kinds[b]]), *eye)),
                    15)
              << a << " and " << b;
        }
      }
    }
  }
}

}  // namespace
}  // namespace shardlens::gui
