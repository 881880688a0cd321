#include "trainer/engine/torch_errors.h"

#include <exception>
#include <string>

#include <c10/util/Exception.h>

#include "trainer/model/errors/model_error.h"

namespace tidepool::trainer {
namespace {

// Cuts off the C++ backtrace, which does not help users.
std::string FirstLine(const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  return text.substr(0, text.find('\n'));
}

}  // namespace

Status CatchTorch(const std::function<void()>& body) {
  try {
    body();
  } catch (const c10::OutOfMemoryError& error) {
    return Status(ErrorId::kDeviceMemoryShort, "LibTorch: " + FirstLine(error));
  } catch (const ModelError& error) {
    return error.status();

  } catch (const c10::AcceleratorError& error) {
    return Status(ErrorId::kCudaFailed, "LibTorch: " + FirstLine(error));
  } catch (const std::exception& error) {
    return Status(ErrorId::kLibraryFailed, std::string("LibTorch: ") + error.what());
  }
  return {};
}

}  // namespace tidepool::trainer
