// Every operator of the device that has no kernel of its own: the CPU's kernel, run on aliases of the arguments.
#include "simulated.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/op_registration/op_registration.h>

#include <atomic>
#include <bitset>
#include <thread>

namespace sim {
namespace {

std::bitset<64> g_denied_dtypes;
const std::thread::id g_importing_thread = std::this_thread::get_id();
std::atomic<bool> g_ran_elsewhere{false};

bool starts_with(const std::string& text, const char* start) { return text.rfind(start, 0) == 0; }

bool copies_between_devices(const std::string& name) {
  return name == "aten::copy_" || name == "aten::_copy_from" || name == "aten::_copy_from_and_resize" || name == "aten::_foreach_copy_";
}

bool takes_cpu_indices(const std::string& name) {
  return starts_with(name, "aten::index") || starts_with(name, "aten::_index_put") || starts_with(name, "aten::_unsafe_index");
}

// Which devices the arguments are on, by the rules of a real device: all on one, but for zero-dimensional CPU tensors that are only
// read, for copies, and for the indices of an indexing operator.
class Mixture {
 public:
  void see(const at::Tensor& tensor, bool written, bool is_index) {
    if (!tensor.defined()) return;
    if (tensor.device().type() == kNPU) {
      if (!is_index) outside_indices_ = true;
      if (!npu_) npu_ = tensor.device();
      if (*npu_ != tensor.device() && !other_) other_ = tensor.device();
    } else if (tensor.device().is_cpu() && (tensor.dim() > 0 || written)) {
      is_index ? cpu_index_ = true : cpu_ = true;
    }
  }

  void check(const std::string& name) const {
    if (!npu_ || copies_between_devices(name)) return;
    // A tensor of the CPU takes no indices that lie on a device.
    const bool bad_index = cpu_index_ && !(takes_cpu_indices(name) && outside_indices_);
    if (!cpu_ && !other_ && !bad_index) return;
    const auto second = other_ ? *other_ : c10::Device(c10::kCPU);
    TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", *npu_, " and ", second,
                "! (when checking arguments of ", name, ", SIMULATED NPU)");
  }

  std::optional<c10::Device> npu() const { return npu_; }

 private:
  std::optional<c10::Device> npu_, other_;
  bool cpu_ = false, cpu_index_ = false, outside_indices_ = false;
};

}  // namespace

void deny_dtype(at::ScalarType dtype) { g_denied_dtypes.set(static_cast<size_t>(dtype)); }
bool ran_on_another_thread() { return g_ran_elsewhere; }

void refuse_denied_dtype(at::ScalarType dtype) {
  TORCH_CHECK(!g_denied_dtypes.test(static_cast<size_t>(dtype)), "the npu has no ", dtype, ": it is on the deny list of this SIMULATED NPU");
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto& arguments = schema.arguments();
  const size_t first = stack->size() - arguments.size();
  if (!g_ran_elsewhere && std::this_thread::get_id() != g_importing_thread) g_ran_elsewhere = true;

  Aliases aliases;
  Mixture mixture;
  std::optional<c10::Device> asked;
  for (size_t i = 0; i < arguments.size(); i++) {
    c10::IValue& value = (*stack)[first + i];
    const bool written = arguments[i].alias_info() && arguments[i].alias_info()->isWrite();
    if (value.isTensor()) {
      mixture.see(value.toTensor(), written, false);
      value = aliases.cpu_alias(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> list = value.toTensorVector();
      for (auto& tensor : list) {
        mixture.see(tensor, written, false);
        tensor = aliases.cpu_alias(tensor);
      }
      value = c10::IValue(std::move(list));
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& tensor : value.toOptionalTensorVector()) {
        if (tensor) mixture.see(*tensor, written, true);
        list.push_back(tensor ? std::optional<at::Tensor>(aliases.cpu_alias(*tensor)) : std::nullopt);
      }
      value = c10::IValue(std::move(list));
    } else if (value.isDevice()) {
      asked = value.toDevice();
      if (asked->type() == kNPU) value = c10::IValue(c10::Device(c10::kCPU));
    } else if (value.isGenerator()) {
      value = c10::IValue(cpu_generator_of(value.toGenerator()));
    }
  }
  mixture.check(schema.name());
  auto device = asked ? *asked : mixture.npu() ? *mixture.npu() : c10::Device(kNPU);
  if (device.type() == kNPU) device = resolve(device);
  {
    // The CPU kernel's own calls must meet neither autograd, which has recorded this call, nor a CPU autocast region.
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    c10::impl::ExcludeDispatchKeyGuard below_autocast(c10::autocast_dispatch_keyset);
    std::optional<BorrowedRandomness> randomness;
    if (device.type() == kNPU && op.hasTag(at::Tag::nondeterministic_seeded)) randomness.emplace(device.index());
    op.callBoxed(stack);
  }
  aliases.write_back();
  for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); i++) {
    c10::IValue& value = (*stack)[i];
    if (value.isTensor()) {
      value = aliases.npu_result(value.toTensor(), device);
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> list = value.toTensorVector();
      for (auto& tensor : list) tensor = aliases.npu_result(tensor, device);
      value = c10::IValue(std::move(list));
    }
  }
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

}  // namespace sim
