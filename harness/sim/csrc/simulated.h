// What the parts of the simulated NPU know of one another. The device is PyTorch's PrivateUse1, renamed "npu"; its memory is host memory
// and its kernels are the CPU's. Each .cpp does one job:
//   memory.cpp      who owns device memory: the ledger, the allocators, out of memory
//   devices.cpp     current device, streams, events, the hooks that PyTorch asks
//   generators.cpp  random generators
//   aliases.cpp     the same bytes seen as an npu tensor and as a CPU tensor
//   fallback.cpp    every operator: the CPU kernel, run over aliases; what may be mixed; what is denied
//   operators.cpp   the few operators that need a kernel of their own
//   autocast.cpp    which operators run in which dtype under autocast
//   hccl.cpp        the collectives, over gloo
//   module.cpp      what Python sees
// build.py compiles them as one translation unit, since reading PyTorch's headers is what takes the time.
#pragma once
#include <ATen/ATen.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace sim {

constexpr auto kNPU = c10::DeviceType::PrivateUse1;
// As many as one Ascend host has at most, so that a wrong count is an error and not an overrun.
constexpr int kMaxDevices = 64;

// ---- devices.cpp
int device_count();
int current_device();
void set_current_device(int index);           // raises on an ordinal that isn't there
c10::Device resolve(c10::Device device);      // "npu" without an index is the current one; raises on a bad ordinal
at::PrivateUse1HooksInterface& hooks();
void configure_devices(int count);

// ---- memory.cpp
c10::DeviceAllocator& device_allocator();
c10::Allocator& pinned_allocator();
bool is_pinned(const void* pointer);
// Turn memory that a CPU kernel allocated into memory of a device; raises OutOfMemoryError where the device has not so much left.
c10::DataPtr adopt(const c10::Storage& cpu_storage, int device);
c10::Storage new_storage(size_t bytes, int device);
c10::Storage storage_around(c10::DataPtr data, size_t bytes);
void resize_storage(const c10::Storage& storage, size_t bytes);
void configure_memory(int64_t total_bytes);
void set_memory_fraction(int device, double fraction);
std::pair<int64_t, int64_t> free_and_total(int device);

// ---- generators.cpp
void configure_generators(bool own_randomness);
const at::Generator& default_generator(int device);
at::Generator new_generator(int device);
// The CPU generator that does the work of an npu one; raises for a generator of another kind of device.
at::Generator cpu_generator_of(const at::Generator& generator);
// While alive, the CPU's default generator is in the state of this device's, if devices were asked to have randomness of their own.
class BorrowedRandomness {
 public:
  explicit BorrowedRandomness(int device);
  ~BorrowedRandomness();
  BorrowedRandomness(const BorrowedRandomness&) = delete;
  BorrowedRandomness& operator=(const BorrowedRandomness&) = delete;

 private:
  int device_;
  at::Tensor cpu_state_;
};

// ---- aliases.cpp
void copy_layout(c10::TensorImpl* to, const c10::TensorImpl* from);
class Aliases {
 public:
  // `owning`: the CPU alias keeps the npu memory alive (for work that goes on after the call). It costs an allocation.
  explicit Aliases(bool owning = false) : owning_(owning) {}
  // The CPU tensor over the bytes of an npu tensor; any other tensor is itself.
  at::Tensor cpu_alias(const at::Tensor& tensor);
  // What resize_ or out= did to an alias happens to its npu tensor too.
  void write_back();
  // A CPU kernel's result as a tensor of `device`: an argument again, a view of one, or new memory.
  at::Tensor npu_result(const at::Tensor& result, c10::Device device);

 private:
  struct Pair {
    at::Tensor npu, cpu;
    const void* data;
    size_t bytes;
  };
  struct SharedBytes {
    c10::Storage npu, cpu;
  };
  c10::Storage cpu_storage(const c10::Storage& npu);
  bool owning_;
  std::vector<Pair> pairs_;
  std::vector<SharedBytes> storages_;
  std::vector<c10::TensorImpl*> passed_through_;
};

// ---- fallback.cpp
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void deny_dtype(at::ScalarType dtype);
void refuse_denied_dtype(at::ScalarType dtype);
bool ran_on_another_thread();                 // has any operator run on a thread that isn't the importing one, as backward does

}  // namespace sim
