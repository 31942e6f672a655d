//! Variants of the scripts, for tests: one place in a block is changed, to see that a property notices.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::script::Script;
use crate::support::effort::rounds;

/// A change to one place of a block.
#[derive(Clone, Debug)]
pub(crate) struct Variant {
    /// The block's source, as scripts include it.
    pub(crate) block: &'static str,
    pub(crate) from: &'static str,
    pub(crate) to: &'static str,
}

thread_local! {
    /// The change to the scripts that this thread loads.
    static ACTIVE: RefCell<Option<Variant>> = const { RefCell::new(None) };
}

/// The properties' seed while a variant is active, so that all runs find the same variants.
const SEED: u64 = 20_261_123;

impl Variant {
    /// Returns the changed block. Panics unless the block contains `from` once, so a list of variants follows each
    /// change to the scripts.
    fn changed(&self) -> String {
        assert_eq!(self.block.matches(self.from).count(), 1, "{:?} is not once in {}", self.from, self.block);
        self.block.replacen(self.from, self.to, 1)
    }

    /// Whether the property fails while this thread loads scripts with this change.
    pub(crate) fn is_noticed_by(&self, property: fn()) -> bool {
        let _ = self.changed();
        ACTIVE.set(Some(self.clone()));
        let outcome = catch_unwind(AssertUnwindSafe(property));
        ACTIVE.set(None);
        outcome.is_err()
    }
}

/// Returns a script's source, with the active variant's change.
pub(crate) fn source_of(script: &Script) -> String {
    ACTIVE.with_borrow(|active| match active {
        Some(variant) => script.source.replace(variant.block, &variant.changed()),
        None => script.source.to_owned(),
    })
}

/// Returns the hash of [that source](source_of).
pub(crate) fn hash_of(script: &Script) -> String {
    if ACTIVE.with_borrow(Option::is_none) {
        return script.hash().to_owned();
    }
    ::redis::Script::new(&source_of(script)).get_hash().to_owned()
}

pub(crate) fn seed() -> Option<u64> {
    ACTIVE.with_borrow(|active| active.as_ref().map(|_| SEED))
}

/// The mistakes in one block, and the properties that should notice them.
pub(crate) struct Changes {
    pub(crate) block: &'static str,
    pub(crate) properties: &'static [fn()],
    /// Pairs of a text in the block and its replacement.
    pub(crate) changes: &'static [(&'static str, &'static str)],
}

/// Panics unless the properties notice each change, and names the unnoticed changes. Tries one in eight changes, which
/// differ by block, or, with all rounds, each change.
pub(crate) fn all_are_noticed(blocks: &[Changes]) {
    let mut unnoticed = Vec::new();
    let mut count = 0;
    let step = rounds(8, 1);
    for (number, Changes { block, properties, changes }) in blocks.iter().enumerate() {
        for (from, to) in changes.iter().skip(number % step).step_by(step) {
            let variant = Variant { block, from, to };
            if !properties.iter().any(|property| variant.is_noticed_by(*property)) {
                unnoticed.push(format!("{:?} in place of {from:?}", to));
            }
            count += 1;
        }
    }
    println!("{count} changes");
    assert!(unnoticed.is_empty(), "nothing notices {unnoticed:#?}");
}
