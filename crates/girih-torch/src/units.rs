//! Bytes as a person reads them and as a program compares them.

/// Bytes with a binary unit and the exact number: `2.00 GiB (2147483648 bytes)`. Below 1 KiB the
/// number alone.
pub(crate) fn exact(bytes: u64) -> String {
    if bytes < 1024 { short(bytes) } else { format!("{} ({bytes} bytes)", short(bytes)) }
}

/// Bytes with a binary unit and two digits: `2.00 GiB`.
pub(crate) fn short(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} bytes");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.2} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_the_largest_unit_that_leaves_a_whole_part() {
        assert_eq!(short(1023), "1023 bytes");
        assert_eq!(short(1536), "1.50 KiB");
        assert_eq!(short(5 << 30), "5.00 GiB");
        assert_eq!(short(u64::MAX), "16.00 EiB");
        assert_eq!(exact(2 << 30), "2.00 GiB (2147483648 bytes)");
    }
}
