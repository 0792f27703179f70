//! How a policy does on steps that it was not learnt from.
//!
//! A policy is made from one step and then meets others: of other lengths, with a validation, without an optimizer.
//! Each of them is run operator by operator as an executor would ([`execute`](crate::execute)), its schedule is
//! simulated and checked, and held against the bound of that very step.

use crate::check::Fault;
use crate::links::Links;
use crate::method::{Answer, Budgets, Method};
use crate::policies::Policies;
use crate::schedule::Schedule;
use crate::step::Step;
use crate::{capuchin, chameleon, girih};

/// One step that a policy met.
#[derive(Clone, PartialEq, Debug)]
pub struct Later {
    /// The step, as an index into the list.
    pub step: usize,
    /// What swapping cost it.
    pub answer: Answer,
    /// Whether a policy was known for exactly its sequence of operators.
    pub is_known: bool,
    /// Tensors that went only because memory ran out.
    pub passive: u32,
    /// Tensors that came back only when they were used.
    pub demanded: u32,
    /// How often another policy or another place in one was taken up.
    pub changes: u32,
    /// For a method that dies of it: the operator at which it looked for a tensor that is not there.
    pub died_at: Option<u32>,
}

/// Runs up to `count` other steps of the list under what `method` learnt from step `model`, which it scheduled as
/// `schedule`: those after it, in order, then those before it but the first. Girih learns from each step whose
/// sequence is new to it; Chameleon goes through its stages from the first step of the list.
///
/// # Errors
/// If the checker refuses a schedule: an error of this crate.
pub fn later(
    method: Method,
    list: &[Step],
    (model, schedule): (usize, &Schedule),
    links: &Links,
    budgets: &Budgets,
    count: usize,
) -> Result<Vec<Later>, Fault> {
    let steps: Vec<usize> = (model + 1..list.len()).chain(1..model).take(count).collect();
    match method {
        Method::Girih => of_girih(list, model, schedule, links, budgets, &steps),
        Method::Chameleon => of_chameleon(list, links, budgets, &steps),
        Method::Capuchin => of_capuchin(list, model, links, budgets, &steps),
    }
}

fn of_girih(
    list: &[Step],
    model: usize,
    schedule: &Schedule,
    links: &Links,
    budgets: &Budgets,
    steps: &[usize],
) -> Result<Vec<Later>, Fault> {
    let mut policies = Policies::default();
    policies.learn(&list[model], schedule);
    let mut met = Vec::new();
    for &index in steps {
        let step = &list[index];
        let is_known = policies.knows(step);
        let mut follower = policies.follow(step);
        let run = crate::execute::execute(step, budgets, &mut follower);
        let changes = follower.changes();
        let answer = Answer::of(step, links, budgets, run.schedule)?;
        let (passive, demanded) = (run.passive, run.demanded);
        met.push(Later {
            step: index,
            answer,
            is_known,
            passive,
            demanded,
            changes,
            died_at: None,
        });
        if !is_known {
            policies.learn(step, &girih::plan(step, links, budgets));
        }
    }
    Ok(met)
}

fn of_chameleon(
    list: &[Step],
    links: &Links,
    budgets: &Budgets,
    steps: &[usize],
) -> Result<Vec<Later>, Fault> {
    let mut session = chameleon::Session::default();
    let mut met = Vec::new();
    for (index, step) in list.iter().enumerate() {
        let is_known = session.has_policy();
        let (run, _) = session.step(step, links, budgets);
        if !steps.contains(&index) {
            continue;
        }
        let answer = Answer::of(step, links, budgets, run.schedule)?;
        let (passive, demanded) = (run.passive, run.demanded);
        met.push(Later {
            step: index,
            answer,
            is_known,
            passive,
            demanded,
            changes: 0,
            died_at: None,
        });
    }
    Ok(met)
}

fn of_capuchin(
    list: &[Step],
    model: usize,
    links: &Links,
    budgets: &Budgets,
    steps: &[usize],
) -> Result<Vec<Later>, Fault> {
    let policy = capuchin::Policy::of(&list[model], links, budgets);
    let mut met = Vec::new();
    for &index in steps {
        let step = &list[index];
        let (run, died_at) = policy.execute(step, budgets);
        let mut answer = Answer::of(step, links, budgets, run.schedule)?;
        answer.fits &= died_at.is_none();
        let (passive, demanded) = (run.passive, run.demanded);
        met.push(Later {
            step: index,
            answer,
            is_known: true,
            passive,
            demanded,
            changes: 0,
            died_at,
        });
    }
    Ok(met)
}
