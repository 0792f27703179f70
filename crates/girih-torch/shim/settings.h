// Settings of the caching allocator while the program runs: what it sets reaches the heaps, and
// torch's own configuration says of segments what the heaps say.
#ifndef GIRIH_SHIM_SETTINGS_H
#define GIRIH_SHIM_SETTINGS_H

#include "compat.h"

namespace girih {

// From now on the heaps follow what a program sets by torch.cuda.memory._set_allocator_settings or
// torch._C._accelerator_setAllocatorSettings. Before 2.10 torch tells nobody of that: there the
// Python package does. Call it once, before the allocator is installed.
void follow_settings();

// What a snapshot says of the settings: those of the heaps, and torch's own of the host's memory.
AllocatorConfigInfo settings_info();

} // namespace girih

#endif
