// OptimizerSpec: a job's update rule, its hyperparameters, and the storage form of its states; and
// the resulting sizes in bytes.
//
// Any thread; plain values and pure functions. The numbers of the enumerations are part of the wire
// format and of kept memory: never change them. Fields that a rule does not use have no effect.
// Every rule's arithmetic is in optim/rules/; its name and planes are in optimizer.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/dtype.h"

namespace tidepool {

// The update rule of a job.
enum class OptimizerRule : uint32_t { kAdamW = 0, kAdam = 1, kSgd = 2, kAdagrad = 3, kLion = 4 };

// How the states of a chunk are stored.
enum class StateForm : uint32_t {
  // fp32 master, momentum and variance; in 16-bit jobs a rounded copy of the master beside them.
  kF32 = 0,
  // bf16 jobs: the copy and a signed 16-bit rest are the master (base/formats/split_float.h); fp32
  // momentum and variance.
  kSplit = 1,
  kSplitBf16 = 2,  // split master; bf16 momentum and variance, rounded stochastically
  // Split master; 8-bit momentum and root of the variance, one fp32 scale for each block of 32
  // elements.
  kSplit8 = 3,
};

struct OptimizerSpec {
  OptimizerRule rule = OptimizerRule::kAdamW;
  StateForm states = StateForm::kF32;
  // AdamW, Adam, Lion; doubles: 1 - 0.999f is 5e-5 off the 0.001 that torch uses.
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;           // AdamW, Adam, Adagrad
  double momentum = 0;         // SGD; 0: none, and no momentum plane
  double dampening = 0;        // SGD
  double lr_decay = 0;         // Adagrad
  uint32_t nesterov = 0;       // SGD; 0 or 1
  uint64_t rounding_seed = 0;  // of stochastic rounding

  friend bool operator==(const OptimizerSpec&, const OptimizerSpec&) = default;
};

// Null if every number is in range and fits the others (torch's conditions); else what is wrong.
const char* WhyBad(const OptimizerSpec& spec, DType parameters);

// The numbers of one step for one parameter group, replacing the job's. The layout is a part of
// kept memory (memserver/residency/kept/step_slots.h).
struct GroupNumbers {
  // Adam, AdamW, Lion: as in OptimizerSpec. SGD: momentum and dampening. Adagrad: lr_decay and 0.
  double beta1 = 0, beta2 = 0;
  float learning_rate = 0;  // of the group itself; no factor is applied
  float weight_decay = 0;
  float eps = 0;  // 0 if the rule has none
  uint32_t reserved = 0;

  friend bool operator==(const GroupNumbers&, const GroupNumbers&) = default;
};
static_assert(sizeof(GroupNumbers) == 32);

// The numbers of `spec` for a group with this rate and decay.
GroupNumbers NumbersOf(const OptimizerSpec& spec, float learning_rate, float weight_decay);
// The rule with a group's numbers of one step. Requires numbers that are not bad.
OptimizerSpec WithNumbers(const OptimizerSpec& spec, const GroupNumbers& numbers);
// Null if a step of a job with this (checked) spec may use the numbers; else what is wrong. The
// planes of a job are fixed: its momentum stays positive, or stays 0.
const char* WhyBad(const OptimizerSpec& spec, DType parameters, const GroupNumbers& numbers);

// "adamw", ...; "fp32", "split", "split-bf16", "split-8bit". Unknown numbers have no name (null),
// unknown names no value.
const char* NameOf(OptimizerRule rule);
const char* NameOf(StateForm form);
std::optional<OptimizerRule> RuleFromName(std::string_view name);
std::optional<StateForm> StateFormFromName(std::string_view name);
std::span<const char* const> RuleNames();
std::span<const char* const> StateFormNames();

// SplitMix64's finalizer (Steele, Lea, Flood, OOPSLA 2014).
uint64_t MixBits(uint64_t bits);
// The start of a parameter's random bits, derived from its name, so that they do not depend on the
// layout of chunks.
uint64_t RoundingSeedOf(const OptimizerSpec& spec, std::string_view parameter);

// Elements that share a scale, counted from the chunk's start. Parameters of a bf16 job start at a
// block boundary.
inline constexpr uint64_t kScaleBlockElements = 32;

// True if the master is split into the 16-bit weight and a 16-bit rest.
inline bool IsSplit(StateForm form) {
  return form != StateForm::kF32;
}
// The planes that the rule needs besides the master. Both require a checked spec.
bool NeedsMomentum(const OptimizerSpec& spec);
bool NeedsVariance(const OptimizerSpec& spec);
// Bytes of a plane of `elements`: the master (or its rest), and one moment, 8-bit ones with their
// scales, which begin at ScalesOffset.
uint64_t MasterBytes(StateForm form, uint64_t elements);
uint64_t MomentBytes(StateForm form, uint64_t elements);
uint64_t ScalesOffset(uint64_t elements);

}  // namespace tidepool
