//! The storages of the program's tensors, by functions of the caller.

use girih_runtime::Address;

use super::error::guard;
use crate::swap::storages::{self, StorageId, Storages};

/// `girih_of_tensor`.
pub type OfTensorFunction = unsafe extern "C" fn(tensor: u64, size: *mut u64) -> u64;
/// `girih_owners`.
pub type OwnersFunction = unsafe extern "C" fn(storage: u64) -> u64;
/// `girih_address`.
pub type AddressFunction = unsafe extern "C" fn(storage: u64) -> u64;
/// `girih_take`.
pub type TakeFunction = unsafe extern "C" fn(storage: u64) -> u64;
/// `girih_give`.
pub type GiveFunction = unsafe extern "C" fn(storage: u64, address: u64);

/// All of them. Functions of a library that is never unloaded.
struct Functions {
    of_tensor: OfTensorFunction,
    owners: OwnersFunction,
    address: AddressFunction,
    take: TakeFunction,
    give: GiveFunction,
}

impl Storages for Functions {
    fn of_tensor(&self, tensor: u64) -> Option<(StorageId, u64)> {
        let mut size = 0;
        // SAFETY: whoever asks has the tensor; and the size is written to a local.
        let storage = unsafe { (self.of_tensor)(tensor, &raw mut size) };
        (storage != 0).then_some((StorageId(storage), size))
    }

    fn owners(&self, storage: StorageId) -> u64 {
        // SAFETY: whoever gave the functions promised that they take every storage that lives; and the saved tensors
        // of a record keep its storage alive.
        unsafe { (self.owners)(storage.0) }
    }

    fn address(&self, storage: StorageId) -> Address {
        // SAFETY: as above.
        unsafe { (self.address)(storage.0) }
    }

    fn take(&self, storage: StorageId) -> Address {
        // SAFETY: as above; nobody else has the storage, or it would not have been taken.
        unsafe { (self.take)(storage.0) }
    }

    fn give(&self, storage: StorageId, address: Address) {
        // SAFETY: as above; and the bytes are the storage's from now on.
        unsafe { (self.give)(storage.0, address) }
    }
}

/// From now on storages are got at with these functions. The first call of the process counts; one that lacks a
/// function does nothing.
///
/// # Safety
/// The functions do what the header says, for every storage that is alive, on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn girih_set_storages(
    of_tensor: Option<OfTensorFunction>,
    owners: Option<OwnersFunction>,
    address: Option<AddressFunction>,
    take: Option<TakeFunction>,
    give: Option<GiveFunction>,
) {
    guard(|| {
        let of_storages = owners.zip(address).zip(take.zip(give));
        if let (Some(of_tensor), Some(((owners, address), (take, give)))) = (of_tensor, of_storages)
        {
            storages::set(Box::new(Functions { of_tensor, owners, address, take, give }));
        }
        Ok(())
    });
}
