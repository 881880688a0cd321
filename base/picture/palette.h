// Palette: the colours of every picture, and the style sheet by which SVG and HTML wear them.
//
// Any thread; constants and pure functions. Colours of states and curves are those of Okabe and Ito
// (Color Universal Design, 2008), which people of every colour vision tell apart, each with a light
// and a dark form; letters in cells and dashes of curves say the same. In the style sheet an ink is
// the variable --NAME, the class ink-NAME fills with it, and line-NAME draws with it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tidepool {

// A colour by its use: "#rrggbb" on light ground and on dark.
struct Ink {
  std::string_view name, light, dark;
};

// Grounds and words first, then states of chunks, which also colour curves.
std::span<const Ink> Inks();
// The states alone.
std::span<const Ink> StateInks();

// Where a style sheet is used. In a page a picture's room is that of its element of class
// "picture"; a file of SVG alone is its own room.
enum class PictureHome { kPage, kFile };
// Variables for both grounds, the classes of inks, and those of RoomClass.
std::string PictureStyle(PictureHome home);

// " wN": shown where the picture is at least `pixels` wide, to the next of a few widths; empty:
// always. No picture is as wide as `pixels` where FitsRoom is false.
std::string RoomClass(double pixels);
bool FitsRoom(double pixels);

}  // namespace tidepool
