// The storages of the program's tensors, for swapping. See storages.cpp.
#ifndef GIRIH_SHIM_STORAGES_H
#define GIRIH_SHIM_STORAGES_H

namespace girih {

// Tells Girih how to get at storages. Once, before the first heap is made.
void lend_storages();

} // namespace girih

#endif
