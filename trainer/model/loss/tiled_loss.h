// TiledCrossEntropy: output head and cross entropy of a language model, one tile of the vocabulary
// at a time, so that the logits of all tokens and entries never exist at once.
//
// The model's thread. LibTorch's errors propagate as c10::Error. Shapes: R rows (tokens), C =
// hidden, V = vocab. Forward keeps two numbers a row; backward computes each tile's logits again,
// as flash attention does with its scores. So the head costs four matrix products instead of
// three, and the memory for logits falls to that of one tile: 6 bytes an element in 16 bits and 4
// in fp32, instead of 12 for all.
// Source: PatrickStar's and DeepSpeed's tiled linear layers, joined with the loss; running maximum
// and sum as in online softmax (Milakov and Gimelshein, arXiv 1805.02867).
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace tidepool::trainer {

// Mean over the rows of -log softmax(hidden head^T)[target], as an fp32 scalar; with gradients for
// `hidden` and `head` where these require them. hidden: [R][C]. head: [V][C], of the same type.
// targets: int64 [R], each below V. `tiles`: the number of pieces of the vocabulary, at most V; all
// but the last have V / tiles entries, rounded up. One tile's gradients have the bits of the plain
// computation in most rows; more tiles differ by rounding. Logits are rounded to the type of
// `hidden`, as in the plain computation; the rest is fp32.
at::Tensor TiledCrossEntropy(const at::Tensor& hidden, const at::Tensor& head,
                             const at::Tensor& targets, int64_t tiles);

}  // namespace tidepool::trainer
