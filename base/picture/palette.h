// Palette: the colours of all pictures, and the style sheet that applies them to SVG and HTML.
//
// Any thread; constants and pure functions. States and curves have the colours of Okabe and Ito
// (Color Universal Design, 2008), which are distinguishable with every colour vision, each in a
// light and a dark variant. Letters in cells and dashes of curves repeat the distinction. In the
// style sheet an ink is the variable --NAME; the class ink-NAME fills with it, line-NAME strokes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tidepool {

// A named colour: "#rrggbb" on a light background and on a dark one.
struct Ink {
  std::string_view name, light, dark;
};

// All inks: backgrounds and text first, then the states of chunks, which curves use too.
std::span<const Ink> Inks();
// Only the inks of states.
std::span<const Ink> StateInks();

// The place of a style sheet. In a page, RoomClass measures the element of class "picture"; in an
// SVG file, the whole image.
enum class PictureHome { kPage, kFile };
// The style sheet: variables for both backgrounds, the classes of inks, and those of RoomClass.
std::string PictureStyle(PictureHome home);

// The class " wN" of an element that is shown only in pictures at least `pixels` wide, rounded up
// to one of a few widths; empty: always shown. FitsRoom is false if `pixels` exceeds all widths.
std::string RoomClass(double pixels);
bool FitsRoom(double pixels);

}  // namespace tidepool
