//! Detects handlers that report a cost to a policy that the process does not have.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::engine::log;
use crate::util::lock::Lock;

/// The most names that are kept. If a process has more, any name may be right, so we do not detect anything.
const MOST_NAMES: usize = 256;

/// The most wrong names that are counted. This bounds the memory if clients choose the names.
const MOST_WRONG: usize = 16;

static NAMES: Lock<Names> = Lock::new(Names { settled: BTreeSet::new(), wrong: Vec::new() });

struct Names {
    /// The names of policies that handlers settle, in all the process's layers.
    settled: BTreeSet<Arc<str>>,
    /// Names that handlers have reported to although no policy has them, and how often. `None` stands for a report
    /// without a name, in a process without a policy that is settled by its handler.
    wrong: Vec<(Option<Box<str>>, u32)>,
}

/// Notes that handlers settle policies with this name.
pub(crate) fn add(name: &Arc<str>) {
    let names = &mut NAMES.lock().settled;
    if names.len() < MOST_NAMES && !names.contains(name) {
        names.insert(Arc::clone(name));
    }
}

/// Notes a report that no policy awaits on its request. That is not a mistake if there is a policy with this name,
/// because it may not have charged the request. Otherwise, the first report is logged, and the hundredth.
#[cold]
pub(crate) fn note_unawaited(name: Option<&str>) {
    if !cfg!(feature = "tracing") {
        return;
    }
    if let Some((known, reports)) = NAMES.lock().unawaited(name) {
        log::reported_in_vain(name, &known, reports);
    }
}

impl Names {
    /// Counts a report. Returns the valid names and the count, if they should be logged.
    fn unawaited(&mut self, name: Option<&str>) -> Option<(String, u32)> {
        let may_be_right = name.map_or(!self.settled.is_empty(), |name| self.settled.contains(name));
        if may_be_right || self.settled.len() >= MOST_NAMES {
            return None;
        }
        let index = self.wrong.iter().position(|(wrong, _)| wrong.as_deref() == name);
        let index = match index {
            Some(index) => index,
            None if self.wrong.len() < MOST_WRONG => {
                self.wrong.push((name.map(Box::from), 0));
                self.wrong.len() - 1
            }
            None => return None,
        };
        let reports = &mut self.wrong[index].1;
        *reports = reports.saturating_add(1);
        let is_logged = matches!(*reports, 1 | 100);
        is_logged.then(|| (self.settled.iter().map(|name| &**name).collect::<Vec<_>>().join(", "), *reports))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged(names: &mut Names, name: Option<&str>) -> Vec<u32> {
        (0..500).filter_map(|_| names.unawaited(name)).map(|(_, reports)| reports).collect()
    }

    #[test]
    fn a_wrong_name_is_logged_twice() {
        let mut names = Names { settled: BTreeSet::new(), wrong: Vec::new() };
        assert_eq!(logged(&mut names, None), [1, 100], "no policy is settled");
        names.settled.extend(["tokens", "rows"].map(Arc::from));
        assert_eq!(names.unawaited(Some("tokns")), Some(("rows, tokens".to_owned(), 1)));
        assert_eq!(logged(&mut names, Some("tokns")), [100]);
        // If the policy has not charged the request, that is not a mistake.
        assert!(logged(&mut names, Some("tokens")).is_empty() && logged(&mut names, None).is_empty());
        for number in 0..1_000 {
            let _ = names.unawaited(Some(&format!("invented {number}")));
        }
        assert_eq!(names.wrong.len(), MOST_WRONG);
        names.settled.extend((0..MOST_NAMES).map(|number| Arc::from(number.to_string())));
        assert_eq!(names.unawaited(Some("another")), None);
    }
}
