//! A small table of fixed size, for what is worth remembering of a key.

use std::sync::{Mutex, PoisonError};

use super::key::Tag;

/// Up to 8,192 keys, each at home in a line of four. Where a line is full, the one with the least value goes.
pub(super) struct Lines<V>(Box<[Mutex<Line<V>>]>);

type Line<V> = [Option<(Tag, V)>; PER_LINE];

const LINES: usize = 2_048;
const PER_LINE: usize = 4;

impl<V: Copy> Lines<V> {
    #[cfg(test)]
    pub(super) const CAPACITY: usize = LINES * PER_LINE;

    pub(super) fn new() -> Self {
        Self(std::iter::repeat_with(|| Mutex::new([None; PER_LINE])).take(LINES).collect())
    }

    pub(super) fn get(&self, tag: Tag) -> Option<V> {
        self.with(tag, |line| find(line, tag).and_then(|slot| slot.map(|(_, value)| value)))
    }

    /// What `change` makes of what is kept of a key, if anything is.
    pub(super) fn change<R>(&self, tag: Tag, change: impl FnOnce(&mut V) -> R) -> Option<R> {
        self.with(tag, |line| find(line, tag).and_then(Option::as_mut).map(|(_, value)| change(value)))
    }

    /// Keeps a value in place of the key's former one, or else of the one in its line of the least `worth`; unless that
    /// is worth more.
    pub(super) fn put(&self, tag: Tag, value: V, worth: impl Fn(&V) -> u64) {
        self.with(tag, |line| {
            let worth_of = |slot: &Option<(Tag, V)>| slot.map_or(0, |(_, value)| worth(&value));
            let own = line.iter().position(|slot| is_of(slot, tag));
            let least = || {
                let index = (0..PER_LINE).min_by_key(|index| worth_of(&line[*index])).expect("a line has slots");
                (worth_of(&line[index]) <= worth(&value)).then_some(index)
            };
            if let Some(index) = own.or_else(least) {
                line[index] = Some((tag, value));
            }
        });
    }

    pub(super) fn remove(&self, tag: Tag) -> Option<V> {
        self.with(tag, |line| find(line, tag).and_then(Option::take).map(|(_, value)| value))
    }

    fn with<R>(&self, tag: Tag, look: impl FnOnce(&mut Line<V>) -> R) -> R {
        #[allow(clippy::cast_possible_truncation)]
        let line = &self.0[tag.short() as usize % LINES];
        // Values are replaced whole.
        look(&mut line.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn is_of<V>(slot: &Option<(Tag, V)>, tag: Tag) -> bool {
    slot.as_ref().is_some_and(|(other, _)| *other == tag)
}

fn find<V>(line: &mut Line<V>, tag: Tag) -> Option<&mut Option<(Tag, V)>> {
    line.iter_mut().find(|slot| is_of(slot, tag))
}
