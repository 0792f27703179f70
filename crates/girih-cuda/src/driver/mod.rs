//! The CUDA driver, found and loaded when it is first asked for.
//!
//! Nothing of CUDA is linked, so this library loads on a machine without a GPU, and says there what
//! is missing. The driver is the one library that talks to the GPU; the CUDA runtime, which PyTorch
//! uses, is a layer over it and shares its contexts, streams and memory.
//!
//! [`Driver`] holds a table of functions. `calls` wraps each of them in a safe method that returns a
//! `Result`; it and `table` are all of the `unsafe` in this crate, but for one word that the GPU reads (`gate`).

mod calls;
#[cfg(test)]
mod layout;
pub(crate) mod table;
pub(crate) mod types;

use std::sync::OnceLock;

use libloading::Library;
use thiserror::Error;

pub(crate) use self::calls::Failure;
use self::table::Table;
use self::types::CuResult;

/// Where the driver is looked for, in this order. The last is where Windows puts it under WSL, which
/// not every distribution searches.
const LIBRARIES: [&str; 3] = ["libcuda.so.1", "libcuda.so", "/usr/lib/wsl/lib/libcuda.so.1"];

/// The CUDA driver of this process.
pub struct Driver {
    table: Table,
}

/// Why there is no driver.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum LoadError {
    /// No library of the driver is on this machine, or none can be loaded.
    #[error(
        "install the NVIDIA driver of this machine's GPU, or start the container with access to it \
         (for example `docker run --gpus all`): no CUDA driver was found: {tried}"
    )]
    NoLibrary {
        /// Each place that was tried, with the loader's words.
        tried: String,
    },
    /// The library lacks a function.
    #[error(
        "install a newer NVIDIA driver: {library} is older than CUDA 11.0, it has no function {symbol}"
    )]
    MissingSymbol {
        /// The library.
        library: String,
        /// The function.
        symbol: String,
    },
    /// The library was found, and does not start.
    #[error("{advice}: the CUDA driver {library} does not start: {reason}")]
    Init {
        /// The library.
        library: String,
        /// The driver's code and text.
        reason: String,
        /// What to do.
        advice: &'static str,
    },
}

impl Driver {
    /// The driver, loaded and started (`cuInit`) by the first call; later calls return the same, or
    /// the same error. The library stays loaded until the process ends.
    ///
    /// # Errors
    /// [`LoadError`] says what was tried and what to do.
    pub fn load() -> Result<&'static Driver, LoadError> {
        static DRIVER: OnceLock<Result<Driver, LoadError>> = OnceLock::new();
        DRIVER.get_or_init(|| Driver::load_first_of(&LIBRARIES)).as_ref().map_err(Clone::clone)
    }

    fn load_first_of(names: &[&str]) -> Result<Driver, LoadError> {
        let mut tried = Vec::new();
        for name in names {
            match calls::open_library(name) {
                Ok(library) => return Driver::start(library, name),
                Err(error) => tried.push(words(name, &error)),
            }
        }
        Err(LoadError::NoLibrary { tried: tried.join("; ") })
    }

    fn start(library: Library, name: &str) -> Result<Driver, LoadError> {
        let table = calls::table_of(library).map_err(|symbol| {
            let (library, symbol) = (name.to_owned(), symbol.to_owned());
            LoadError::MissingSymbol { library, symbol }
        })?;
        let driver = Driver { table };
        match driver.init() {
            Ok(()) => Ok(driver),
            Err(failure) => Err(LoadError::Init {
                library: name.to_owned(),
                reason: driver.describe(failure.code),
                advice: advice(failure.code),
            }),
        }
    }

    /// A driver that is played by the functions of `table`.
    #[cfg(test)]
    pub(crate) fn from_table(table: Table) -> Driver {
        Driver { table }
    }

    /// The CUDA version that the driver supports, as 1000 × major + 10 × minor
    /// (`cuDriverGetVersion`); 0 if it does not say.
    pub fn version(&self) -> u32 {
        self.driver_version().unwrap_or(0)
    }

    /// The number of devices that this process sees (`cuDeviceGetCount`); 0 if the driver does not
    /// say. `CUDA_VISIBLE_DEVICES` applies.
    pub fn device_count(&self) -> u32 {
        self.count_devices().unwrap_or(0)
    }
}

/// The loader's own words, which are the innermost reason of its error. They nearly always name the
/// library.
fn words(name: &str, error: &libloading::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let words = cause.to_string();
    if words.contains(name) { words } else { format!("{name}: {words}") }
}

/// What to do about an error of `cuInit`.
fn advice(code: CuResult) -> &'static str {
    match code {
        CuResult::NO_DEVICE => {
            "look at `nvidia-smi` and CUDA_VISIBLE_DEVICES, no GPU is visible to this process"
        }
        CuResult::STUB_LIBRARY => {
            "take the stub that the CUDA toolkit brings for linking out of LD_LIBRARY_PATH, so that \
             the NVIDIA driver's own library is found"
        }
        CuResult::SYSTEM_DRIVER_MISMATCH => {
            "restart the machine after a driver update, or mount the host's library into the \
             container (the kernel module and the library are of different versions)"
        }
        _ => "see that `nvidia-smi` works on this machine",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_is_nowhere_is_an_error_that_names_every_place() {
        let names = ["libgirih-no-such.so.1", "/nowhere/libcuda.so.1"];
        let Err(error) = Driver::load_first_of(&names) else { panic!("it was found") };
        let text = error.to_string();
        for name in names {
            assert!(text.contains(name), "{text}");
        }
        assert!(text.contains("No such file"), "{text}");
        assert!(text.starts_with("install the NVIDIA driver"), "{text}");
    }

    #[test]
    fn a_library_that_is_not_the_driver_is_an_error_that_names_what_it_lacks() {
        let Err(error) = Driver::load_first_of(&["libc.so.6"]) else { panic!("it is no driver") };
        let (library, symbol) = ("libc.so.6".to_owned(), "cuInit".to_owned());
        assert_eq!(error, LoadError::MissingSymbol { library, symbol });
    }

    #[test]
    fn loading_twice_gives_the_same_answer() {
        match (Driver::load(), Driver::load()) {
            (Ok(first), Ok(second)) => assert!(std::ptr::eq(first, second)),
            (Err(first), Err(second)) => assert_eq!(first, second),
            _ => panic!("the answers differ"),
        }
    }

    #[test]
    fn no_function_is_listed_twice() {
        let mut symbols = Table::SYMBOLS.to_vec();
        symbols.sort_unstable();
        symbols.dedup();
        assert_eq!(symbols.len(), Table::SYMBOLS.len());
    }
}
