//! Values that are known by name: what a library lists, as the choices of an option.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// Reads the name of one of `all`; the help says what each is.
pub(crate) fn one_of<T: Copy + Send + Sync + 'static>(
    all: &'static [T],
    name: fn(T) -> &'static str,
    about: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    let names = all.iter().map(move |&one| PossibleValue::new(name(one)).help(about(one)));
    PossibleValuesParser::new(names).map(move |given| {
        let found = all.iter().find(|&&one| name(one) == given);
        *found.expect("the parser lets no other name through")
    })
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use clap::{Arg, Command};
    use girih_plan::strategy::{Method, Part};
    use girih_runtime::simulate::Allocator;

    use super::*;

    #[track_caller]
    fn read_back<T: Copy + Debug + PartialEq + Send + Sync + 'static>(
        all: &'static [T],
        name: fn(T) -> &'static str,
        about: fn(T) -> &'static str,
    ) {
        let parse = |given: &str| {
            let arg = Arg::new("one").value_parser(one_of(all, name, about));
            let matches = Command::new("test").arg(arg).try_get_matches_from(["test", given]);
            matches.map(|matches| *matches.get_one::<T>("one").expect("it was given"))
        };
        for &one in all {
            assert_eq!(parse(name(one)).expect("a name"), one);
            assert!(!about(one).is_empty() && !about(one).ends_with('.'), "{}", about(one));
        }
        assert!(parse("nothing").is_err());
    }

    #[test]
    fn every_name_is_read_as_what_it_is_the_name_of() {
        read_back(&Allocator::ALL, Allocator::name, Allocator::about);
        read_back(&Method::ALL, Method::name, Method::about);
        read_back(&Part::ALL, Part::name, Part::about);
    }
}
