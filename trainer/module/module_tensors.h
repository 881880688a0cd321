// ModuleTensors: the parameters of a torch::nn::Module in the form that a job takes: each once, in
// the job's dtype and on its device.
//
// One thread. Shares the module's tensors. Destruction restores what Place has replaced, unless
// Keep was called.
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
  // One parameter, in order of registration; `name` is its first name.
  struct Parameter {
    std::string name;
    at::Tensor tensor;
    bool multi_use = false;  // it has several names, or the caller declared it
    bool keep_f32 = false;   // named by KeepF32
    at::Tensor former;       // data that Place took out of the tensor; undefined if it did not
  };

  ModuleTensors() = default;
  ~ModuleTensors();
  ModuleTensors(const ModuleTensors&) = delete;
  ModuleTensors& operator=(const ModuleTensors&) = delete;

  // Collects the parameters that have a floating-point type, or are dense and frozen; others stay
  // the module's own. `multi_use`: names of those used more than once. Errors: kUsageError (no such
  // name; parameters that overlap in memory).
  Status Collect(const torch::nn::Module& module, const std::vector<std::string>& multi_use);
  // The dtype of the first trained parameter that is not fp32: "bf16" or another; "fp32" if there
  // is none.
  std::string DTypeName() const;
  // Index of the parameter with this name, its first or another. Errors: kUsageError.
  Result<uint32_t> IndexOf(const std::string& name) const;
  const std::vector<Parameter>& parameters() const { return parameters_; }

  // Marks parameters that stay fp32 whatever dtype Place gets: by one of their names, or by a
  // pattern with * and ?. Errors: kUsageError (one matches nothing).
  Status KeepF32(const std::vector<std::string>& patterns);
  // Replaces the tensor of each parameter whose dtype or device differs from the job's by one
  // without memory, and drops gradients. `dtype`: for all of 16 or more bits; nullopt: each keeps
  // its own. Errors: kUsageError (a parameter is neither on the host nor on that device),
  // LibTorch's exceptions.
  Status Place(std::optional<c10::ScalarType> dtype, c10::Device device);
  // A parameter's values before Place, in host memory.
  at::Tensor InitialValues(uint32_t index) const;
  // Makes Place permanent: frees the former values.
  void Keep();

 private:
  Status CheckOwnMemory() const;

  std::vector<Parameter> parameters_;
  std::unordered_map<std::string, uint32_t> index_;  // by each name
};

}  // namespace tidepool::trainer
