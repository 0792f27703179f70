// What the hooks of saved tensors ask of tensors. See tensors.cpp.
#ifndef GIRIH_SHIM_TENSORS_H
#define GIRIH_SHIM_TENSORS_H

#include <girih.h>

namespace girih {

// Tells Girih how to look at tensors. Once, before the first hook is set.
void lend_tensors(girih_current_stream current_stream);

} // namespace girih

#endif
