//! Logical layers and the simulator over them (sections 5.1 and 5.4).

use super::Item;
use crate::links::Links;
use crate::step::{Pass, Step};

/// Logical layers of each kind of pass; Fig. 4 has the variation of their times vanish at 32 or fewer.
const LAYERS: usize = 32;

/// One logical layer: operators in a row, of one kind.
#[derive(Clone, PartialEq, Debug)]
pub struct Layer {
    /// Its first operator.
    pub start: u32,
    /// The first operator after it.
    pub end: u32,
    /// What it is part of.
    pub pass: Pass,
    /// The gaps whose copies it has taken on.
    pub candidates: Vec<u32>,
    /// Microseconds in which its links have nothing to do yet.
    pub remaining_us: f64,
}

/// The logical layers of a step.
#[derive(Clone, PartialEq, Debug)]
pub struct Layers {
    /// In order.
    pub list: Vec<Layer>,
    bandwidth: f64,
}

impl Layers {
    /// Divides a step evenly: the operators of each kind of pass into as many layers, which end with the passes. Times
    /// by Eq. 1: each operator takes as long as any other.
    pub fn of(step: &Step, links: &Links) -> Layers {
        let mut list: Vec<Layer> = Vec::new();
        let per_op = step.us() / step.ops.len().max(1) as f64;
        let count = |pass: Pass| step.ops.iter().filter(|op| op.pass == pass).count();
        let kinds = [Pass::Forward, Pass::Backward, Pass::Optimizer];
        let width = kinds.map(|pass| count(pass).div_ceil(LAYERS).max(1) as u32);
        for (op, own) in (0u32..).zip(&step.ops) {
            let is_full = |layer: &Layer| {
                layer.pass != own.pass || layer.end - layer.start >= width[own.pass as usize]
            };
            if list.last().is_none_or(is_full) {
                let (start, end) = (op, op);
                let (candidates, remaining_us) = (Vec::new(), 0.0);
                list.push(Layer { start, end, pass: own.pass, candidates, remaining_us });
            }
            if let Some(layer) = list.last_mut() {
                layer.end = op + 1;
                layer.remaining_us += per_op;
            }
        }
        Layers { list, bandwidth: links.outward.min(links.inward) }
    }

    /// The layer of an operator.
    pub fn index_of(&self, op: u32) -> usize {
        self.list.partition_point(|layer| layer.start <= op).saturating_sub(1)
    }

    /// Eq. 3.
    fn swap_us(&self, step: &Step, gap: u32) -> f64 {
        step.bytes(gap) as f64 / self.bandwidth
    }

    /// Section 5.4.1: a swap-in for each candidate that a layer between the peak and its use has time for, by score.
    /// If there is none, the best one is fetched a layer before its use, and the wait accepted. What was chosen.
    pub fn simulate(
        &mut self,
        step: &Step,
        list: &[u32],
        reduce: &mut [u64],
        items: &mut Vec<Item>,
    ) -> Vec<u32> {
        let peak = (0..step.load.len()).max_by_key(|&op| step.load[op]).unwrap_or(0);
        let peak = self.index_of(peak as u32);
        let mut chosen = Vec::new();
        for &gap in list {
            let own = step.gaps[gap as usize];
            let inside = own.after as usize + 1..own.before as usize;
            if reduce[inside].iter().all(|&bytes| bytes == 0) {
                continue;
            }
            let swap_us = self.swap_us(step, gap);
            let use_layer = self.index_of(own.before);
            let first = self.index_of(own.after + 1).max(peak.min(use_layer));
            let found = (first..use_layer).rev().find(|&at| self.list[at].remaining_us > swap_us);
            if let Some(layer) = found {
                self.choose(step, gap, layer, reduce, items);
                chosen.push(gap);
            }
        }
        if chosen.is_empty()
            && let Some(&gap) = list.first()
        {
            let layer = self.index_of(step.gaps[gap as usize].before).saturating_sub(1);
            self.choose(step, gap, layer, reduce, items);
            chosen.push(gap);
        }
        chosen
    }

    fn choose(
        &mut self,
        step: &Step,
        gap: u32,
        layer: usize,
        reduce: &mut [u64],
        items: &mut Vec<Item>,
    ) {
        let (own, bytes) = (step.gaps[gap as usize], step.bytes(gap));
        let swap_us = self.swap_us(step, gap);
        let layer = &mut self.list[layer];
        layer.remaining_us -= swap_us;
        layer.candidates.push(gap);
        let inside = own.after as usize + 1..own.before as usize;
        reduce[inside].iter_mut().for_each(|left| *left = left.saturating_sub(bytes));
        let fetch = layer.start.clamp(own.after + 2, own.before);
        items.push(Item { gap, fetch, release: own.after + 1 });
    }

    /// Section 5.4.2: in the order of swapping out, the layer in which each copy out is completed.
    pub fn set_free_times(&mut self, step: &Step, items: &mut [Item]) {
        items.sort_by_key(|item| item.gap);
        for item in items {
            let own = step.gaps[item.gap as usize];
            let swap_us = self.swap_us(step, item.gap);
            let first = self.index_of(own.after);
            let last = self.index_of(item.fetch.saturating_sub(1)).max(first);
            let found = (first..=last).find(|&at| self.list[at].remaining_us > swap_us);
            let layer = found.unwrap_or(last);
            if found.is_some() {
                self.list[layer].remaining_us -= swap_us;
                self.list[layer].candidates.push(item.gap);
            }
            // It is freed after an operator of that layer was dispatched, and before it is fetched.
            item.release = self.list[layer].end.clamp(own.after + 1, item.fetch);
        }
    }
}
