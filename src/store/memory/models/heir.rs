//! Threads that meet while a limiter inherits, in every possible order.
//!
//! The clock stands still, so a debt at the instant of the change is owed throughout.

use std::sync::Weak;

use loom::sync::Arc;

use super::{Modelled, beside, key, model, model_of_three, models};
use crate::store::memory::WhenFull;
use crate::store::memory::debt_copies::{DebtSource, Debtor, PastDebts};
use crate::store::memory::ledger::{Ledger, base_of};
use crate::store::memory::read_states::{AnyTable, ReadStates, TablePart};
use crate::store::memory::table::{FixedRule, Geometry, SlidingRule, Tag, TickBucket};
use crate::values::time::Timestamp;
use crate::values::{Decision, Quota, Receipt};

const NOW: Timestamp = Timestamp::from_nanos(5);
const LIMIT: u64 = 2;
const KEY: u64 = key(1);

/// Copies the debts from a ledger with the same rule.
struct InheritedStamps<R> {
    from: Arc<Ledger<R>>,
}

impl<R: Modelled> DebtSource<u64> for InheritedStamps<R> {
    fn announce(&self, heir: &Weak<dyn PastDebts>) {
        self.from.inherited().into_iter().for_each(|past| past.announce(heir));
    }

    fn copy(&self, geometry: Geometry, page: usize, put: &mut dyn FnMut(Debtor<u64>)) {
        self.from.each(TablePart::Page(geometry, page), &Quota::per_day(LIMIT), NOW, &mut |set, tag, entry| {
            let stamp = R::stamp_at(self.from.rule(), tag, entry, NOW);
            put(Debtor { set, tag, debt: stamp - base_of(self.from.rule(), NOW), ends: u64::MAX });
        });
    }

    fn size(&self, _: Tag, debt: &u64) -> u64 {
        *debt
    }
}

/// A ledger with four slots.
fn ledger<R: Modelled>() -> Ledger<R> {
    Ledger::new(R::with_limit(LIMIT), 2, WhenFull::EvictLeast)
}

fn heir_of<R: Modelled>(from: &Arc<Ledger<R>>) -> Arc<Ledger<R>> {
    heir_with(2, from)
}

/// Returns an heir with two slots for each of `keys` keys.
fn heir_with<R: Modelled>(keys: usize, from: &Arc<Ledger<R>>) -> Arc<Ledger<R>> {
    let mut heir = Ledger::new(R::with_limit(LIMIT), keys, WhenFull::EvictLeast);
    heir.inherit(
        R::with_limit(LIMIT),
        &from.geometries(NOW),
        NOW,
        &[],
        Box::new(InheritedStamps { from: Arc::clone(from) }),
    );
    heir.remember(from, NOW, false);
    Arc::new(heir)
}

fn copy_all<R: Modelled>(heir: &Ledger<R>) {
    heir.inherited().expect("it inherits").copy_all();
}

fn ask<R: Modelled>(ledger: &Ledger<R>) -> Decision {
    ledger.check(KEY, 1, || NOW, || NOW)
}

fn admitted<R: Modelled>(ledger: &Ledger<R>) -> u32 {
    u32::from(ask(ledger).is_allowed())
}

/// Takes the key's remaining units, and returns their number.
fn take_rest<R: Modelled>(ledger: &Ledger<R>) -> u32 {
    let left = std::iter::repeat_with(|| admitted(ledger)).take_while(|admitted| *admitted == 1).count();
    assert!(ledger.copies(KEY) <= 1);
    u32::try_from(left).unwrap()
}

/// Makes a ledger in which the key has one unit of two left, and an heir to it.
fn changed<R: Modelled>() -> (Arc<Ledger<R>>, Arc<Ledger<R>>, Receipt) {
    let before = Arc::new(ledger());
    let first = ask(&before);
    assert!(first.is_allowed());
    let heir = heir_of(&before);
    (before, heir, first.receipt())
}

/// A request inserts the key, and the thread that calls `replace` copies its page: one copy counts, once.
fn a_key_is_inserted_while_its_page_is_copied<R: Modelled>() {
    model(|| {
        let (_, heir, _) = changed::<R>();
        let other = beside(&heir, admitted);
        copy_all(&heir);
        assert_eq!(other.join().unwrap() + take_rest(&heir), 1);
        heir.check_invariants(NOW);
    });
}

/// Two requests insert the key, and both copy its page.
fn two_threads_insert_an_inherited_key<R: Modelled>() {
    model(|| {
        let (_, heir, _) = changed::<R>();
        let other = beside(&heir, admitted);
        let mine = admitted(&heir);
        copy_all(&heir);
        assert_eq!(mine + other.join().unwrap() + take_rest(&heir), 1);
        heir.check_invariants(NOW);
    });
}

/// A request from before the change charges in the old table, while a request from after it inserts the key. Only the
/// first request's charge may go uncounted.
fn a_request_charges_the_old_table_while_the_key_is_inserted<R: Modelled>() {
    model(|| {
        let (before, heir, _) = changed::<R>();
        let old = beside(&before, admitted);
        let new = admitted(&heir);
        let uncounted = old.join().unwrap();
        copy_all(&heir);
        let taken = uncounted + new + take_rest(&heir);
        assert!((1..=1 + uncounted).contains(&taken), "{taken}");
        before.check_invariants(NOW);
        heir.check_invariants(NOW);
    });
}

