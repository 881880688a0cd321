// Macros for code that a host compiler and the CUDA compiler both compile, so that the arithmetic
// of an element is written once.
//
// For the loop headers only (element_types.h, rules/). TP_BOTH_SIDES is empty outside the CUDA
// compiler: a host build sees plain functions.
#pragma once

#if defined(__CUDACC__)
#define TP_BOTH_SIDES __host__ __device__
#else
#define TP_BOTH_SIDES
#endif

// The correctly rounded square root: one instruction on a CPU, the rounded intrinsic on a GPU
// (where built-ins do not exist).
#if defined(__CUDA_ARCH__)
#define TP_SQUARE_ROOT(value) __fsqrt_rn(value)
#else
#define TP_SQUARE_ROOT(value) __builtin_sqrtf(value)
#endif
