//! What the tests share.
#![allow(dead_code, reason = "each test uses a part of it")]
#![allow(unreachable_pub, reason = "the tests are crates of their own")]

use arbitrary::Unstructured;
use girih_swap::Links;
use girih_tokens::problem::Role;
use girih_tokens::{Budgets, Kind, Layer, Problem, Slot};

/// What a small number of a problem is in bytes: large beside what rounding adds.
pub const UNIT: u64 = 1_000_000;

/// Arbitrary steps of up to `most` layers, alike or not.
pub fn problem(u: &mut Unstructured<'_>, most: usize) -> arbitrary::Result<Problem> {
    let count = u.int_in_range(1..=most)?;
    let is_uniform = u.ratio(1, 2)?;
    let mut layers = Vec::new();
    for _ in 0..count {
        match layers.first() {
            Some(first) if is_uniform => layers.push(Layer::clone(first)),
            _ => layers.push(layer(u)?),
        }
    }
    let rate = |u: &mut Unstructured<'_>| Ok(u.int_in_range(1..=4)? as f64 * UNIT as f64);
    let (outward, inward) = (rate(u)?, rate(u)?);
    Ok(Problem {
        layers,
        begin: slot(u)?,
        head: slot(u)?,
        end: slot(u)?,
        static_bytes: u.int_in_range(0..=5)? * UNIT,
        tiles: u.int_in_range(1..=4)?,
        links: Links { outward, inward, both: (outward + inward) * 0.9 },
    })
}

fn slot(u: &mut Unstructured<'_>) -> arbitrary::Result<Slot> {
    let us = u.int_in_range(1..=9)? as f64;
    Ok(Slot { us, bytes: u.int_in_range(0..=4)? * UNIT })
}

fn layer(u: &mut Unstructured<'_>) -> arbitrary::Result<Layer> {
    let mut kinds = vec![kind("input", 1 + u.int_in_range(0..=2)?, None, Role::Input)];
    if u.arbitrary()? {
        let us = u.int_in_range(4..=9)? as f64;
        kinds.push(kind("attention", 1, Some(us), Role::Attention));
    }
    for _ in 0..u.int_in_range(0..=3)? {
        let us = u.int_in_range(0..=4)? as f64;
        let mut other = kind("other", u.int_in_range(0..=4)?, Some(us), Role::Other);
        other.is_tiled = u.arbitrary()?;
        kinds.push(other);
    }
    Ok(Layer { kinds, forward: slot(u)?, backward: slot(u)?, copied: 0 })
}

/// A kind of so many units.
pub fn kind(name: &str, units: u64, remake_us: Option<f64>, role: Role) -> Kind {
    Kind { name: name.to_owned(), bytes: units * UNIT, remake_us, role, is_tiled: false }
}

/// Budgets between next to nothing and everything.
pub fn budgets(u: &mut Unstructured<'_>, problem: &Problem) -> arbitrary::Result<Budgets> {
    let slots = problem.layers.iter().map(|it| it.forward.bytes.max(it.backward.bytes));
    let slots = slots.chain([problem.head.bytes]).max().unwrap_or(0);
    let all = problem.static_bytes + problem.skeletal_bytes() + slots;
    let gpu = all * u.int_in_range(2..=12)? / 12;
    let host = match u.arbitrary()? {
        true => Some(problem.skeletal_bytes() * u.int_in_range(0..=8)? / 8),
        false => None,
    };
    Ok(Budgets { gpu, host })
}

/// What is said of `count` arbitrary inputs, the same in every run. What ends in the middle counts as none.
pub fn each_of(count: u64, mut body: impl FnMut(&mut Unstructured<'_>) -> arbitrary::Result<()>) {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    for _ in 0..count {
        let bytes: Vec<u8> = (0..256)
            .flat_map(|_| {
                // xorshift64.
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state.to_le_bytes()
            })
            .collect();
        let _ = body(&mut Unstructured::new(&bytes));
    }
}
