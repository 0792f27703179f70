//! The linear programs, held against all vertices of small ones.

use arbtest::arbtest;
use girih_tokens::simplex::{Lp, NoOptimum};

/// A line `a x + b y <= c`.
type Line = (f64, f64, f64);

/// The least cost at a vertex that keeps all lines; none if there is none.
fn by_vertices(lines: &[Line], costs: (f64, f64)) -> Option<f64> {
    let keeps = |x: f64, y: f64| lines.iter().all(|&(a, b, c)| a * x + b * y <= c + 1e-7);
    let mut best: Option<f64> = None;
    for (at, &(a, b, c)) in lines.iter().enumerate() {
        for &(d, e, f) in &lines[at + 1..] {
            let determinant = a * e - b * d;
            if determinant.abs() < 1e-9 {
                continue;
            }
            let (x, y) = ((c * e - b * f) / determinant, (a * f - c * d) / determinant);
            if keeps(x, y) {
                let cost = costs.0 * x + costs.1 * y;
                best = Some(best.map_or(cost, |best| best.min(cost)));
            }
        }
    }
    best
}

#[test]
fn the_optimum_is_the_best_vertex() {
    let (mut solved, mut refused) = (0, 0);
    // As often as it takes, however slow the machine is.
    for _ in 0..16 {
        if solved > 100 && refused > 100 {
            break;
        }
        arbtest(|u| {
            let costs = (f64::from(u.int_in_range(0..=5)?), f64::from(u.int_in_range(0..=5)?));
            let uppers = (f64::from(u.int_in_range(0..=6)?), f64::from(u.int_in_range(1..=6)?));
            let mut lp = Lp::default();
            let (x, y) = (lp.variable(costs.0, uppers.0), lp.variable(costs.1, uppers.1));
            let mut lines = vec![
                (-1.0, 0.0, 0.0),
                (0.0, -1.0, 0.0),
                (1.0, 0.0, uppers.0),
                (0.0, 1.0, uppers.1),
            ];
            for _ in 0..u.int_in_range(0..=4)? {
                let mut number = |low: i32, high: i32| Ok(f64::from(u.int_in_range(low..=high)?));
                let (a, b, c) = (number(-4, 4)?, number(-4, 4)?, number(-9, 9)?);
                lp.row(&[(x, a), (y, b)], c);
                lines.push((a, b, c));
            }
            match (lp.solve(), by_vertices(&lines, costs)) {
                (Ok(optimum), Some(best)) => {
                    assert!((optimum.cost - best).abs() < 1e-6, "{optimum:?}, {best}: {lines:?}");
                    let (x, y) = (optimum.values[x], optimum.values[y]);
                    assert!(lines.iter().all(|&(a, b, c)| a * x + b * y <= c + 1e-6), "{lines:?}");
                    solved += 1;
                }
                (Err(NoOptimum::Infeasible), None) => refused += 1,
                (own, best) => panic!("{own:?}, {best:?}: {lines:?} {costs:?}"),
            }
            Ok(())
        })
        .budget_ms(1000);
    }
    assert!(solved > 100 && refused > 100, "{solved}, {refused}");
}

#[test]
fn a_price_is_what_one_more_of_the_right_side_saves() {
    // At least 4 of two things that cost 1 and 3, of the cheaper one at most 3.
    let mut lp = Lp::default();
    let (x, y) = (lp.variable(1.0, f64::INFINITY), lp.variable(3.0, f64::INFINITY));
    lp.row(&[(x, -1.0), (y, -1.0)], -4.0);
    lp.row(&[(x, 1.0)], 3.0);
    let optimum = lp.solve().unwrap();
    assert_eq!(optimum.values, [3.0, 1.0]);
    assert_eq!((optimum.cost, &optimum.prices[..]), (6.0, &[3.0, 2.0][..]));
}
