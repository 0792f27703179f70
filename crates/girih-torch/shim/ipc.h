// Memory shared between processes.
//
// A handle from another process is opened once and closed when the last tensor over it is gone;
// opening it again in between gives the same mapping. A handle is the heap's own description of its
// memory: both processes must run Girih.
#ifndef GIRIH_SHIM_IPC_H
#define GIRIH_SHIM_IPC_H

#include "compat.h"

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace girih {

class IpcCache {
 public:
  // shareIpcHandle: the handle of the memory that `address` lies in, and the offset in it.
  static torch_cuda::ShareableHandle share(void* address);
  // getIpcDevPtr: the first byte of the memory behind `handle`, mapped on `device`.
  std::shared_ptr<void> open(c10::DeviceIndex device, const std::string& handle);

 private:
  using Key = std::pair<c10::DeviceIndex, std::string>;

  void close(const Key& key, void* address);

  std::mutex mutex_;
  std::map<Key, std::weak_ptr<void>> opened_;
};

} // namespace girih

#endif
