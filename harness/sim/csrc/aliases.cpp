// The same bytes under two names. A CPU kernel asks a tensor's storage for its device, so an alias has a CPU storage of its own around the
// npu storage's memory; two tensors that share an npu storage share the CPU storage too, or a kernel would miss that they overlap.
#include "simulated.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>

namespace sim {
namespace {

// copy_ and views get tensors whose conjugation or negation is still to be done, and leave or do it themselves.
void copy_lazy_bits(const at::Tensor& to, const at::Tensor& from) {
  if (from.is_conj() != to.is_conj()) to.unsafeGetTensorImpl()->_set_conj(from.is_conj());
  if (from.is_neg() != to.is_neg()) to.unsafeGetTensorImpl()->_set_neg(from.is_neg());
}

void drop_storage(void* context) { delete static_cast<c10::Storage*>(context); }

}  // namespace

void copy_layout(c10::TensorImpl* to, const c10::TensorImpl* from) {
  to->set_storage_offset(from->storage_offset());
  to->set_sizes_and_strides(from->sizes(), from->strides());
}

c10::Storage Aliases::cpu_storage(const c10::Storage& npu) {
  for (const auto& shared : storages_)
    if (shared.npu.is_alias_of(npu)) return shared.cpu;
  auto* start = const_cast<void*>(npu.data());
  const c10::Device host(c10::kCPU);
  auto data = owning_ ? c10::DataPtr(start, new c10::Storage(npu), &drop_storage, host) : c10::DataPtr(start, host);
  c10::Storage cpu(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), npu.nbytes(), std::move(data),
                                                         c10::GetCPUAllocator(), /*resizable=*/true));
  storages_.push_back({npu, cpu});
  return cpu;
}

at::Tensor Aliases::cpu_alias(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  if (tensor.device().type() != kNPU) {
    passed_through_.push_back(tensor.unsafeGetTensorImpl());
    return tensor;
  }
  for (const auto& pair : pairs_)
    if (pair.npu.is_same(tensor)) return pair.cpu;
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == c10::kStrided && !tensor.is_quantized(),
                              "only dense tensors are simulated on the npu, not ", tensor.toString());
  auto storage = cpu_storage(tensor.storage());
  const void* data = storage.data();
  const size_t bytes = storage.nbytes();
  const c10::DispatchKeySet cpu_keys(c10::DispatchKey::CPU);
  auto alias = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), cpu_keys, tensor.dtype());
  copy_layout(alias.unsafeGetTensorImpl(), tensor.unsafeGetTensorImpl());
  copy_lazy_bits(alias, tensor);
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) alias.unsafeGetTensorImpl()->set_wrapped_number(true);
  pairs_.push_back({tensor, alias, data, bytes});
  return alias;
}

void Aliases::write_back() {
  for (const auto& pair : pairs_) {
    auto *npu = pair.npu.unsafeGetTensorImpl(), *cpu = pair.cpu.unsafeGetTensorImpl();
    const auto& storage = cpu->storage();
    if (storage.data() != pair.data || storage.nbytes() != pair.bytes) {
      // The kernel gave the alias new memory, which now is the device's. Several tensors may share the storage: take it over once.
      auto* owner = npu->unsafe_storage().unsafeGetStorageImpl();
      if (owner->data() != storage.data() || owner->nbytes() != storage.nbytes()) {
        owner->set_data_ptr_noswap(adopt(storage, owner->device().index()));
        owner->set_nbytes(storage.nbytes());
      }
    }
    if (npu->sizes() != cpu->sizes() || npu->strides() != cpu->strides() || npu->storage_offset() != cpu->storage_offset())
      copy_layout(npu, cpu);
  }
}

at::Tensor Aliases::npu_result(const at::Tensor& result, c10::Device device) {
  if (!result.defined() || !result.device().is_cpu()) return result;
  for (auto* impl : passed_through_)
    if (impl == result.unsafeGetTensorImpl()) return result;
  for (const auto& pair : pairs_)
    if (pair.cpu.is_same(result)) return pair.npu;
  if (device.type() != kNPU) return result;
  TORCH_CHECK_NOT_IMPLEMENTED(result.layout() == c10::kStrided && !result.is_quantized(), "the operator's result would be ",
                              result.toString(), "; only dense tensors are simulated on the npu");
  refuse_denied_dtype(result.scalar_type());
  auto shared = std::find_if(storages_.begin(), storages_.end(), [&](const auto& s) { return s.cpu.is_alias_of(result.storage()); });
  if (shared == storages_.end()) {
    auto npu = storage_around(adopt(result.storage(), device.index()), result.storage().nbytes());
    storages_.push_back({npu, result.storage()});
    shared = std::prev(storages_.end());
  }
  c10::Storage storage = shared->npu;
  auto base = std::find_if(pairs_.begin(), pairs_.end(), [&](const auto& p) { return p.npu.storage().is_alias_of(storage); });
  const c10::DispatchKeySet new_keys(c10::DispatchKey::PrivateUse1);
  // A view has the keys of what it is a view of: under inference_mode they aren't those of a new tensor.
  auto npu = base == pairs_.end()
                 ? at::detail::make_tensor<c10::TensorImpl>(std::move(storage), new_keys, result.dtype())
                 : at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, std::move(storage), base->npu.key_set(), result.dtype());
  copy_layout(npu.unsafeGetTensorImpl(), result.unsafeGetTensorImpl());
  copy_lazy_bits(npu, result);
  return npu;
}

}  // namespace sim
