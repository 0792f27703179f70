//! Bytes, fractions and times as people write and read them.

use clap::builder::{PossibleValuesParser, TypedValueParser};
pub(crate) use girih_why::units::{bytes, count};

/// A fraction as percent with two digits, never rounded up to 100.
pub(crate) fn percent(fraction: f64) -> String {
    let percent = fraction * 100.0;
    let shown = if percent < 100.0 { (percent * 100.0).floor() / 100.0 } else { percent };
    format!("{shown:.2} %")
}

/// Microseconds as milliseconds.
pub(crate) fn milliseconds(microseconds: f64) -> String {
    format!("{:.1} ms", microseconds / 1000.0)
}

/// Reads a size: `80GiB`, `512 MiB`, `1.5g`, `1000B`. Units are binary; `GB` and `GiB` are the same
/// here, as they are on the box of a GPU. A number without a unit is an error: who writes 80 means no
/// 80 bytes.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (text[..end].trim(), text[end..].trim().to_ascii_lowercase());
    let shift = match unit.as_str() {
        "" if !number.is_empty() => {
            return Err(format!("try {number}GiB, {number}MiB or {number}B: `{text}` has no unit"));
        }
        "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(format!("try 80GiB or 512MiB: `{text}` has no unit that is known")),
    };
    let value: f64 =
        number.parse().map_err(|_| format!("try 80GiB or 512MiB: `{text}` is no size"))?;
    let bytes = value * (1u64 << shift) as f64;
    if bytes < 1.0 || bytes > (1u64 << 50) as f64 {
        return Err(format!("give between 1B and 1024TiB, not `{text}`"));
    }
    Ok(bytes as u64)
}

/// Reads a time: `800ms`, `1.2 s`, `350us`. Microseconds.
pub(crate) fn parse_microseconds(text: &str) -> Result<f64, String> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (text[..end].trim(), text[end..].trim());
    let scale = match unit {
        "us" | "µs" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        _ => return Err(format!("try 800ms or 1.2s: `{text}` has no unit that is known")),
    };
    let value: f64 = number.parse().map_err(|_| format!("try 800ms: `{text}` is no time"))?;
    let microseconds = value * scale;
    if !(1.0..=1e12).contains(&microseconds) {
        return Err(format!("give between a microsecond and eleven days, not `{text}`"));
    }
    Ok(microseconds)
}

/// Reads a rate in a unit that the option names: `55`, `0.5`.
pub(crate) fn parse_rate(unit: &'static str) -> impl Fn(&str) -> Result<f64, String> + Clone {
    move |text| {
        let wrong = |_| format!("write a number of {unit}, not `{text}`");
        let rate: f64 = text.trim().parse().map_err(wrong)?;
        match (0.001..=1e6).contains(&rate) {
            true => Ok(rate),
            false => Err(format!("give between 0.001 and 1,000,000 {unit}, not {text}")),
        }
    }
}

/// Reads the name of one of `all`.
pub(crate) fn parse_name<T, const N: usize>(
    all: [T; N],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync + 'static,
{
    PossibleValuesParser::new(all.map(name))
        .try_map(move |text| all.into_iter().find(|&one| name(one) == text).ok_or("no such name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fraction_just_below_one_is_not_printed_as_100_percent() {
        assert_eq!(percent(0.999_999), "99.99 %");
        assert_eq!(percent(1.0), "100.00 %");
    }

    #[test]
    fn sizes_are_read_with_and_without_units() {
        assert_eq!(parse_bytes("80GiB"), Ok(80 << 30));
        assert_eq!(parse_bytes("1.5g"), Ok(3 << 29));
        assert_eq!(parse_bytes(" 512 MB "), Ok(512 << 20));
        assert_eq!(parse_bytes("4096B"), Ok(4096));
    }

    #[test]
    fn a_number_without_a_unit_is_asked_for_one() {
        let error = parse_bytes("80").unwrap_err();
        assert!(error.starts_with("try 80GiB"), "{error}");
    }

    #[test]
    fn what_is_no_size_is_refused_with_an_example() {
        for text in ["", "GiB", "12 parsecs", "-1", "0", "9999999TiB"] {
            assert!(parse_bytes(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn times_are_read_with_their_units() {
        assert_eq!(parse_microseconds("800ms"), Ok(800_000.0));
        assert_eq!(parse_microseconds("1.5 s"), Ok(1_500_000.0));
        assert_eq!(parse_microseconds("350us"), Ok(350.0));
        for text in ["", "800", "ms", "-1s", "0us", "1 day", "99999999999999s"] {
            assert!(parse_microseconds(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn counts_have_their_digits_in_groups() {
        assert_eq!(count(7), "7");
        assert_eq!(count(869_250), "869,250");
        assert_eq!(count(1_000_000), "1,000,000");
    }
}
