// Which operators run in which dtype under torch.autocast("npu"): PyTorch's lists for accelerators, which torch_npu takes too.
#include <ATen/autocast_mode.h>

#include "simulated.h"

namespace sim::autocast {
namespace {

using namespace at;  // the lists below name types as at::autocast would

at::Tensor binary_cross_entropy_is_unsafe(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, int64_t) {
  TORCH_CHECK(false,
              "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast. Use binary_cross_entropy_with_logits "
              "or BCEWithLogitsLoss, which are safe to autocast.");
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define IN_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define IN_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define IN_FP32_BY_ARGUMENT(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define IN_FP32_BY_OTHER_OVERLOAD(...) KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE(__VA_ARGS__)
#define IN_WIDEST(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(IN_LOWER_PRECISION)
  AT_FORALL_FP32(IN_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(IN_FP32_BY_ARGUMENT)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(IN_FP32_BY_OTHER_OVERLOAD)
  AT_FORALL_PROMOTE(IN_WIDEST)
#undef IN_LOWER_PRECISION
#undef IN_FP32
#undef IN_FP32_BY_ARGUMENT
#undef IN_FP32_BY_OTHER_OVERLOAD
#undef IN_WIDEST
  m.impl("binary_cross_entropy", &binary_cross_entropy_is_unsafe);
}

}  // namespace
}  // namespace sim::autocast
