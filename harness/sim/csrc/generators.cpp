// A generator of the device forwards to a CPU generator. By default it is the CPU's own default generator, so that a run draws the same
// numbers as the plain CPU run it is compared with; with randomness of its own each device has a stream of its own, as real devices do.
#include "simulated.h"

#include <ATen/CPUGeneratorImpl.h>

namespace sim {
namespace {

bool g_own_randomness = false;

struct NpuGenerator final : c10::GeneratorImpl {
  at::Generator cpu;

  NpuGenerator(int device, at::Generator cpu_generator)
      : GeneratorImpl(c10::Device(kNPU, static_cast<c10::DeviceIndex>(device)), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        cpu(std::move(cpu_generator)) {}

  void set_current_seed(uint64_t seed) override { cpu.set_current_seed(seed); }
  uint64_t current_seed() const override { return cpu.current_seed(); }
  uint64_t seed() override { return cpu.seed(); }
  void set_offset(uint64_t) override { TORCH_CHECK(false, "a SIMULATED NPU's generator has no offset: it draws as the CPU does"); }
  uint64_t get_offset() const override { return 0; }
  void set_state(const c10::TensorImpl& state) override { cpu.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return cpu.unsafeGetGeneratorImpl()->get_state(); }
  NpuGenerator* clone_impl() const override { return new NpuGenerator(device_.index(), cpu.clone()); }
  static c10::DeviceType device_type() { return kNPU; }
};

at::Generator around(int device, at::Generator cpu) { return at::Generator(c10::make_intrusive<NpuGenerator>(device, std::move(cpu))); }

}  // namespace

void configure_generators(bool own_randomness) { g_own_randomness = own_randomness; }

const at::Generator& default_generator(int device) {
  static auto* made = [] {
    auto* generators = new std::vector<at::Generator>;
    for (int i = 0; i < kMaxDevices; i++)
      generators->push_back(
          around(i, g_own_randomness ? at::detail::createCPUGenerator(c10::default_rng_seed_val) : at::detail::getDefaultCPUGenerator()));
    return generators;
  }();
  return (*made)[device];
}

at::Generator new_generator(int device) { return around(device, at::detail::createCPUGenerator(c10::default_rng_seed_val)); }

at::Generator cpu_generator_of(const at::Generator& generator) {
  TORCH_CHECK(generator.device().type() == kNPU, "Expected a 'npu' device type for generator but found '", generator.device().type(), "'");
  return static_cast<NpuGenerator*>(generator.unsafeGetGeneratorImpl())->cpu;
}

// CPU kernels of dropout and the like draw from the CPU's default generator and take no other, so its state is swapped around the call.
BorrowedRandomness::BorrowedRandomness(int device) : device_(g_own_randomness ? device : -1) {
  if (device_ < 0) return;
  const auto& cpu = at::detail::getDefaultCPUGenerator();
  cpu_state_ = cpu.get_state();
  cpu.unsafeGetGeneratorImpl()->set_state(*default_generator(device_).get_state().unsafeGetTensorImpl());
}

BorrowedRandomness::~BorrowedRandomness() {
  if (device_ < 0) return;
  const auto& cpu = at::detail::getDefaultCPUGenerator();
  default_generator(device_).unsafeGetGeneratorImpl()->set_state(*cpu.get_state().unsafeGetTensorImpl());
  cpu.unsafeGetGeneratorImpl()->set_state(*cpu_state_.unsafeGetTensorImpl());
}

}  // namespace sim
