//! The storages of the program's tensors, as far as swapping touches them.
//!
//! A storage (`c10::StorageImpl`) has a number of owners: the tensors over it. Where these are the saved tensors of
//! autograd alone, nobody reads it before the backward pass asks, and its bytes may go: they are taken out of the
//! storage, which stays, and others are put in when it is needed. So views follow by themselves.
//!
//! The shim knows how; here are its functions. They call neither Python nor the heaps.

use std::sync::OnceLock;

use girih_runtime::Address;

/// A storage, as the shim names it: its address in the process. The saved tensors of a record keep it alive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StorageId(pub u64);

/// What can be done with storages.
pub trait Storages: Send + Sync {
    /// The storage of a tensor (`c10::TensorImpl`) by its address, and its bytes. None if it has none. A tensor of
    /// Python has that address as its `_cdata`.
    fn of_tensor(&self, tensor: u64) -> Option<(StorageId, u64)>;

    /// The tensors over a storage, and who else has it. The object that stands for it in Python from the moment that
    /// it is asked for there (`untyped_storage`) is none as long as nobody has that.
    fn owners(&self, storage: StorageId) -> u64;

    /// Where the bytes of a storage are now; 0 if it has none, or if others have these too: another process that they
    /// were sent to, or a copy that is made once one of both is written to.
    fn address(&self, storage: StorageId) -> Address;

    /// Takes the bytes out of a storage; whoever calls frees them. Their address.
    fn take(&self, storage: StorageId) -> Address;

    /// Puts bytes into a storage that has none, which frees them with its end.
    fn give(&self, storage: StorageId, address: Address);
}

static OF_THE_PROCESS: OnceLock<Box<dyn Storages>> = OnceLock::new();

/// From now on the storages of the process are these. The first call counts.
pub(crate) fn set(storages: Box<dyn Storages>) {
    let _ = OF_THE_PROCESS.set(storages);
}

/// Those of the process; none as long as nobody has said how to get at them.
pub fn of_the_process() -> Option<&'static dyn Storages> {
    OF_THE_PROCESS.get().map(|storages| &**storages)
}
