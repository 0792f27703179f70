//! The longest context that fits.

use girih_swap::Budgets;

use crate::method::{Method, Refusal};
use crate::problem::Problem;

/// No context is longer: 2^33 tokens.
const MOST: u64 = 1 << 33;

/// The most tokens with which a method keeps the budgets, of a step that is known for every number of them; 0 if not
/// even one token fits. What fits is taken to fit with fewer tokens too.
///
/// # Errors
/// If the method has nothing to say of such a step.
pub fn longest(
    method: Method,
    budgets: &Budgets,
    problem: impl Fn(u64) -> Problem,
) -> Result<u64, Refusal> {
    // A step with numbers beyond all bounds has too many tokens.
    let fits = |tokens: u64| {
        let problem = problem(tokens);
        if problem.is_sound() { method.fits(&problem, budgets) } else { Ok(false) }
    };
    let mut high = 1;
    while high < MOST && fits(high)? {
        high *= 2;
    }
    let mut low = high / 2;
    if high >= MOST {
        return Ok(MOST);
    }
    while low + 1 < high {
        let middle = low.midpoint(high);
        match fits(middle)? {
            true => low = middle,
            false => high = middle,
        }
    }
    Ok(low)
}
