//! The results, by row, concurrency and repetition.

use super::Outcome;
use crate::ratio::Ratio;
use crate::scale::median;
use crate::steady;

pub struct Cell<S> {
    pub name: &'static str,
    pub concurrency: usize,
    pub repetition: usize,
    pub sample: Outcome<S>,
}

pub struct Cells<S>(pub Vec<Cell<S>>);

impl<S: Copy> Cells<S> {
    fn of(&self, name: &str, concurrency: usize) -> impl Iterator<Item = &Cell<S>> {
        self.0.iter().filter(move |cell| cell.name == name && cell.concurrency == concurrency)
    }

    /// All repetitions of a row, in their order.
    pub fn samples(&self, name: &str, concurrency: usize) -> Vec<(usize, S)> {
        self.of(name, concurrency).filter_map(|cell| Some((cell.repetition, *cell.sample.as_ref().ok()?))).collect()
    }

    /// Why a row was not measured, if it was not.
    pub fn problem(&self, name: &str, concurrency: usize) -> Option<&str> {
        self.of(name, concurrency).find_map(|cell| cell.sample.as_ref().err()).map(String::as_str)
    }

    pub fn all(&self, name: &str, concurrency: usize, figure: fn(&S) -> f64) -> Vec<f64> {
        self.samples(name, concurrency).iter().map(|(_, sample)| figure(sample)).collect()
    }

    pub fn median(&self, name: &str, concurrency: usize, figure: fn(&S) -> f64) -> f64 {
        median(self.all(name, concurrency, figure))
    }

    /// One by the other, both from one repetition.
    pub fn ratio(&self, name: &str, reference: &str, concurrency: usize, figure: fn(&S) -> f64) -> Option<Ratio> {
        let references = self.samples(reference, concurrency);
        let ratios = self.samples(name, concurrency).into_iter().filter_map(|(repetition, sample)| {
            let (_, reference) = references.iter().find(|(other, _)| *other == repetition)?;
            Some(figure(&sample) / figure(reference))
        });
        Some(Ratio::of(ratios.collect())?.with_variation(self.variation(reference, concurrency, figure)))
    }

    /// By how much a row varied between repetitions.
    pub fn variation(&self, name: &str, concurrency: usize, figure: fn(&S) -> f64) -> f64 {
        steady::variation(&self.all(name, concurrency, figure))
    }

    /// Keeps `count` repetitions, those in which the reference took least.
    pub fn keep_quietest(&mut self, reference: &str, concurrency: usize, per_second: fn(&S) -> f64, count: usize) {
        let times =
            self.samples(reference, concurrency).iter().map(|(it, sample)| (*it, 1.0 / per_second(sample))).collect();
        let kept = steady::quietest(times, count);
        self.0.retain(|cell| cell.concurrency != concurrency || kept.contains(&cell.repetition));
    }
}
