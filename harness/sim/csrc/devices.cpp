// How many devices there are, which one is current, and streams and events, which are trivial: a call returns when its kernel has ended.
#include "simulated.h"

#include <atomic>
#include <chrono>

namespace sim {
namespace {

int g_count = 1;
thread_local int t_current = 0;
thread_local c10::StreamId t_stream[kMaxDevices] = {};
std::atomic<c10::StreamId> g_next_stream{1};  // 0 is the default stream

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A device for the calls that must not raise: an index out of range is left for the next checked call to find.
int index_of(c10::Device device) { return device.index() < 0 ? t_current : device.index(); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kNPU; }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(g_count); }

  c10::Device getDevice() const override { return {kNPU, static_cast<c10::DeviceIndex>(t_current)}; }
  void setDevice(c10::Device device) const override { t_current = resolve(device).index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { t_current = index_of(device); }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = getDevice();
    setDevice(device);
    return before;
  }

  c10::Stream stream(c10::Device device, c10::StreamId id) const { return c10::Stream(c10::Stream::UNSAFE, resolve(device), id); }
  c10::Stream getStream(c10::Device device) const override { return stream(device, t_stream[resolve(device).index()]); }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(device, 0); }
  c10::Stream getNewStream(c10::Device device, int) const override { return stream(device, g_next_stream++); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream exchangeStream(c10::Stream next) const override {
    auto& current = t_stream[resolve(next.device()).index()];
    const auto before = stream(next.device(), current);
    current = next.id();
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return reinterpret_cast<void*>(stream.id() + 1); }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}

  // An event is the time at which it was recorded.
  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (!*event) *event = new double;
    *static_cast<double*>(*event) = now_ms();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<double*>(event); }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  double elapsedTime(void* from, void* to, const c10::DeviceIndex) const override {
    TORCH_CHECK(from && to, "both events must be recorded before the time between them is known");
    return *static_cast<double*>(to) - *static_cast<double*>(from);
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return g_count > 0; }
  bool hasPrimaryContext(c10::DeviceIndex index) const override { return index < g_count; }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(g_count); }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(t_current); }
  void setCurrentDevice(c10::DeviceIndex index) const override { set_current_device(index); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const auto before = getCurrentDevice();
    set_current_device(index);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? getCurrentDevice() : exchangeDevice(index);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(resolve({kNPU, index}).index());
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override { return new_generator(resolve({kNPU, index}).index()); }
  c10::Device getDeviceFromPtr(void*) const override { return {kNPU, getCurrentDevice()}; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  bool isPinnedPtr(const void* pointer) const override { return is_pinned(pointer); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override { resize_storage(storage, bytes); }
};

}  // namespace

int device_count() { return g_count; }
int current_device() { return t_current; }
void set_current_device(int index) { t_current = resolve({kNPU, static_cast<c10::DeviceIndex>(index)}).index(); }

c10::Device resolve(c10::Device device) {
  const int index = index_of(device);
  TORCH_CHECK(index < g_count, "npu: invalid device ordinal ", index, ": there are ", g_count, " (SIMULATED NPU)");
  return {kNPU, static_cast<c10::DeviceIndex>(index)};
}

at::PrivateUse1HooksInterface& hooks() {
  static auto* made = new Hooks;
  return *made;
}

void configure_devices(int count) {
  TORCH_CHECK(count >= 0 && count <= kMaxDevices, count, " devices were asked for; at most ", kMaxDevices, " can be simulated");
  g_count = count;
}

}  // namespace sim
