//! The search tree for one capacity.
//!
//! A *valley* is a run of sections with one floor whose neighbours are higher. An item that begins
//! at that floor lives within the valley, so that placing it there leaves nothing undecided below.
//! The search asks one section of a valley: **what lies at the bottom of you?** One of the items
//! that may begin at the floor, or nothing up to the next level at which anything can. The answers
//! exclude each other and leave no layout out, whichever valley is asked. So the one that has the
//! fewest answers is asked first, wherever it is.
//!
//! ```text
//!    # # .  .  .  .  .  #      asked at ^: a? b? or waste up to the next level
//!    # # .  a  a  a  .  #      (c lives beyond the wall and begins above it)
//!    # # b  b  b  .  .  #
//!    # # #  #  #  #  #  #
//!              ^
//! ```
//!
//! Where no unplaced item crosses from one section to the next, what is left falls apart into
//! *components*. Each is solved on its own: if one fails, the search goes back to the question from
//! which it came, past all that was found for its neighbours in the meantime.

use super::model::{Model, NONE, in_both, mix};
use super::nogoods::Nogoods;
use super::state::{Section, State};
use super::strategy::Choice;

/// What became of a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// [`State::layout`] keeps to the capacity.
    Found,
    /// There is no layout that does.
    Refuted,
    /// The limit came first.
    Limit,
    /// The caller ended it.
    Stopped,
}

/// A run of sections that no unplaced item leaves. On a ring it may lie across the cut; `len` is
/// then all the same the number of its sections.
#[derive(Clone, Copy, Debug)]
struct Component {
    start: u32,
    len: u32,
}

/// A component to be solved, in a list of such.
#[derive(Clone, Copy, Debug)]
struct Open {
    component: Component,
    /// The frame whose answer it came from; [`NONE`] for the first ones.
    parent: u32,
    /// The next of the list, or [`NONE`].
    next: u32,
}

/// A question with its answers.
#[derive(Clone, Copy, Debug)]
struct Frame {
    /// The component, and what is to be solved after it.
    open: Open,
    section: u32,
    /// The level up to which the section may be wasted; [`u64::MAX`] if it may not.
    waste: u64,
    /// The next answer and the end of the items among [`Tree::answers`]; the waste comes last.
    next: usize,
    end: usize,
    /// Changes of the state, and open components, when the question was asked.
    mark: usize,
    opened: usize,
    /// The hash of the component.
    key: u128,
}

/// What became of an answer.
enum Answer {
    /// What is left may be solved: the list of all that is open.
    Holds(u32),
    /// Something has no room any more.
    Fails,
    /// There was none left to give.
    NoneLeft,
}

/// What goes on searching needs, kept from one search to the next: what has failed, and where.
pub(super) struct Tree<'m> {
    model: &'m Model,
    pub(super) state: State<'m>,
    /// How often each section has failed, plus one.
    weights: Vec<u64>,
    failed: Nogoods,
    frames: Vec<Frame>,
    open: Vec<Open>,
    answers: Vec<u32>,
    /// Answers tried so far, in all searches.
    pub(super) nodes: u64,
    /// When to ask the caller whether to go on.
    next_question: u64,
}

/// Nodes after which the caller is asked whether to go on, in a small problem.
const NODES_PER_QUESTION: u64 = 4096;
/// A problem of more buffers is not small: a node takes as much longer, and more.
const BUFFERS_SMALL: u64 = 512;

