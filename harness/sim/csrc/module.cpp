// What Python sees of the extension, as torch_npu._C. The stand-in's torch_npu/npu builds torch.npu from it.
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/utils/pybind.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "hccl.h"
#include "simulated.h"

namespace sim {
namespace {

// Backward ran on threads of autograd's, one a device. Such a thread drops the last graph, which may hold Python objects, a moment after
// backward returned; if the interpreter is being finalized by then, taking its lock aborts the process. A backward of our own through
// each thread, without Python objects, is only begun when the one before was dropped. Returns whether all ended in time.
bool settle_autograd(int milliseconds) {
  if (!ran_on_another_thread()) return true;
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool ended = false;
  };
  auto state = std::make_shared<State>();
  std::thread([state, count = device_count()] {
    try {
      for (int i = 0; i < count; i++) {
        const at::AutoGradMode with_gradient(true);
        auto leaf = at::ones({1}, at::TensorOptions().device(c10::Device(kNPU, static_cast<c10::DeviceIndex>(i)))).requires_grad_();
        (leaf * 2).sum().backward();
      }
    } catch (const std::exception&) {
      // A child of fork() has no such threads, and autograd says so by raising: nothing to wait for.
    }
    std::lock_guard<std::mutex> lock(state->mutex);
    state->ended = true;
    state->changed.notify_all();
  }).detach();
  std::unique_lock<std::mutex> lock(state->mutex);
  return state->changed.wait_for(lock, std::chrono::milliseconds(milliseconds), [&] { return state->ended; });
}

}  // namespace
}  // namespace sim

PYBIND11_MODULE(_C, m) {
  namespace py = pybind11;
  at::RegisterPrivateUse1HooksInterface(&sim::hooks());

  m.def(
      "configure",
      [](int devices, int64_t memory_bytes, bool own_randomness) {
        sim::configure_devices(devices);
        sim::configure_memory(memory_bytes);
        sim::configure_generators(own_randomness);
      },
      py::arg("devices"), py::arg("memory_bytes"), py::arg("own_randomness"));
  m.def("deny_dtype", [](const py::object& dtype) {
    TORCH_CHECK(THPDtype_Check(dtype.ptr()), "deny_dtype takes a torch.dtype");
    sim::deny_dtype(reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type);
  });

  m.def("device_count", &sim::device_count);
  m.def("current_device", &sim::current_device);
  m.def("set_device", &sim::set_current_device);
  m.def("default_generator", [](int device) { return sim::default_generator(device); });
  m.def("mem_get_info", &sim::free_and_total);
  m.def("set_memory_fraction", &sim::set_memory_fraction);
  m.def("_storage_Use_Count", [](size_t storage_impl) {
    return c10::raw::intrusive_ptr::use_count(reinterpret_cast<c10::StorageImpl*>(storage_impl));
  });
  m.def("settle_autograd", &sim::settle_autograd, py::call_guard<py::gil_scoped_release>());

  py::class_<sim::Hccl, c10d::Backend, c10::intrusive_ptr<sim::Hccl>>(m, "ProcessGroupHCCL")
      .def(py::init<c10::intrusive_ptr<c10d::Backend>>());
}
