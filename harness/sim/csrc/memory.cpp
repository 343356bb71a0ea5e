// Device memory is host memory with a ledger: what each device holds, what it held at most, and an end to it.
#include "simulated.h"

#include <c10/core/CPUAllocator.h>

#include <cstdlib>
#include <map>
#include <mutex>

namespace sim {
namespace {

using c10::CachingDeviceAllocator::DeviceStats;

// The sizes in which torch_npu's caching allocator hands out memory and asks the driver for it.
constexpr int64_t kBlock = 512, kSegment = 2 << 20;

int64_t rounded_up(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

template <class Array>
c10::CachingAllocator::Stat& all_pools(Array& stats) {
  return stats[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
}

std::string readable(int64_t bytes) {
  char text[32];
  if (bytes >= (int64_t(1) << 30)) {
    std::snprintf(text, sizeof text, "%.2f GiB", bytes / 1073741824.0);
  } else if (bytes >= (1 << 20)) {
    std::snprintf(text, sizeof text, "%.2f MiB", bytes / 1048576.0);
  } else {
    std::snprintf(text, sizeof text, "%.2f KiB", bytes / 1024.0);
  }
  return text;
}

class Ledger {
 public:
  void configure(int64_t total) {
    std::lock_guard<std::mutex> lock(mutex_);
    total_ = total;
    for (auto& limit : limits_) limit = total;
  }

  void set_fraction(int device, double fraction) {
    std::lock_guard<std::mutex> lock(mutex_);
    limits_[device] = static_cast<int64_t>(total_ * fraction);
  }

  void charge(int device, int64_t bytes) {
    const int64_t block = rounded_up(bytes, kBlock);
    std::lock_guard<std::mutex> lock(mutex_);
    auto& stats = stats_[device];
    const int64_t held = all_pools(stats.allocated_bytes).current;
    if (held + block > limits_[device]) {
      ++stats.num_alloc_retries;
      ++stats.num_ooms;
      refuse(device, block, stats);
    }
    all_pools(stats.allocation).increase(1);
    all_pools(stats.active).increase(1);
    all_pools(stats.allocated_bytes).increase(block);
    all_pools(stats.active_bytes).increase(block);
    all_pools(stats.requested_bytes).increase(bytes);
    const int64_t reserved = all_pools(stats.reserved_bytes).current;
    if (held + block > reserved) {
      const int64_t wanted = std::min(rounded_up(held + block, kSegment), limits_[device]);
      all_pools(stats.reserved_bytes).increase(wanted - reserved);
      all_pools(stats.segment).increase(1);
      ++stats.num_device_alloc;
    }
  }

  void release(int device, int64_t bytes) {
    const int64_t block = rounded_up(bytes, kBlock);
    std::lock_guard<std::mutex> lock(mutex_);
    auto& stats = stats_[device];
    all_pools(stats.allocation).decrease(1);
    all_pools(stats.active).decrease(1);
    all_pools(stats.allocated_bytes).decrease(block);
    all_pools(stats.active_bytes).decrease(block);
    all_pools(stats.requested_bytes).decrease(bytes);
  }

  void empty_cache() {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& stats : stats_) {
      const int64_t needed = rounded_up(all_pools(stats.allocated_bytes).current, kSegment);
      const int64_t surplus = all_pools(stats.reserved_bytes).current - needed;
      if (surplus > 0) {
        all_pools(stats.reserved_bytes).decrease(surplus);
        if (!needed) all_pools(stats.segment).decrease(all_pools(stats.segment).current);
        ++stats.num_device_free;
      }
    }
  }

  DeviceStats stats(int device) {
    std::lock_guard<std::mutex> lock(mutex_);
    return stats_[device];
  }

  template <class Change>
  void reset(int device, Change change) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& s = stats_[device];
    for (auto* array : {&s.allocation, &s.segment, &s.active, &s.inactive_split, &s.allocated_bytes, &s.reserved_bytes, &s.active_bytes,
                        &s.inactive_split_bytes, &s.requested_bytes})
      for (auto& stat : *array) change(stat);
  }

  std::pair<int64_t, int64_t> free_and_total(int device) {
    std::lock_guard<std::mutex> lock(mutex_);
    return {std::max<int64_t>(limits_[device] - all_pools(stats_[device].reserved_bytes).current, 0), total_};
  }

 private:
  // The wording of torch_npu, which users and log readers search for.
  void refuse(int device, int64_t block, DeviceStats& stats) {
    const int64_t held = all_pools(stats.allocated_bytes).current;
    TORCH_CHECK_WITH(OutOfMemoryError, false, "NPU out of memory. Tried to allocate ", readable(block), " (NPU ", device, "; ",
                     readable(limits_[device]), " total capacity; ", readable(held), " already allocated; ",
                     readable(all_pools(stats.active_bytes).current), " current active; ", readable(limits_[device] - held), " free; ",
                     readable(all_pools(stats.reserved_bytes).current),
                     " reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid "
                     "fragmentation. (SIMULATED NPU: NPU_MATRIX_SIM_MEMORY_MIB sets its size)");
  }

  std::mutex mutex_;
  int64_t total_ = int64_t(64) << 30;
  int64_t limits_[kMaxDevices] = {};
  DeviceStats stats_[kMaxDevices];
};

// Never destroyed: tensors may outlive every static.
Ledger& ledger() {
  static auto* made = new Ledger;
  return *made;
}

// What a device DataPtr owns: memory of its own, or the CPU storage whose memory it took over.
struct Holding {
  c10::DataPtr memory;
  c10::Storage taken_over;
  int64_t bytes;
  int device;
};

void let_go(void* context) {
  auto* holding = static_cast<Holding*>(context);
  ledger().release(holding->device, holding->bytes);
  delete holding;
}

c10::DataPtr allocate_on(int device, size_t bytes) {
  ledger().charge(device, bytes);
  c10::DataPtr memory;
  try {
    memory = c10::GetCPUAllocator()->allocate(bytes);
  } catch (...) {
    ledger().release(device, bytes);
    throw;
  }
  void* start = memory.get();
  return {start, new Holding{std::move(memory), {}, static_cast<int64_t>(bytes), device}, &let_go, c10::Device(kNPU, device)};
}

struct NpuAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override { return allocate_on(current_device(), bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override { ledger().empty_cache(); }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}  // every kernel has ended when its call returns
  DeviceStats getDeviceStats(c10::DeviceIndex device) override { return ledger().stats(resolve({kNPU, device}).index()); }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    ledger().reset(resolve({kNPU, device}).index(), [](auto& stat) { stat.reset_accumulated(); });
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    ledger().reset(resolve({kNPU, device}).index(), [](auto& stat) { stat.reset_peak(); });
  }
};

NpuAllocator g_npu_allocator;
REGISTER_ALLOCATOR(kNPU, &g_npu_allocator);

// Pinned memory is remembered by its range, so that is_pinned() is true of views of it and of nothing else.
class PinnedAllocator final : public c10::Allocator {
 public:
  static PinnedAllocator& instance() {
    static auto* made = new PinnedAllocator;
    return *made;
  }
  c10::DataPtr allocate(size_t bytes) override {
    if (!bytes) return {nullptr, c10::Device(c10::kCPU)};
    void* start = nullptr;
    TORCH_CHECK_WITH(OutOfMemoryError, posix_memalign(&start, 64, bytes) == 0, "no host memory left to pin ", bytes, " bytes");
    std::lock_guard<std::mutex> lock(mutex_);
    ranges_[start] = bytes;
    return {start, start, &unpin, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &unpin; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
  bool contains(const void* pointer) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto after = ranges_.upper_bound(pointer);
    if (after == ranges_.begin()) return false;
    const auto& [start, bytes] = *std::prev(after);
    return static_cast<const char*>(pointer) < static_cast<const char*>(start) + bytes;
  }

 private:
  static void unpin(void* start) {
    if (!start) return;
    {
      std::lock_guard<std::mutex> lock(instance().mutex_);
      instance().ranges_.erase(start);
    }
    ::free(start);
  }
  std::mutex mutex_;
  std::map<const void*, size_t> ranges_;
};

}  // namespace

c10::DeviceAllocator& device_allocator() { return g_npu_allocator; }
c10::Allocator& pinned_allocator() { return PinnedAllocator::instance(); }
bool is_pinned(const void* pointer) { return pointer && PinnedAllocator::instance().contains(pointer); }
void configure_memory(int64_t total_bytes) { ledger().configure(total_bytes); }
void set_memory_fraction(int device, double fraction) { ledger().set_fraction(device, fraction); }
std::pair<int64_t, int64_t> free_and_total(int device) { return ledger().free_and_total(device); }

c10::DataPtr adopt(const c10::Storage& cpu_storage, int device) {
  const auto bytes = static_cast<int64_t>(cpu_storage.nbytes());
  ledger().charge(device, bytes);
  return {const_cast<void*>(cpu_storage.data()), new Holding{{}, cpu_storage, bytes, device}, &let_go, c10::Device(kNPU, device)};
}

c10::Storage storage_around(c10::DataPtr data, size_t bytes) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, std::move(data), &g_npu_allocator,
                                                            /*resizable=*/true));
}

c10::Storage new_storage(size_t bytes, int device) { return storage_around(allocate_on(device, bytes), bytes); }

void resize_storage(const c10::Storage& storage, size_t bytes) {
  auto* impl = storage.unsafeGetStorageImpl();
  auto fresh = allocate_on(resolve(impl->device()).index(), bytes);
  if (const size_t kept = std::min(bytes, impl->nbytes())) std::memcpy(fresh.get(), impl->data(), kept);
  impl->set_data_ptr_noswap(std::move(fresh));
  impl->set_nbytes(bytes);
}

}  // namespace sim