impl<'m> Tree<'m> {
    /// A tree for searches of `nodes` nodes together.
    pub(super) fn new(model: &'m Model, nodes: u64) -> Tree<'m> {
        Tree {
            model,
            state: State::new(model),
            weights: vec![1; model.sections as usize],
            failed: Nogoods::new(nodes),
            frames: Vec::new(),
            open: Vec::new(),
            answers: Vec::new(),
            nodes: 0,
            next_question: 0,
        }
    }

    /// Nodes after which the caller is asked whether to go on: about the same time in any problem.
    fn nodes_per_question(&self) -> u64 {
        let times = (self.model.sizes.len() as u64 / BUFFERS_SMALL).max(1);
        (NODES_PER_QUESTION / times.pow(2)).max(1)
    }

    /// Looks for a layout of at most `capacity` steps, for `limit` nodes at most. Answers are
    /// tried by their `ranks`. `go_on` is told the number of nodes from time to time.
    pub(super) fn decide(
        &mut self,
        capacity: u64,
        (choice, ranks): (Choice, &[u32]),
        limit: u64,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Verdict {
        self.state.undo(0);
        self.state.capacity = capacity;
        self.frames.clear();
        self.open.clear();
        self.answers.clear();
        let whole = Component { start: 0, len: self.model.sections };
        if !self.settle(whole, (0, whole.len)) {
            return Verdict::Refuted;
        }
        let end = self.nodes.saturating_add(limit);
        let mut head = self.split(whole, NONE, NONE);
        while head != NONE {
            let open = self.open[head as usize];
            let mut at = match self.ask(open, choice, ranks) {
                true => self.frames.len() as u32 - 1,
                false => self.back_to(open.parent),
            };
            head = loop {
                if at == NONE {
                    return Verdict::Refuted;
                }
                if self.nodes >= end {
                    return Verdict::Limit;
                }
                match self.answer(at) {
                    Answer::Holds(open) => break open,
                    Answer::Fails => {}
                    Answer::NoneLeft => {
                        let frame = self.frames[at as usize];
                        self.failed.insert(frame.key);
                        at = self.back_to(frame.open.parent);
                    }
                }
            };
            if self.nodes >= self.next_question {
                self.next_question = self.nodes + self.nodes_per_question();
                if !go_on(self.nodes) {
                    return Verdict::Stopped;
                }
            }
        }
        Verdict::Found
    }

    /// Goes back to the question of frame `at`, as if its last answer had not been tried.
    fn back_to(&mut self, at: u32) -> u32 {
        if at != NONE {
            let frame = self.frames[at as usize];
            self.frames.truncate(at as usize + 1);
            self.open.truncate(frame.opened);
            self.answers.truncate(frame.end);
            self.state.undo(frame.mark);
        }
        at
    }

    /// Gives the next answer to the question of frame `at`.
    fn answer(&mut self, at: u32) -> Answer {
        let Frame { open, section, waste, next, end, mark, .. } = self.frames[at as usize];
        self.frames[at as usize].next += 1;
        let touched = match self.answers[..end].get(next) {
            Some(&item) => {
                self.state.place(item as usize);
                self.model.meets(item as usize)
            }
            None if next == end && waste < u64::MAX => {
                self.state.waste(section, waste);
                self.model.alive(section)
            }
            None => return Answer::NoneLeft,
        };
        self.nodes += 1;
        let span = self.span(open.component, touched);
        if self.settle(open.component, span) {
            return Answer::Holds(self.split(open.component, at, open.next));
        }
        self.state.undo(mark);
        Answer::Fails
    }

    /// The sections in which the unplaced items of `row` live, counted from the start of the
    /// component.
    fn span(&self, component: Component, row: &[u64]) -> (u32, u32) {
        let sections = self.model.sections;
        let (mut from, mut to) = (u32::MAX, 0);
        for item in in_both(row, &self.state.unplaced) {
            let [(lower, upper), (_, again)] = self.model.lives[item];
            let ahead = if lower < component.start { sections } else { 0 };
            let lower = lower + ahead - component.start;
            let upper = upper + ahead - component.start + again;
            if upper > component.len {
                return (0, component.len);
            }
            (from, to) = (from.min(lower), to.max(upper));
        }
        (from.min(to), to)
    }

    /// Raises the floors of the sections of `span`. False if something has no room any more, or
    /// would have had room below.
    fn settle(&mut self, component: Component, span: (u32, u32)) -> bool {
        for nth in span.0..span.1 {
            let section = self.nth(component, nth);
            if !self.state.settle(section) {
                self.weights[section as usize] += 1;
                return false;
            }
        }
        let state = &self.state;
        let mut unplaced = in_both(&state.unplaced, &state.unplaced);
        let misplaced = unplaced.find(|&item| state.fits_in_waste(item));
        if let Some(item) = misplaced {
            self.weights[self.model.lives[item][0].0 as usize] += 1;
        }
        misplaced.is_none()
    }

    fn nth(&self, component: Component, nth: u32) -> u32 {
        let section = component.start + nth;
        if section < self.model.sections { section } else { section - self.model.sections }
    }

    /// The section `nth` after the start of the component.
    fn section(&self, component: Component, nth: u32) -> &Section {
        &self.state.sections[self.nth(component, nth) as usize]
    }

    /// Splits what is left of a component, whose frame is `parent`, and puts the parts before the
    /// list `rest`. Returns the list.
    fn split(&mut self, component: Component, parent: u32, rest: u32) -> u32 {
        let Component { mut start, len } = component;
        if len == self.model.sections {
            // A ring has no first section: let it begin where nothing crosses.
            let cut = (0..len).find(|nth| self.section(component, *nth).crossing == 0);
            let Some(cut) = cut else {
                self.open.push(Open { component, parent, next: rest });
                return self.open.len() as u32 - 1;
            };
            start = self.nth(component, cut);
        }
        let component = Component { start, len };
        let mut head = rest;
        let mut from = None;
        for nth in 0..=len {
            let ends = nth == len || self.section(component, nth).crossing == 0;
            if !ends {
                continue;
            }
            if let Some(from) = from {
                let part = Component { start: self.nth(component, from), len: nth - from };
                self.open.push(Open { component: part, parent, next: head });
                head = self.open.len() as u32 - 1;
            }
            from = (nth < len && self.section(component, nth).count > 0).then_some(nth);
        }
        head
    }

    /// Asks the most promising section of a component. False if the component is known to fail.
    fn ask(&mut self, open: Open, choice: Choice, ranks: &[u32]) -> bool {
        let key = self.key(open.component);
        if self.failed.contains(key) {
            return false;
        }
        let Some(section) = self.choose(open.component, choice) else {
            self.failed.insert(key);
            return false;
        };
        let (state, answers) = (&self.state, &mut self.answers);
        let Section { floor, load, .. } = state.sections[section as usize];
        let first = answers.len();
        let here = in_both(self.model.alive(section), &state.unplaced);
        answers
            .extend(here.filter(|&item| state.may_begin_at(item, floor)).map(|item| item as u32));
        answers[first..].sort_unstable_by_key(|&item| ranks[item as usize]);
        let level = state.next_level(section);
        let has_room = level.checked_add(load).is_some_and(|end| end <= state.capacity);
        self.frames.push(Frame {
            open,
            section,
            waste: if has_room { level } else { u64::MAX },
            next: first,
            end: answers.len(),
            mark: state.mark(),
            opened: self.open.len(),
            key,
        });
        true
    }

    /// The section to be asked; `None` if one has no answer.
    fn choose(&mut self, component: Component, choice: Choice) -> Option<u32> {
        let Component { start, len } = component;
        let is_ring = len == self.model.sections && self.section(component, 0).crossing > 0;
        // On a ring a valley may lie across the start: let the ring start at an edge.
        let is_edge = |nth: &u32| {
            let before = if *nth > 0 { nth - 1 } else { len - 1 };
            self.section(component, *nth).floor != self.section(component, before).floor
        };
        let edge = if is_ring { (0..len).find(is_edge).unwrap_or(0) } else { 0 };
        let component = Component { start: (start + edge) % self.model.sections, len };
        let floor = |nth: u32| self.section(component, nth).floor;
        let beyond = |nth: u32| if is_ring { floor(nth) } else { u64::MAX };
        let mut best = ((u64::MAX, u64::MAX), NONE);
        let mut from = 0;
        while from < len {
            let ground = floor(from);
            let to = (from..len).find(|nth| floor(*nth) != ground).unwrap_or(len);
            let before = if from > 0 { floor(from - 1) } else { beyond(len - 1) };
            let after = if to < len { floor(to) } else { beyond(0) };
            if before >= ground && after >= ground {
                for section in (from..to).map(|nth| self.nth(component, nth)) {
                    best = best.min((self.score(section, choice), section));
                }
            }
            from = to;
        }
        let ((score, _), section) = best;
        if score == 0 {
            self.weights[section as usize] += 1;
            return None;
        }
        Some(section)
    }

    /// What speaks against asking `section`; 0 if it has no answer.
    fn score(&self, section: u32, choice: Choice) -> (u64, u64) {
        let state = &self.state;
        let Section { floor, load, .. } = state.sections[section as usize];
        let here = in_both(self.model.alive(section), &state.unplaced);
        let items = here.filter(|&item| state.may_begin_at(item, floor)).count() as u64;
        let slack = state.capacity - floor - load;
        let answers = items + u64::from(slack > 0);
        match choice {
            _ if answers == 0 => (0, 0),
            Choice::Weighted => (((answers << 32) / self.weights[section as usize]).max(1), slack),
            Choice::Fewest => (answers, slack),
        }
    }

    /// The hash of all that the answers of a component depend on.
    fn key(&self, component: Component) -> u128 {
        let Component { start, len } = component;
        let mut one = mix(self.state.capacity);
        let mut other = mix(u64::from(start) << 32 | u64::from(len));
        for nth in 0..len {
            let &Section { floor, top, key, .. } = self.section(component, nth);
            one = mix(one ^ floor).wrapping_add(key);
            other = mix(other.wrapping_add(top)) ^ key.rotate_left(32);
        }
        u128::from(mix(one ^ other.rotate_left(17))) << 64 | u128::from(other)
    }
}
