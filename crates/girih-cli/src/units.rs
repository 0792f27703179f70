//! Bytes, fractions and times as people write and read them.

use clap::builder::{PossibleValuesParser, TypedValueParser};
pub(crate) use girih_why::units::{bytes, count};

/// A fraction as percent with two digits, never rounded up to 100.
pub(crate) fn percent(fraction: f64) -> String {
    format!("{:.2} %", shown_percent(fraction))
}

/// What a fraction leaves of the whole: with [`percent`] of the fraction exactly 100 %.
pub(crate) fn percent_left(fraction: f64) -> String {
    format!("{:.2} %", (100.0 - shown_percent(fraction)).max(0.0))
}

/// How much more one number is than another, as percent with its sign.
pub(crate) fn percent_more(more: f64, than: f64) -> String {
    format!("{:+.2} %", shown_percent(more / than.max(f64::MIN_POSITIVE) - 1.0))
}

/// Percent rounded down to two digits. What arithmetic alone has taken away is given back before: 0.29
/// is 29 %, and a ratio a hair below 1 is no loss.
fn shown_percent(fraction: f64) -> f64 {
    const HAIR: f64 = 1e-6;
    (fraction * 1e4 + HAIR).floor() / 100.0
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
        "" if number.parse() == Ok(0.0) => return Err(beyond(text)),
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
        return Err(beyond(text));
    }
    Ok(bytes as u64)
}

fn beyond(text: &str) -> String {
    format!("give between 1B and 1024TiB, not `{text}`")
}

/// The smallest device that is simulated: one segment of PyTorch's for requests of more than a mebibyte.
const CAPACITY_LEAST: u64 = 20 << 20;

/// Reads the size of a device, as [`parse_bytes`]. On a smaller one than any nothing is served, and every
/// request looks for room in vain.
pub(crate) fn parse_capacity(text: &str) -> Result<u64, String> {
    let bytes = match parse_bytes(text) {
        Err(error) if error != beyond(text.trim()) => return Err(error),
        read => read.ok().filter(|&bytes| bytes >= CAPACITY_LEAST),
    };
    bytes.ok_or_else(|| format!("give between 20MiB and 1024TiB for a device, not `{text}`"))
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
        assert_eq!(percent(0.29), "29.00 %");
    }

    #[test]
    fn a_fraction_and_what_it_leaves_are_100_percent() {
        for hundredths in 0..=10_000_u32 {
            for fraction in [f64::from(hundredths) / 1e4, (f64::from(hundredths) + 0.3) / 1e4] {
                let number = |text: String| {
                    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
                    digits.parse::<u32>().expect("digits")
                };
                let fraction = fraction.min(1.0);
                assert_eq!(number(percent(fraction)) + number(percent_left(fraction)), 10_000);
            }
        }
    }

    #[test]
    fn a_hair_less_is_neither_a_loss_nor_minus_nothing() {
        assert_eq!(percent_more(1.0 - 1e-16, 1.0), "+0.00 %");
        assert_eq!(percent_more(0.3 - 0.1, 0.2), "+0.00 %");
        assert_eq!(percent_more(1.5, 1.0), "+50.00 %");
        assert_eq!(percent_more(0.75, 1.0), "-25.00 %");
        assert_eq!(percent(-1e-16), "0.00 %");
    }

    #[test]
    fn sizes_are_read_with_and_without_units() {
        assert_eq!(parse_bytes("80GiB"), Ok(80 << 30));
        assert_eq!(parse_bytes("1.5g"), Ok(3 << 29));
        assert_eq!(parse_bytes(" 512 MB "), Ok(512 << 20));
        assert_eq!(parse_bytes("4096B"), Ok(4096));
        assert_eq!(parse_bytes("12GB"), Ok(12 << 30));
        assert_eq!(parse_bytes("12g"), Ok(12 << 30));
        assert_eq!(parse_bytes(".5k"), Ok(512));
    }

    #[test]
    fn a_device_is_as_large_as_the_smallest_segment_and_zero_is_answered_with_what_is_taken() {
        assert_eq!(parse_capacity("20MiB"), Ok(20 << 20));
        assert_eq!(parse_capacity("80GiB"), Ok(80 << 30));
        for text in ["0", "0GiB", "80B", "19.9MiB", "9999TiB"] {
            let error = parse_capacity(text).unwrap_err();
            assert!(error.starts_with("give between 20MiB and 1024TiB"), "{error}");
        }
        assert!(parse_capacity("80").unwrap_err().starts_with("try 80GiB"));
        assert!(parse_bytes("0").unwrap_err().starts_with("give between 1B"));
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
