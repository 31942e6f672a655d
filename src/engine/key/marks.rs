//! Marks, by which a layer finds a request's few policies among thousands.

use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use smallvec::SmallVec;

use super::KeyExtractor;
use crate::engine::domain::Domain;

/// The hash of something that a request has, such as a tenant. A [`KeyExtractor`] [names](KeyExtractor::marks) its
/// requests' marks.
///
/// ```
/// use tower_sluice::key::Mark;
///
/// assert_eq!(Mark::of(&("tenant", "ada")), Mark::of(&("tenant", String::from("ada"))));
/// assert_ne!(Mark::of(&("tenant", "ada")), Mark::of(&("tenant", "bob")));
/// ```
///
/// Two values rarely have the same mark. If they do, a policy is asked for a key in vain.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mark(u64);

impl Mark {
    /// Hashes a value.
    #[must_use]
    pub fn of(value: &(impl Hash + ?Sized)) -> Self {
        // The hash keys are the same everywhere, because a client that finds equal marks does not gain anything.
        let mut hasher = DefaultHasher::new();
        value.hash(&mut hasher);
        Self(hasher.finish())
    }
}

impl fmt::Debug for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mark({:016x})", self.0)
    }
}

/// All marks that a request has, in its extensions. A layer then asks only the policies whose
/// [marks](KeyExtractor::marks) the request has, and policies without marks. It does not look at the others, and does
/// not count the request as `skipped` there. Without this extension, all policies are asked.
///
/// ```
/// use tower_sluice::key::{Mark, Marks};
///
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(Marks::from_iter([Mark::of("ada"), Mark::of("gold")]));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Marks(SmallVec<[Mark; 4]>);

impl FromIterator<Mark> for Marks {
    fn from_iter<I: IntoIterator<Item = Mark>>(marks: I) -> Self {
        Self(marks.into_iter().collect())
    }
}

/// A layer's policies by their marks.
pub(crate) struct MarkIndex {
    /// The policies that any request may concern.
    unmarked: Vec<u32>,
    /// Each policy with marks, by its rarest mark.
    by_mark: HashMap<Mark, Vec<u32>>,
}

impl MarkIndex {
    /// Returns `None` if no policy has marks.
    pub(crate) fn new<'a, D: Domain>(keys: impl Iterator<Item = &'a dyn KeyExtractor<D>>) -> Option<Self> {
        // A policy with one key rejects requests without it, so it concerns all requests.
        let marks: Vec<_> = keys.map(|key| if key.has_several() { key.marks() } else { Vec::new() }).collect();
        let mut counts: HashMap<Mark, usize> = HashMap::new();
        for mark in marks.iter().flatten() {
            *counts.entry(*mark).or_default() += 1;
        }
        if counts.is_empty() {
            return None;
        }
        let mut index = Self { unmarked: Vec::new(), by_mark: HashMap::new() };
        for (policy, marks) in (0..).zip(marks) {
            match marks.into_iter().min_by_key(|mark| counts[mark]) {
                Some(rarest) => index.by_mark.entry(rarest).or_default().push(policy),
                None => index.unmarked.push(policy),
            }
        }
        Some(index)
    }

    /// The policies that a request may concern, in order. `None` if it may concern all.
    pub(crate) fn find(&self, marks: Option<&Marks>) -> Option<SmallVec<[u32; 8]>> {
        let Marks(marks) = marks?;
        let marked = marks.iter().filter_map(|mark| self.by_mark.get(mark)).flatten();
        let mut policies: SmallVec<[u32; 8]> = self.unmarked.iter().chain(marked).copied().collect();
        policies.sort_unstable();
        policies.dedup();
        Some(policies)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::domain::On;
    use crate::engine::key::{KeyCharge, KeyError};
    use crate::values::PartitionKey;

    /// Charges requests that have all these marks.
    struct Marked(Vec<&'static str>);

    /// One key for all.
    struct Single;

    impl KeyExtractor<On<()>> for Single {
        fn extract(&self, (): &()) -> Result<PartitionKey, KeyError> {
            Ok(PartitionKey::SHARED)
        }

        fn marks(&self) -> Vec<Mark> {
            vec![Mark::of("ada")]
        }
    }

    impl KeyExtractor<On<()>> for Marked {
        fn extract(&self, (): &()) -> Result<PartitionKey, KeyError> {
            Ok(PartitionKey::SHARED)
        }

        fn has_several(&self) -> bool {
            true
        }

        fn extract_all(&self, (): &()) -> Result<Vec<KeyCharge>, KeyError> {
            Ok(Vec::new())
        }

        fn marks(&self) -> Vec<Mark> {
            self.0.iter().map(Mark::of).collect()
        }
    }

    fn found(keys: &[&dyn KeyExtractor<On<()>>], marks: Option<&[&str]>) -> Option<Vec<u32>> {
        let index = MarkIndex::new(keys.iter().copied())?;
        let marks = marks.map(|marks| marks.iter().map(Mark::of).collect::<Marks>());
        index.find(marks.as_ref()).map(|found| found.to_vec())
    }

    #[test]
    fn policies_are_found_by_their_rarest_mark() {
        let keys: [&dyn KeyExtractor<On<()>>; 5] = [
            &Marked(vec!["gold", "ada"]),
            &Marked(vec!["gold", "bob"]),
            &Single,
            &Marked(Vec::new()),
            &Marked(vec!["free"]),
        ];
        assert_eq!(found(&keys, Some(&["bob", "gold"])), Some(vec![1, 2, 3]));
        assert_eq!(found(&keys, Some(&["free", "ada", "free"])), Some(vec![0, 2, 3, 4]));
        assert_eq!(found(&keys, Some(&[])), Some(vec![2, 3]));
        assert_eq!(found(&keys, None), None);
        assert_eq!(found(&[&Single], Some(&["ada"])), None);
    }

    #[test]
    fn marks_of_single_keys_do_not_count() {
        assert!(MarkIndex::new([&Single as &dyn KeyExtractor<On<()>>].into_iter()).is_none());
    }
}
