//! [`Alternatives`]: the sets of keys from which the server may choose in a call.

use smallvec::SmallVec;

use crate::values::Formula;

/// A call's alternatives: sets of its keys, by their indexes. The server charges the first set whose keys all have
/// room, or no key.
///
/// A formula is written out as a list of sets, in the order in which the formula prefers them, so that a server does
/// not need a stack or recursion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alternatives(Vec<ChosenKeys>);

/// The indexes of a call's keys, in the formula's order.
pub(crate) type ChosenKeys = SmallVec<[usize; 4]>;

/// The most sets in a call: five choices between two members, in one *all of*.
const MOST: usize = 32;

impl Alternatives {
    /// The only set is all keys, however many there are. The call then lists no sets.
    pub const ALL: Self = Self(Vec::new());

    /// Writes a formula out for a call with this number of keys. `index` returns the index of a member's key. If it
    /// returns `None`, the member is not in the call: it counts as having room, and charges no key. Returns `None` if
    /// there are too many sets.
    pub(crate) fn of(formula: &Formula, keys: usize, index: &impl Fn(usize) -> Option<usize>) -> Option<Self> {
        let sets = sets(formula, index)?;
        Some(if sets.len() == 1 && sets[0].len() == keys { Self::ALL } else { Self(sets) })
    }

    /// Lists sets of keys by their indexes, the first one preferred.
    pub fn new<S: IntoIterator<Item = usize>>(sets: impl IntoIterator<Item = S>) -> Self {
        Self(sets.into_iter().map(|set| set.into_iter().collect()).collect())
    }

    /// Returns the sets, as the indexes of their keys. An empty list stands for one set with all keys.
    pub fn sets(&self) -> impl Iterator<Item = &[usize]> {
        self.0.iter().map(|set| &set[..])
    }

    /// Returns this set's number in an answer, from 1 on. `None` if there is no such set.
    #[must_use]
    pub fn number_of(&self, chosen: &[usize]) -> Option<u32> {
        let index = if self.0.is_empty() { 0 } else { self.0.iter().position(|set| set[..] == *chosen)? };
        u32::try_from(index + 1).ok()
    }
}

fn sets(formula: &Formula, index: &impl Fn(usize) -> Option<usize>) -> Option<Vec<ChosenKeys>> {
    match formula {
        Formula::Member(member) => Some(vec![index(*member).into_iter().collect()]),
        Formula::All(parts) => {
            let mut all = vec![ChosenKeys::new()];
            for part in parts {
                let part = sets(part, index)?;
                if all.len() * part.len() > MOST {
                    return None;
                }
                let join = |set: &ChosenKeys, other: &ChosenKeys| set.iter().chain(other).copied().collect();
                all = all.iter().flat_map(|set| part.iter().map(move |other| join(set, other))).collect();
            }
            Some(all)
        }
        Formula::Any(parts) => {
            let mut any = Vec::new();
            for part in parts {
                for set in sets(part, index)? {
                    let always_has_room = set.is_empty();
                    any.push(set);
                    if always_has_room {
                        return Some(any);
                    }
                }
                if any.len() > MOST {
                    return None;
                }
            }
            Some(any)
        }
    }
}
