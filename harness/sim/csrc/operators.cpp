// Operators that the fallback can't serve: those that make or rewire storages, and the few where a device does what the CPU does not.
#include "simulated.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/op_registration/op_registration.h>
#include <c10/core/DeviceGuard.h>

namespace sim {
namespace {

using at::Tensor;

// ---- new tensors: from the device's allocator, so that an impossible size is the device's out-of-memory error
const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::ScalarType allowed_dtype(std::optional<at::ScalarType> dtype) {
  const auto chosen = c10::dtype_or_default(dtype);
  refuse_denied_dtype(chosen);
  return chosen;
}

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device> device,
             std::optional<bool> pin_memory, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!c10::pinned_memory_or_default(pin_memory), "Only dense CPU tensors can be pinned");
  const c10::DeviceGuard guard(resolve(c10::device_or_default(device)));
  return at::detail::empty_generic(size, &device_allocator(), kKeys, allowed_dtype(dtype), format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                     std::optional<at::Device> device, std::optional<bool> pin_memory) {
  TORCH_CHECK(!c10::pinned_memory_or_default(pin_memory), "Only dense CPU tensors can be pinned");
  const c10::DeviceGuard guard(resolve(c10::device_or_default(device)));
  return at::detail::empty_strided_generic(size, stride, &device_allocator(), kKeys, allowed_dtype(dtype));
}

// ---- set_: a tensor gets another storage, which must be of the same kind of device
int64_t bytes_needed(const c10::TensorImpl& impl) {
  int64_t elements = 1;
  for (size_t i = 0; i < impl.sizes().size(); i++) {
    if (impl.sizes()[i] == 0) return 0;
    elements += (impl.sizes()[i] - 1) * impl.strides()[i];
  }
  return (impl.storage_offset() + elements) * static_cast<int64_t>(impl.itemsize());
}

Tensor& set_storage_offset(Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  TORCH_CHECK(source.device_type() == kNPU, "set_: expected a storage on npu, got one on ", source.device());
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(source);
  impl->set_storage_offset(offset);
  if (stride.size() == size.size()) {
    impl->set_sizes_and_strides(size, stride);
  } else {
    impl->set_sizes_contiguous(size);
  }
  const auto needed = bytes_needed(*impl);
  if (needed > static_cast<int64_t>(source.nbytes())) resize_storage(source, needed);
  return self;
}

Tensor& set_storage(Tensor& self, at::Storage source) {
  const int64_t elements = static_cast<int64_t>(source.nbytes()) / self.element_size();
  return set_storage_offset(self, source, 0, {elements}, {1});
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set_storage_offset(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

Tensor& set_nothing(Tensor& self) {
  const auto device = resolve(self.device()).index();
  return set_storage_offset(self, new_storage(0, device), 0, {0}, {1});
}

// ---- copies: what copy_ between kinds of devices comes down to
Tensor copy_from(const Tensor& self, const Tensor& destination, bool /*non_blocking*/) {
  Aliases aliases;
  auto from = aliases.cpu_alias(self), to = aliases.cpu_alias(destination);
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  to.copy_(from);
  return destination;
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& destination) {
  const_cast<Tensor&>(destination).resize_(self.sizes());
  return copy_from(self, destination, false);
}

// ---- others
// Without it module.to("npu") makes new Parameters, and tied weights come apart; torch_npu registers it too.
bool has_compatible_shallow_copy_type(const Tensor& self, const Tensor& from) {
  return self.layout() == c10::kStrided && from.layout() == c10::kStrided && !self.is_meta() && !from.is_meta();
}

void record_stream(Tensor&, c10::Stream) {}  // every kernel has ended when its call returns

// Devices have histc for integers, the CPU has not.
Tensor histc(const Tensor& self, int64_t bins, const at::Scalar& low, const at::Scalar& high) {
  Aliases aliases;
  auto input = aliases.cpu_alias(self);
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  auto counts = at::histc(at::isFloatingType(self.scalar_type()) ? input : input.to(at::kFloat), bins, low, high).to(self.scalar_type());
  return aliases.npu_result(counts, self.device());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("set_.source_Storage_storage_offset", set_storage_offset);
  m.impl("set_.source_Storage", set_storage);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("set_", set_nothing);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_has_compatible_shallow_copy_type", has_compatible_shallow_copy_type);
  m.impl("record_stream", record_stream);
  m.impl("histc", histc);
  // Their generic kernels would take the path of an unknown device (convolution_overrideable, _copy_from): the CPU's does it.
  for (const auto* name : {"copy_", "convolution", "convolution_backward"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace
}  // namespace sim
