// Memory shared between processes: handles out, handles in. See ipc.h.
#include "ipc.h"

#include "error.h"
#include "flags.h"

#include <array>

namespace girih {

torch_cuda::ShareableHandle IpcCache::share(void* address) {
  std::array<uint8_t, GIRIH_IPC_BYTES> bytes{};
  size_t length = 0;
  uint64_t offset = 0;
  check(girih_ipc_export(address, bytes.data(), &length, &offset));
  return {
      static_cast<ptrdiff_t>(offset),
      std::string(reinterpret_cast<const char*>(bytes.data()), length)};
}

std::shared_ptr<void> IpcCache::open(c10::DeviceIndex device, const std::string& handle) {
  const Key key{device, handle};
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = opened_.find(key);
  if (found != opened_.end()) {
    if (auto mapping = found->second.lock()) {
      return mapping;
    }
  }
  void* address = nullptr;
  const auto* bytes = reinterpret_cast<const uint8_t*>(handle.data());
  check(girih_ipc_open(device, bytes, handle.size(), &address));
  std::shared_ptr<void> mapping(address, [this, key](void* opened) { close(key, opened); });
  opened_[key] = mapping;
  return mapping;
}

// Runs in a destructor: a failure is not reported, for the mapping is of no use to anyone any more.
void IpcCache::close(const Key& key, void* address) {
  if ((flags() & kExiting) != 0) {
    return;
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = opened_.find(key);
    // It may have been opened anew between the end of the last tensor and this line.
    if (found != opened_.end() && found->second.expired()) {
      opened_.erase(found);
    }
  }
  // It waits for the device's work: nobody else has to. The heap knows how often it is open.
  girih_ipc_close(address);
}

} // namespace girih
