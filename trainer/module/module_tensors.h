// ModuleTensors: the parameters of a torch::nn::Module as a job takes them: each once, in its dtype
// there and on the job's device.
//
// One thread. Shares the module's tensors. What Place has exchanged comes back when the object
// ends, unless Keep was called.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "base/status.h"

namespace tidepool::trainer {

class ModuleTensors {
 public:
  // One parameter, in the order of registration; `name` is the first that it has.
  struct Parameter {
    std::string name;
    at::Tensor tensor;
    bool multi_use = false;  // it has several names, or the caller said so
    bool keep_f32 = false;   // KeepF32 has named it
    at::Tensor former;       // what Place took out of the tensor; undefined where it did not
  };

  ModuleTensors() = default;
  ~ModuleTensors();
  ModuleTensors(const ModuleTensors&) = delete;
  ModuleTensors& operator=(const ModuleTensors&) = delete;

  // Parameters of the module that are of a floating-point type, or dense and frozen; others stay
  // the module's own. `multi_use`: names of those that are used at several places. Errors:
  // kUsageError (no such name; parameters that overlap in memory).
  Status Collect(const torch::nn::Module& module, const std::vector<std::string>& multi_use);
  // The dtype of the first trained parameter that is not fp32: "bf16" or another; "fp32" where
  // there is none.
  std::string DTypeName() const;
  // Index of the parameter that has this name, its first or another. Errors: kUsageError.
  Result<uint32_t> IndexOf(const std::string& name) const;
  const std::vector<Parameter>& parameters() const { return parameters_; }

  // Marks parameters that are to be fp32 whatever Place is told: by one of their names, or by a
  // pattern of names with * and ?. Errors: kUsageError (one fits none).
  Status KeepF32(const std::vector<std::string>& patterns);
  // Gives each parameter that differs from its dtype or the job's device a tensor of it, without
  // memory, and drops gradients. `dtype`: of all of fp16 or more bits; none: each has its own.
  // Errors: kUsageError (a parameter is on another device than the host and that one), LibTorch's
  // exceptions.
  Status Place(std::optional<c10::ScalarType> dtype, c10::Device device);
  // The values that a parameter had before Place, in host memory.
  at::Tensor InitialValues(uint32_t index) const;
  // The parameters stay as Place made them, and their former values are given up.
  void Keep();

 private:
  Status CheckOwnMemory() const;

  std::vector<Parameter> parameters_;
  std::unordered_map<std::string, uint32_t> index_;  // by each name
};

}  // namespace tidepool::trainer