/// While a request from before the change charges in the old table, another inserts the key, and the thread that calls
/// `replace` copies the page.
fn a_request_charges_the_old_table_while_another_inserts_and_all_is_copied<R: Modelled>() {
    model_of_three(|| {
        let (before, heir, _) = changed::<R>();
        let old = beside(&before, admitted);
        let new = beside(&heir, admitted);
        copy_all(&heir);
        let uncounted = old.join().unwrap();
        let new = new.join().unwrap();
        let taken = uncounted + new + take_rest(&heir);
        assert!((1..=1 + uncounted).contains(&taken), "{taken}");
        before.check_invariants(NOW);
        heir.check_invariants(NOW);
    });
}

/// A charge from before the change is refunded while the key is inserted: once, from the copy or from the table.
fn a_refund_meets_the_insert_of_its_key<R: Modelled>() {
    model(|| {
        let (_, heir, receipt) = changed::<R>();
        let other = beside(&heir, move |heir| heir.refund(KEY, 1, receipt, NOW));
        let mine = admitted(&heir);
        other.join().unwrap();
        copy_all(&heir);
        assert_eq!(mine + take_rest(&heir), 2);
        heir.check_invariants(NOW);
    });
}

/// The heir is changed in its turn while a key is inserted into it. The next heir finds the debt in the first heir's
/// inherited debts, or in its table, or in both, and then counts it once. If the heir has another size, the two are in
/// pages that are copied one by one, the table's first.
fn a_key_is_inserted_while_an_heir_of_the_heir_copies<R: Modelled>() {
    for keys in [2, 4] {
        model(move || {
            let (before, ..) = changed::<R>();
            let heir = heir_with(keys, &before);
            copy_all(&heir);
            let next = heir_of(&heir);
            let other = beside(&heir, admitted);
            copy_all(&next);
            let uncounted = other.join().unwrap();
            let taken = uncounted + take_rest(&next);
            assert!((1..=1 + uncounted).contains(&taken), "{keys} keys: {taken}");
            heir.check_invariants(NOW);
            next.check_invariants(NOW);
        });
    }
}

/// A thread is descheduled after it has inserted a key, before it clears the key's inherited debt. Another thread
/// charges the key, and then the heir is changed in its turn. The next heir finds an old debt and the present one: the
/// present one counts.
fn a_key_is_charged_before_its_inherited_debt_is_cleared<R: Modelled>() {
    for keys in [2, 4] {
        model(move || {
            let (before, ..) = changed::<R>();
            let heir = heir_with(keys, &before);
            copy_all(&heir);
            let other = beside(&heir, admitted);
            let mine = admitted(&heir);
            let next = heir_of(&heir);
            copy_all(&next);
            let left_then = take_rest(&next);
            let other = other.join().unwrap();
            // The one unit that was left. Only the other thread may have taken it after the change.
            assert_eq!(mine + other, 1);
            assert!(left_then <= other, "{keys} keys: {left_then}");
            heir.check_invariants(NOW);
            next.check_invariants(NOW);
        });
    }
}

/// There is no room for an inherited key until another thread makes some, between two looks: then the key is in the
/// table, and its inherited debt must be cleared.
fn room_is_made_while_an_inherited_key_is_inserted<R: Modelled>() {
    model(|| {
        let before = Arc::new(ledger::<R>());
        let mut heir = Ledger::new(R::with_limit(LIMIT), 2, WhenFull::Reject);
        assert!(ask(&before).is_allowed());
        let from = Arc::clone(&before);
        heir.inherit(R::with_limit(LIMIT), &[before.geometry()], NOW, &[], Box::new(InheritedStamps { from }));
        let heir = Arc::new(heir);
        copy_all(&heir);
        let other_keys = 4..8;
        assert!(other_keys.map(key).all(|other| heir.check::<Decision>(other, 1, || NOW, || NOW).is_allowed()));
        let other = beside(&heir, |heir| heir.reset(key(4), NOW));
        let mine = admitted(&heir);
        other.join().unwrap();
        heir.check_invariants(NOW);
        assert_eq!(mine + take_rest(&heir), 1);
    });
}

models! {
    buckets: TickBucket {
        a_key_is_inserted_while_its_page_is_copied,
        two_threads_insert_an_inherited_key,
        a_request_charges_the_old_table_while_the_key_is_inserted,
        a_request_charges_the_old_table_while_another_inserts_and_all_is_copied,
        a_refund_meets_the_insert_of_its_key,
        a_key_is_inserted_while_an_heir_of_the_heir_copies,
        a_key_is_charged_before_its_inherited_debt_is_cleared,
        room_is_made_while_an_inherited_key_is_inserted,
    }
    fixed_windows: FixedRule {
        a_key_is_inserted_while_its_page_is_copied,
        two_threads_insert_an_inherited_key,
        a_request_charges_the_old_table_while_the_key_is_inserted,
        a_refund_meets_the_insert_of_its_key,
        a_key_is_inserted_while_an_heir_of_the_heir_copies,
        a_key_is_charged_before_its_inherited_debt_is_cleared,
        room_is_made_while_an_inherited_key_is_inserted,
    }
    sliding_windows: SlidingRule {
        a_key_is_inserted_while_its_page_is_copied,
        two_threads_insert_an_inherited_key,
        a_request_charges_the_old_table_while_the_key_is_inserted,
        a_refund_meets_the_insert_of_its_key,
        a_key_is_inserted_while_an_heir_of_the_heir_copies,
        a_key_is_charged_before_its_inherited_debt_is_cleared,
        room_is_made_while_an_inherited_key_is_inserted,
    }
}
