// TP_HOT: marks a function through which every request, or every turn of the serve loop, runs.
//
// The linker puts these functions side by side. A server that a request wakes after a pause finds
// its caches and its TLB cold, and what it pays before the answer is lines and pages of code: one
// fetch ran through 36 pages before the functions were marked, and through 19 since.
#pragma once

#define TP_HOT [[gnu::hot]]
